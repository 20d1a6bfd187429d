package transport_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/certs/certstest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/transport"
)

// browse sends a request to an HTTP server, with a certificate of an authority or without one. It
// returns the result of refuse and the request's error.
func browse(t *testing.T, f transport.Flags, ca *certstest.Authority, own *certstest.Files) (refused, failed error) {
	t.Helper()
	cfg, refuse, err := f.HTTP(rpctest.Logger(t))
	require.NoError(t, err)
	said := make(chan error, 1)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { said <- refuse(r.TLS) }))
	s.EnableHTTP2 = true
	s.Listener = transport.Linger(s.Listener)
	s.TLS = cfg
	s.StartTLS()
	defer s.Close()
	pool := x509.NewCertPool()
	text, err := os.ReadFile(ca.File)
	require.NoError(t, err)
	require.True(t, pool.AppendCertsFromPEM(text))
	client := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if own != nil {
		pair, err := tls.LoadX509KeyPair(own.Cert, own.Key)
		require.NoError(t, err)
		client.Certificates = []tls.Certificate{pair}
	}
	ask := func() (*http.Response, error) {
		in, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
		require.NoError(t, err)
		return (&http.Client{Transport: &http.Transport{TLSClientConfig: client, ForceAttemptHTTP2: true, DisableKeepAlives: true}}).Do(in)
	}
	out, err := ask()
	// A refused client that does not read the reason while the server lingers may get a connection
	// reset. It tries again.
	for guard := time.Now().Add(hang); err != nil && !strings.Contains(err.Error(), "remote error: tls: "); out, err = ask() {
		require.True(t, time.Now().Before(guard), "%v", err)
	}
	if err != nil {
		return nil, err
	}
	require.NoError(t, out.Body.Close())
	require.Equal(t, 2, out.ProtoMajor)
	require.EqualValues(t, tls.VersionTLS13, out.TLS.Version)
	return <-said, nil
}

func TestHTTPRequiresWhatServeRequires(t *testing.T) {
	ca := certstest.New(t)
	// The certificate of httptest's own server is offered only if the configuration has none.
	server := certstest.Save(t, ca.Issue(t, "ip:127.0.0.1"))
	f := transport.Flags{Cert: server.Cert, Key: server.Key}
	operator, other := certstest.Save(t, ca.Issue(t, "dns:operator")), certstest.Save(t, ca.Issue(t, "dns:other"))

	refused, failed := browse(t, f, ca, nil)
	require.NoError(t, failed)
	require.NoError(t, refused)

	f.ClientCA = ca.File
	_, failed = browse(t, f, ca, nil)
	require.ErrorContains(t, failed, "certificate required")
	stranger := certstest.Save(t, certstest.New(t).Issue(t, "dns:operator"))
	_, failed = browse(t, f, ca, &stranger)
	require.Error(t, failed)

	f.ClientSANs = []string{"dns:operator"}
	refused, failed = browse(t, f, ca, &operator)
	require.NoError(t, failed)
	require.NoError(t, refused)
	refused, failed = browse(t, f, ca, &other)
	require.NoError(t, failed)
	require.ErrorContains(t, refused, "the names of your certificate are dns:other")
}

func TestHTTPWithoutCertificateIsPlaintext(t *testing.T) {
	cfg, refuse, err := (&transport.Flags{}).HTTP(rpctest.Logger(t))
	require.NoError(t, err)
	require.Nil(t, cfg)
	require.Nil(t, refuse)
}
