package served

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
)

// CancelConfig says how many calls are cancelled, and under which load.
type CancelConfig struct {
	Calls       int // cancelled
	AtOnce      int
	Beside      int // calls that run meanwhile and are not cancelled
	Prompt, Max int // tokens
	Seed        uint64
}

// soonest is the longest wait before a call is cancelled that shall not have a token.
const soonest = 50 * time.Millisecond

// CancelReport is what cancelled calls left behind.
type CancelReport struct {
	Config    CancelConfig `json:"config"`
	Cancelled uint64       `json:"cancelled"`
	Early     uint64       `json:"cancelled_before_a_token"`
	Ended     uint64       `json:"ended_before_their_cancel"`
	Failed    uint64       `json:"failed"`
	Beside    uint64       `json:"beside_ok"` // calls that ran meanwhile, to their ends
	// What the worker counted meanwhile, and holds when all is over.
	Worker           uint64  `json:"worker_cancelled"`
	StepsAfterCancel uint64  `json:"steps_after_cancel"`
	BlocksMissing    int64   `json:"blocks_missing"`
	BuffersMore      int64   `json:"buffers_more"`
	Leaked           uint64  `json:"leaked_buffers"`
	SettledSeconds   float64 `json:"settled_seconds"`
	problems         []string
}

// Cancel cancels calls at random moments while others run: before they begin, while their prompts are computed, and after any
// token.
func Cancel(ctx context.Context, s *Service, c CancelConfig) (*CancelReport, error) {
	before, _, err := s.settled(ctx)
	if err != nil {
		return nil, err
	}
	out := &CancelReport{Config: c}
	running, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	others := load.NewRecorder(nil)
	beside.Go(func() {
		maker := s.Maker
		maker.Seed += 1 << 40
		g := load.Generator{Conns: s.Conns, Maker: maker, To: others}
		if c.Beside > 0 {
			g.Closed(running, c.Beside, load.Size{Prompt: c.Prompt, Output: c.Max}, 0, 0)
		}
	})
	s.cancelCalls(ctx, c, out)
	stop()
	beside.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	report, _ := others.Report() // it writes no lines
	out.Beside, out.Failed = report.OK, out.Failed+report.Failed
	after, took, err := s.settled(ctx)
	if err != nil {
		return nil, err
	}
	out.SettledSeconds = took.Seconds()
	out.judge(before, after)
	return out, nil
}

// cancelCalls makes the calls that are cancelled, so many at once.
func (s *Service) cancelCalls(ctx context.Context, c CancelConfig, out *CancelReport) {
	var next, done atomic.Int64
	_ = together(c.AtOnce, func(int) error {
		for i := next.Add(1) - 1; i < int64(c.Calls) && ctx.Err() == nil; i = next.Add(1) - 1 {
			s.cancelled(ctx, c, uint64(i), out)
			s.Tell("%d of %d calls cancelled", done.Add(1), c.Calls)
		}
		return nil
	})
}

func (s *Service) cancelled(ctx context.Context, c CancelConfig, i uint64, out *CancelReport) {
	random := rand.New(rand.NewPCG(c.Seed, i))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	after, got := random.IntN(c.Max), 0 // tokens; 0: before any, after a time
	if after == 0 || i%4 == 0 {
		after = 0
		timer := time.AfterFunc(time.Duration(random.Int64N(int64(soonest))), cancel)
		defer timer.Stop()
	}
	end := s.call(ctx, i, s.Maker.Request(i, load.Size{Prompt: c.Prompt, Output: c.Max}), load.Observer{Tokens: func(n int) {
		if got += n; after > 0 && got >= after {
			cancel()
		}
	}})
	add := func(to *uint64) { atomic.AddUint64(to, 1) }
	switch {
	case end.Cut:
		add(&out.Cancelled)
		if end.Tokens == 0 {
			add(&out.Early)
		}
	case end.Code == codes.OK:
		add(&out.Ended)
	default:
		add(&out.Failed)
	}
}

// judge compares what the worker holds with what it held before.
func (r *CancelReport) judge(before, after *pb.WorkerReport) {
	was, is := before.GetLoad(), after.GetLoad()
	r.Worker = is.GetCancelled() - was.GetCancelled()
	r.StepsAfterCancel = is.GetStepsAfterCancel() - was.GetStepsAfterCancel()
	r.BlocksMissing = int64(is.GetTotalBlocks()) - int64(is.GetFreeBlocks()) // all are free when nobody asks
	r.BuffersMore = int64(after.GetDevice().GetLiveBuffers()) - int64(before.GetDevice().GetLiveBuffers())
	r.Leaked = after.GetDevice().GetLeakedBuffers()
	for _, p := range []struct {
		wrong bool
		what  string
	}{
		{is.GetRunning()+is.GetWaiting() > 0, fmt.Sprintf("%d sequences run and %d wait when everybody has gone", is.GetRunning(), is.GetWaiting())},
		{r.StepsAfterCancel > 0, fmt.Sprintf("cancelled sequences were in %d steps planned later", r.StepsAfterCancel)},
		{r.BlocksMissing != 0, fmt.Sprintf("%d KV blocks did not come back", r.BlocksMissing)},
		{r.BuffersMore != 0 || r.Leaked > 0, fmt.Sprintf("%d buffers more are held, %d leaked", r.BuffersMore, r.Leaked)},
		{r.Failed > 0, fmt.Sprintf("%d calls failed with a status", r.Failed)},
		{r.Cancelled == 0, "no call was cancelled before it had ended: ask for longer answers"},
	} {
		if p.wrong {
			r.problems = append(r.problems, p.what)
		}
	}
}

// Err is ErrBroken where something of a cancelled call was left.
func (r *CancelReport) Err() error { return broken(r.problems) }

// Figure is a metric of the row cancel: steps_after, blocks_missing, settled_seconds.
func (r *CancelReport) Figure(row, metric string) (float64, bool) {
	v, ok := map[string]float64{
		"cancel steps_after": float64(r.StepsAfterCancel), "cancel blocks_missing": float64(r.BlocksMissing),
		"cancel settled_seconds": r.SettledSeconds,
	}[row+" "+metric]
	return v, ok
}

// Print writes the report as text.
func (r *CancelReport) Print(w io.Writer) {
	fmt.Fprintf(w, "%d calls cancelled, %d of them before a token; %d ended first, %d failed; %d ran to their ends beside them\n", r.Cancelled,
		r.Early, r.Ended, r.Failed, r.Beside)
	fmt.Fprintf(w, "the worker counts %d cancelled sequences, %d steps with one that were planned later\n", r.Worker, r.StepsAfterCancel)
	fmt.Fprintf(w, "idle %.2f s after the last: %d KV blocks missing, %d buffers more, %d leaked\n", r.SettledSeconds, r.BlocksMissing,
		r.BuffersMore, r.Leaked)
}
