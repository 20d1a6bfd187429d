package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// flagsOf parses arguments. The service listens on a socket unless they say otherwise.
func flagsOf(t *testing.T, args ...string) *Flags {
	t.Helper()
	f, fs := &Flags{}, pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Register(fs, Defaults{Listen: "unix:" + filepath.Join(t.TempDir(), "service")})
	require.NoError(t, fs.Parse(args))
	require.NoError(t, f.Check(""))
	return f
}

// open opens a program with a server of no services.
func open(ctx context.Context, t *testing.T, f *Flags) (*App, *rpc.Server) {
	t.Helper()
	a, err := Open(ctx, "test", "", f, rpctest.Logger(t))
	require.NoError(t, err)
	t.Cleanup(a.Close)
	s, err := a.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain})
	require.NoError(t, err)
	return a, s
}

func TestServeShutsDownInOrder(t *testing.T) {
	// Tasks outlive the calls and the closers, which run in the order that they are given.
	rpctest.NoLeaks(t)
	ctx, signal := context.WithCancel(t.Context())
	a, s := open(ctx, t, flagsOf(t))
	var order []string
	a.Go(func(ctx context.Context) error {
		<-ctx.Done()
		order = append(order, "task")
		return nil
	})
	signal()
	closer := func(name string) func() {
		return func() {
			require.Error(t, a.Context().Err())
			order = append(order, name)
		}
	}
	require.NoError(t, a.Serve(s, closer("first"), closer("second")))
	require.Equal(t, []string{"first", "second", "task"}, order)
}

func TestFailedTaskStopsTheProgram(t *testing.T) {
	rpctest.NoLeaks(t)
	a, s := open(t.Context(), t, flagsOf(t))
	broken := errors.New("broken")
	a.Go(func(context.Context) error { return broken })
	require.ErrorIs(t, a.Serve(s), broken)
	require.NoError(t, t.Context().Err())
}

func TestMetricsAreServedUntilCallsHaveEnded(t *testing.T) {
	rpctest.NoLeaks(t)
	ctx, signal := context.WithCancel(t.Context())
	socket := filepath.Join(t.TempDir(), "metrics")
	a, s := open(ctx, t, flagsOf(t, "--metrics-listen", "unix:"+socket))
	a.ServeMetrics(func(calls *monitor.Calls) (monitor.Page, error) {
		registry, err := monitor.Registry(calls)
		well := func() (bool, string) { return true, "ready\n" }
		return monitor.Page{Metrics: registry, Alive: well, Able: well}, err
	})
	scrape := func() error {
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport, Timeout: time.Minute}
		in, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://test/metrics", nil)
		require.NoError(t, err)
		out, err := client.Do(in)
		if err != nil {
			return err
		}
		return out.Body.Close()
	}
	require.NoError(t, scrape())
	signal()
	require.NoError(t, a.Serve(s, func() { require.NoError(t, scrape(), "while calls drain") }))
	require.Error(t, scrape())
}

func TestOpenRefusesAPortInUse(t *testing.T) {
	rpctest.NoLeaks(t)
	var lc net.ListenConfig
	occupied, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, occupied.Close()) }()
	address := occupied.Addr().String()
	for _, flag := range []string{"--listen", "--metrics-listen", "--pprof-listen"} {
		_, err := Open(t.Context(), "test", "", flagsOf(t, flag, address), rpctest.Logger(t))
		require.ErrorContains(t, err, address, flag)
	}
}

func TestUsageErrorsHaveTheirOwnExitCode(t *testing.T) {
	broken := errors.New("broken")
	require.NoError(t, Usage(nil))
	require.Equal(t, "broken", Usage(broken).Error())
	for err, want := range map[error]int{nil: 0, broken: 1, Usage(broken): 2, fmt.Errorf("wrapped: %w", Usage(broken)): 2} {
		require.Equal(t, want, ExitCode(err), "%v", err)
	}
	require.ErrorIs(t, Usage(broken), broken)
}

func TestCheckNamesEveryWrongFlag(t *testing.T) {
	f := &Flags{
		Listen: "nowhere", MetricsListen: "a:", PprofListen: "0.0.0.0:6060", MetricsTLS: true, SendStall: time.Hour + 1, LogLevel: "loud",
	}
	err := f.Check("also nowhere")
	for _, flag := range []string{
		"--listen", "--metrics-listen", "--pprof-listen", "--console-listen", "--metrics-tls", "--send-stall", "--log-level",
	} {
		require.Contains(t, "\n"+err.Error(), "\n"+flag)
	}
}
