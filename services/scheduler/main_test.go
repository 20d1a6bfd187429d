package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/version"
)

// hang bounds waits for events that come much sooner.
const hang = time.Minute

// logs is a buffer that is safe for concurrent use.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// run runs the command line.
func run(ctx context.Context, out *logs, args ...string) error {
	cmd := command(out)
	cmd.SetArgs(args)
	cmd.SetOut(out)
	return cmd.ExecuteContext(ctx)
}

func TestProgramServesReportsHealthAndStops(t *testing.T) {
	rpctest.NoLeaks(t)
	dir := t.TempDir()
	address := "unix:" + filepath.Join(dir, "s")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var out logs
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, &out, "--listen", address, "--workers", "unix:"+filepath.Join(dir, "nobody"), "--log-json")
	}()
	// grpc-go's logger is set once, before anything else of it runs.
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "listening") }, hang, time.Millisecond)
	require.Eventually(t, func() bool { return rpc.CheckHealth(context.Background(), address, "test") == nil },
		hang, 10*time.Millisecond, "a worker that is not there makes the fleet known, and the scheduler serves")
	require.NoError(t, run(context.Background(), &out, "health", "--target", address, "--timeout", hang.String()))
	cancel()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(hang):
		require.FailNow(t, "it did not stop", out.String())
	}
	require.Error(t, run(context.Background(), &out, "health", "--target", address))
	require.Contains(t, out.String(), `"@message":"starting"`)
	require.Contains(t, out.String(), `"@message":"stopped"`)
}

func TestProgramRefusesBadArguments(t *testing.T) {
	var out logs
	require.ErrorIs(t, run(context.Background(), &out), app.ErrUsage)
	require.ErrorContains(t, run(context.Background(), &out, "--workers", "127.0.0.1:1", "--listen", "unix:/nowhere/at/all"), "listen on")
	require.NoError(t, run(context.Background(), &out, "--version"))
	require.Contains(t, out.String(), program+" "+version.String()+"\n")
}

func TestExitCodes(t *testing.T) {
	// A wrong command line has another code than a failure.
	for name, tc := range map[string]struct {
		args []string
		want int
	}{
		"the version":                 {[]string{"--version"}, 0},
		"help":                        {[]string{"--help"}, 0},
		"a flag that is none":         {[]string{"--frobnicate"}, 2},
		"a value that is no number":   {[]string{"--workers", "127.0.0.1:1", "--max-in-flight", "many"}, 2},
		"a value out of range":        {[]string{"--workers", "127.0.0.1:1", "--max-in-flight", "-1"}, 2},
		"no worker":                   {nil, 2},
		"an argument":                 {[]string{"a:1"}, 2},
		"a flag that health has not":  {[]string{"health", "--workers", "127.0.0.1:1"}, 2},
		"an argument of health":       {[]string{"health", "a:1"}, 2},
		"an address that is not here": {[]string{"--workers", "127.0.0.1:1", "--listen", "unix:/nowhere/at/all"}, 1},
		"a server that is not there":  {[]string{"health", "--target", "unix:/nowhere/at/all"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var out logs
			err := run(context.Background(), &out, tc.args...)
			require.Equal(t, tc.want, app.ExitCode(err), "%v", err)
		})
	}
}
