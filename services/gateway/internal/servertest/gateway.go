package servertest

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/repotest"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// Hang bounds waits for events that come much sooner.
const Hang = time.Minute

// Gateway is a gateway on a port of loopback.
type Gateway struct{ URL string }

// Serve serves a dialect until the test ends. change may be nil.
func Serve(t testing.TB, d httpapi.Dialect, change func(*httpapi.Config)) *Gateway {
	t.Helper()
	cfg := configOf(d)
	if change != nil {
		change(&cfg)
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- httpapi.New(cfg, rpctest.Logger(t)).Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return &Gateway{"http://" + lis.Addr().String()}
}

func configOf(d httpapi.Dialect) httpapi.Config {
	return httpapi.Config{
		Dialects: []httpapi.Dialect{d}, Ready: func(context.Context) error { return nil },
		MaxConnections: 100, MaxBodyBytes: 1 << 20, MaxHeldBytes: 8 << 20, SendStall: Hang, DrainTimeout: Hang,
	}
}

// Call makes a request with the request id "id" and returns the response and its body. headers are
// names and values.
func (g *Gateway) Call(t testing.TB, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	in, err := http.NewRequestWithContext(t.Context(), method, g.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	in.Header.Set("X-Request-Id", "id")
	for i := 0; i < len(headers); i += 2 {
		in.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: Hang}
	out, err := client.Do(in)
	require.NoError(t, err)
	raw, err := io.ReadAll(out.Body)
	require.NoError(t, err)
	require.NoError(t, out.Body.Close())
	return out, string(raw)
}

// EventIDs matches the lines of events' ids, which package resume tests.
var EventIDs = regexp.MustCompile(`(?m)^id: .*\n`)

// Golden compares a text with a file of testdata. Ids of events are left out, and what varies is
// replaced by "0".
func Golden(t testing.TB, name, text string, varies *regexp.Regexp) {
	t.Helper()
	text = EventIDs.ReplaceAllString(text, "")
	if varies != nil {
		text = varies.ReplaceAllString(text, "0")
	}
	path := filepath.Join("testdata", name)
	if *repotest.Update {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "the same test with -update writes it")
	require.Equal(t, string(want), text, name)
}

// Handle serves one request with a handler and returns its error.
func Handle(t testing.TB, body string, handle func(x *httpapi.Exchange) error) error {
	t.Helper()
	h := &handler{handle: handle}
	in := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
	httpapi.New(configOf(h), hclog.NewNullLogger()).Handler().ServeHTTP(httptest.NewRecorder(), in)
	return h.err
}

// handler is a dialect with one handler, whose last result is err.
type handler struct {
	handle func(x *httpapi.Exchange) error
	err    error
}

func (h *handler) Routes() []httpapi.Route {
	return []httpapi.Route{{Pattern: "POST /", Handle: func(x *httpapi.Exchange) error {
		h.err = h.handle(x)
		return h.err
	}}}
}

func (*handler) ErrorBody(*httpapi.Failure) []byte  { return nil }
func (*handler) ErrorEvent(*httpapi.Failure) []byte { return nil }
