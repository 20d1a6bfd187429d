package server

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/gpuworker/batch"
)

// Observer is told how generations end, by the goroutines of their calls: its methods return at once.
type Observer interface {
	// Finished: a continuation came to its end.
	Finished(model string, reason batch.Reason)
	// Ended: a call that had its model has ended, so long after it came. resumed is whether it went on with what another worker had
	// begun.
	Ended(model string, code codes.Code, took time.Duration, resumed bool)
}

// Observe gives the server whom to tell. Call it before Register.
func (s *Server) Observe(o Observer) { s.observer = o }

// Followers is how many schedulers hold a health stream.
func (s *Server) Followers() int64 { return s.followers.Load() }

// Resyncs is how many full reports schedulers asked for behind their first.
func (s *Server) Resyncs() uint64 { return s.resyncs.Load() }

// nobody is an Observer that is not there.
type nobody struct{}

func (nobody) Finished(string, batch.Reason)                 {}
func (nobody) Ended(string, codes.Code, time.Duration, bool) {}
