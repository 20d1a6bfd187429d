package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// ErrBroken says that a server broke a promise. It does not depend on time.
var ErrBroken = errors.New("a promise was broken")

// Service is a loaded model under test. Prefix, Cancel, Overload and Fairness each put it under
// their own load and return a report. If the Err of a report is not nil, the service broke a
// promise; times are reported and judged by floors alone.
type Service struct {
	Conns      []grpc.ClientConnInterface // for calls, used in turn
	Worker     grpc.ClientConnInterface   // to the worker that computes, for its health reports
	Target     Target
	Maker      Maker
	Progress   func(format string, args ...any)
	HostMemory func(pid int) (uint64, error) // resident bytes of a process of this host
}

const (
	reportTimeout = 10 * time.Second
	settleTimeout = 60 * time.Second
	settlePause   = 300 * time.Millisecond // longer than the age of a worker's report
)

// broken returns ErrBroken with every problem whose condition is true, or nil.
func broken(problems map[string]bool) error {
	var all []string
	for text, wrong := range problems {
		if wrong {
			all = append(all, text)
		}
	}
	slices.Sort(all)
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n  %s", ErrBroken, strings.Join(all, "\n  "))
}

// report returns the worker's current report: the first one of a health stream is complete.
func (s *Service) report(ctx context.Context) (*pb.WorkerReport, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	stream, err := pb.NewWorkerServiceClient(s.Worker).Health(ctx)
	if err != nil {
		return nil, err
	}
	// Send returns EOF if the stream has ended; its report and status can still be received.
	if err := stream.Send(&pb.HealthRequest{}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("the worker's report: %w", err)
		}
		if full := response.GetFull(); full != nil {
			return full, nil
		}
	}
}

// settled waits until the worker runs nothing, for at most settleTimeout, and returns its report.
func (s *Service) settled(ctx context.Context) (report *pb.WorkerReport, took time.Duration, err error) {
	for began := time.Now(); ; {
		time.Sleep(settlePause)
		report, err = s.report(ctx)
		took = time.Since(began)
		if l := report.GetLoad(); err != nil || l.GetRunning()+l.GetWaiting() == 0 || took > settleTimeout {
			return report, took, err
		}
	}
}

// call makes call number i over the connections in turn.
func (s *Service) call(ctx context.Context, i uint64, in *pb.GenerateRequest, see Observer) Outcome {
	return Call(ctx, s.Conns[i%uint64(len(s.Conns))], in, time.Now(), 0, see, nil)
}

// failure returns an error unless the call succeeded.
func failure(what string, o *Outcome) error {
	if o.Cut {
		return context.Canceled
	}
	if o.Code != 0 {
		return fmt.Errorf("%s: %s %s: %s", what, o.Code, o.Reason, o.Message)
	}
	return nil
}

// together runs n functions at once and joins their errors.
func together(n int, run func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = run(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func milliseconds(d time.Duration) float64 { return float64(d) / 1e6 }

// spread formats a median with its range.
func spread(s stats.Spread) string { return fmt.Sprintf("%.2f (%.2f..%.2f)", s.Median, s.Min, s.Max) }
