package vectorcli_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/cli"
	"github.com/millrace/millrace/services/millrace/internal/config"
	"github.com/millrace/millrace/services/millrace/internal/tty/ttytest"
)

// hang bounds waits for text that must appear.
const hang = 3 * time.Minute

// rig is a client of one server, and its output.
type rig struct {
	target   string
	signals  chan os.Signal
	out, err ttytest.Buffer
}

// run executes one command line and returns its exit code.
func (r *rig) run(t *testing.T, args ...string) int {
	t.Helper()
	return r.on(t, &r.out, &r.err, args...)
}

// on is run with other streams.
func (r *rig) on(t *testing.T, out, err io.Writer, args ...string) int {
	t.Helper()
	done := make(chan int, 1)
	go func() {
		done <- cli.Run(context.Background(), &cli.System{
			In: strings.NewReader(""), Out: out, Err: err, Signals: r.signals, Config: config.Config{Target: r.target, Plain: true},
		}, args)
	}()
	select {
	case code := <-done:
		return code
	case <-time.After(hang):
		require.FailNow(t, "the command does not end", "%v", args)
		return 0
	}
}

// interrupt sends Ctrl-C once the output holds text.
func (r *rig) interrupt(t *testing.T, out *ttytest.Buffer, text string) {
	t.Helper()
	sent := make(chan struct{})
	t.Cleanup(func() { <-sent })
	go func() {
		defer close(sent)
		for end := time.Now().Add(hang); time.Now().Before(end) && !strings.Contains(out.String(), text); {
			time.Sleep(time.Millisecond)
		}
		r.signals <- syscall.SIGINT
	}()
}

// write writes a text file.
func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func refusal(code codes.Code, reason, message string) error {
	return rpc.Error{Code: code, Domain: rpc.WorkerDomain, Reason: reason, Message: message}.Err()
}
