package served

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
)

// ErrBroken says that a promise was broken.
var ErrBroken = errors.New("a promise was broken")

// broken is ErrBroken with every problem; nil for none.
func broken(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n  %s", ErrBroken, strings.Join(problems, "\n  "))
}

// Service is a model that is served.
type Service struct {
	Conns  []grpc.ClientConnInterface // to whom is asked, used in turn
	Worker grpc.ClientConnInterface   // to the worker that computes: its reports are read
	Target load.Target
	Maker  load.Maker
	Tell   func(format string, args ...any)
}

// reportTimeout bounds the wait for a report; settleTimeout that for a worker to have nothing left to do.
const (
	reportTimeout = 10 * time.Second
	settleTimeout = 60 * time.Second
	// settlePause is longer than a worker's report is old.
	settlePause = 300 * time.Millisecond
)

// report is the worker's report of the moment: the first of a health stream is whole.
func (s *Service) report(ctx context.Context) (*pb.WorkerReport, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	stream, err := pb.NewWorkerServiceClient(s.Worker).Health(ctx)
	if err != nil {
		return nil, err
	}
	// A stream that has ended already has its report and its status behind it.
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

// settled waits until the worker runs nothing, or for settleTimeout, and gives its report.
func (s *Service) settled(ctx context.Context) (report *pb.WorkerReport, took time.Duration, err error) {
	began := time.Now()
	for {
		time.Sleep(settlePause)
		report, err = s.report(ctx)
		if err != nil {
			return nil, 0, err
		}
		took = time.Since(began)
		if l := report.GetLoad(); l.GetRunning()+l.GetWaiting() == 0 || took > settleTimeout {
			return report, took, nil
		}
	}
}

// call makes call number i over the connections in turn.
func (s *Service) call(ctx context.Context, i uint64, in *pb.GenerateRequest, see load.Observer) load.Outcome {
	return load.Call(ctx, s.Conns[i%uint64(len(s.Conns))], in, time.Now(), 0, see, nil)
}

// failure is what a call that must succeed failed with.
func failure(what string, o *load.Outcome) error {
	if o.Cut {
		return context.Canceled
	}
	if o.Code != 0 {
		return fmt.Errorf("%s: %s %s: %s", what, o.Code, o.Reason, o.Message)
	}
	return nil
}

// together runs n functions at once and gives their errors.
func together(n int, run func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = run(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}
