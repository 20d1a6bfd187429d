package rpc_test

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/millrace/millrace/services/internal/rpc"
)

// raw returns b as a frame.
func raw(b []byte) *rpc.Frame { return &rpc.Frame{Data: mem.BufferSlice{mem.SliceBuffer(b)}} }

// syncBuffer is a bytes.Buffer that is safe for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

const (
	hang  = time.Minute // hang guard: the tests wait for a far shorter time
	retry = 10 * time.Millisecond
)

// contextWithCancel returns a context that ends with the test at the latest.
func contextWithCancel(t *testing.T) (context.Context, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	t.Cleanup(cancel)
	return ctx, cancel
}
