package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// securePage returns a process's answer over TLS to a client with the certificate of a name of the
// fleet; "": without one.
func (g *guarded) securePage(t *testing.T, url, who string) (code int, body string) {
	t.Helper()
	pem, err := os.ReadFile(g.ca.File)
	require.NoError(t, err)
	cfg := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
	require.True(t, cfg.RootCAs.AppendCertsFromPEM(pem))
	if who != "" {
		own, err := tls.LoadX509KeyPair(g.files[who].Cert, g.files[who].Key)
		require.NoError(t, err)
		cfg.Certificates = []tls.Certificate{own}
	}
	in, err := http.NewRequestWithContext(within(t), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	out, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: cfg}}).Do(in)
	require.NoError(t, err)
	text, err := io.ReadAll(out.Body)
	require.NoError(t, err)
	require.NoError(t, out.Body.Close())
	return out.StatusCode, string(text)
}

func TestBothProgramsServeMeasuresOverTLS(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	ofWorker, ofScheduler := freeAddress(t), freeAddress(t)
	w := serveTo(t, g.operator, workerBinary, slices.Concat(workerFlags(modelsDir, "w1", paced...), g.serving("worker"),
		[]string{"--metrics-tls", "--metrics-listen", ofWorker})...)
	serveTo(t, g.client, schedulerBinary, slices.Concat(g.serving("scheduler"), patient, []string{
		"--workers", w.address, "--tls-ca", g.ca.File, "--metrics-tls", "--metrics-listen", ofScheduler,
	})...)
	for address, measure := range map[string]string{ofWorker: "millrace_worker_info", ofScheduler: "millrace_scheduler_info"} {
		code, body := g.securePage(t, "https://"+address+"/metrics", "operator")
		require.Equal(t, http.StatusOK, code)
		require.Contains(t, body, measure)
		code, body = g.securePage(t, "https://"+address+"/metrics", "")
		require.Equal(t, http.StatusForbidden, code)
		require.NotContains(t, body, measure)
		code, _ = g.securePage(t, "https://"+address+"/healthz", "")
		require.Equal(t, http.StatusOK, code, "a probe shows no certificate")
	}
}
