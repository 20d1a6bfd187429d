package rpc_test

import (
	"bytes"
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/millrace/millrace/services/internal/rpc"
)

// raw is a frame of bytes.
func raw(b []byte) *rpc.Frame { return &rpc.Frame{Data: mem.BufferSlice{mem.SliceBuffer(b)}} }

// syncBuffer is a bytes.Buffer for several goroutines.
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
