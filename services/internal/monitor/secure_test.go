package monitor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/certs"
	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/transport"
)

// securePage serves a page over TLS on loopback until the test ends.
func securePage(t *testing.T, f transport.Flags) (address string) {
	t.Helper()
	page := newPage(t)
	web, err := f.Web(rpctest.Logger(t))
	require.NoError(t, err)
	page.Secure = web
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- page.Serve(ctx, lis, rpctest.Logger(t)) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return lis.Addr().String()
}

// asked returns the HTTP status for a caller with these certificates, or the error of the
// connection.
func asked(t *testing.T, authority *certstest.Authority, url string, shows ...tls.Certificate) (code int, err error) {
	t.Helper()
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(authority.File)
	require.NoError(t, err)
	require.True(t, pool.AppendCertsFromPEM(pem))
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: shows, MinVersion: tls.VersionTLS13},
	}}
	in, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	out, err := client.Do(in)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, out.Body) // the status suffices
	return out.StatusCode, out.Body.Close()
}

func shown(t *testing.T, pair certs.Pair) tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	return c
}

func TestMetricsOverTLSRequireACertificate(t *testing.T) {
	// Probes do not.
	rpctest.NoLeaks(t)
	own, stranger := certstest.New(t), certstest.New(t)
	files := certstest.Save(t, own.Issue(t, "ip:127.0.0.1"))
	address := securePage(t, transport.Flags{
		Cert: files.Cert, Key: files.Key, ClientCA: own.File, ClientSANs: []string{"dns:prometheus"},
	})
	prometheus, other := shown(t, own.Issue(t, "dns:prometheus")), shown(t, own.Issue(t, "dns:other"))
	for name, tc := range map[string]struct {
		path  string
		shows []tls.Certificate
		code  int
	}{
		"metrics with a good certificate":     {"/metrics", []tls.Certificate{prometheus}, http.StatusOK},
		"none to one of another name":         {"/metrics", []tls.Certificate{other}, http.StatusForbidden},
		"none to one who shows nothing":       {"/metrics", nil, http.StatusForbidden},
		"a probe to one who shows nothing":    {"/healthz", nil, http.StatusOK},
		"the other one too":                   {"/readyz", nil, http.StatusOK},
		"a probe to one who has another name": {"/healthz", []tls.Certificate{other}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			code, err := asked(t, own, "https://"+address+tc.path, tc.shows...)
			require.NoError(t, err)
			require.Equal(t, tc.code, code)
		})
	}
	_, err := asked(t, own, "https://"+address+"/metrics", shown(t, stranger.Issue(t, "dns:prometheus")))
	require.Error(t, err, "a stranger's certificate makes no connection")
	code, err := asked(t, own, "http://"+address+"/metrics")
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, code, "plaintext is told so")
}

func TestMetricsOverTLSWithoutClientCA(t *testing.T) {
	rpctest.NoLeaks(t)
	own := certstest.New(t)
	files := certstest.Save(t, own.Issue(t, "ip:127.0.0.1"))
	address := securePage(t, transport.Flags{Cert: files.Cert, Key: files.Key})
	code, err := asked(t, own, "https://"+address+"/metrics")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
}

func TestReplacedCertificateIsUsed(t *testing.T) {
	rpctest.NoLeaks(t)
	own, next := certstest.New(t), certstest.New(t)
	files := certstest.Save(t, own.Issue(t, "ip:127.0.0.1"))
	address := securePage(t, transport.Flags{Cert: files.Cert, Key: files.Key})
	_, err := asked(t, own, "https://"+address+"/healthz")
	require.NoError(t, err)
	files.Replace(t, next.Issue(t, "ip:127.0.0.1"))
	require.Eventually(t, func() bool {
		_, err := asked(t, next, "https://"+address+"/healthz")
		return err == nil
	}, time.Minute, 50*time.Millisecond)
}

func TestCheckSecure(t *testing.T) {
	require.NoError(t, CheckSecure(false, "", ""))
	require.NoError(t, CheckSecure(true, "127.0.0.1:9071", "cert.pem"))
	for _, lacks := range [][2]string{{"", "cert.pem"}, {"127.0.0.1:9071", ""}} {
		require.ErrorContains(t, CheckSecure(true, lacks[0], lacks[1]), "--metrics-tls")
	}
}
