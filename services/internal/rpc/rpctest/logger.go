package rpctest

import (
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// Logger writes to the test's log at debug level until the test ends.
func Logger(t testing.TB) hclog.Logger {
	t.Helper()
	w := &testWriter{t: t}
	t.Cleanup(w.close)
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: w, DisableTime: true})
}

// testWriter drops lines that are written after the test, because the testing package panics on
// them.
type testWriter struct {
	mu sync.Mutex
	t  testing.TB // guarded by mu; nil after the test
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Log(strings.TrimRight(string(p), "\n"))
	}
	return len(p), nil
}

func (w *testWriter) close() {
	w.mu.Lock()
	w.t = nil
	w.mu.Unlock()
}
