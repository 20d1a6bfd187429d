package monitor_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestProfilesRefuseOtherHosts(t *testing.T) {
	rpctest.NoLeaks(t)
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- monitor.Profiles(ctx, lis, rpctest.Logger(t)) }()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(method, path, host string) (int, string) {
		in, err := http.NewRequestWithContext(t.Context(), method, "http://"+lis.Addr().String()+path, nil)
		require.NoError(t, err)
		if host != "" {
			in.Host = host
		}
		out, err := client.Do(in)
		require.NoError(t, err)
		body, err := io.ReadAll(out.Body)
		require.NoError(t, err)
		require.NoError(t, out.Body.Close())
		return out.StatusCode, string(body)
	}
	code, body := ask(http.MethodGet, "/debug/pprof/goroutine?debug=1", "")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "goroutine profile")
	code, _ = ask(http.MethodGet, "/debug/pprof/", "localhost:6060")
	require.Equal(t, http.StatusOK, code)
	code, _ = ask(http.MethodGet, "/debug/pprof/", "rebound.example:6060")
	require.Equal(t, http.StatusForbidden, code)
	code, _ = ask(http.MethodPost, "/debug/pprof/", "")
	require.Equal(t, http.StatusMethodNotAllowed, code)
	code, _ = ask(http.MethodGet, "/metrics", "")
	require.Equal(t, http.StatusNotFound, code)
	cancel()
	require.NoError(t, <-ended)
}
