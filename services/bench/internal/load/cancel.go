package load

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
)

// CancelConfig configures Cancel.
type CancelConfig struct {
	Calls       int // to cancel
	AtOnce      int
	Beside      int // calls that run at the same time and are not cancelled
	Prompt, Max int // tokens
	Seed        uint64
}

// earlyCancel bounds the time after which a call is cancelled that should not get a token.
const earlyCancel = 50 * time.Millisecond

// CancelReport is what cancelled calls left behind.
type CancelReport struct {
	Config    CancelConfig `json:"config"`
	Cancelled uint64       `json:"cancelled"`
	Early     uint64       `json:"cancelled_before_a_token"`
	Ended     uint64       `json:"ended_before_their_cancel"`
	Failed    uint64       `json:"failed"`
	Beside    uint64       `json:"beside_ok"` // of the calls that were not cancelled
	// From the worker's reports before and after.
	Worker           uint64  `json:"worker_cancelled"`
	StepsAfterCancel uint64  `json:"steps_after_cancel"`
	BlocksMissing    int64   `json:"blocks_missing"`
	BuffersMore      int64   `json:"buffers_more"`
	Leaked           uint64  `json:"leaked_buffers"`
	SettledSeconds   float64 `json:"settled_seconds"`
	busy             uint32  // sequences that run or wait after the last call
}

// Cancel cancels calls at random moments while others run: before they begin, during their prompts,
// and after any token. A cancelled call must not be in a step that is planned later, and must leave
// nothing.
func (s *Service) Cancel(ctx context.Context, c CancelConfig) (*CancelReport, error) {
	before, _, err := s.settled(ctx)
	if err != nil {
		return nil, err
	}
	out := &CancelReport{Config: c}
	running, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	others := NewRecorder(nil)
	if c.Beside > 0 {
		maker := s.Maker
		maker.Seed += 1 << 40
		g := &Generator{Conns: s.Conns, Maker: maker, To: others}
		beside.Go(func() { g.Closed(running, c.Beside, Size{Prompt: c.Prompt, Output: c.Max}, 0, 0) })
	}
	var next, done atomic.Int64
	_ = together(c.AtOnce, func(int) error {
		for i := next.Add(1) - 1; i < int64(c.Calls) && ctx.Err() == nil; i = next.Add(1) - 1 {
			s.cancelOne(ctx, c, uint64(i), out)
			s.Progress("%d of %d calls cancelled", done.Add(1), c.Calls)
		}
		return nil
	})
	stop()
	beside.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	report, _ := others.Report() // its error is that of writing CSV
	out.Beside, out.Failed = report.OK, out.Failed+report.Failed
	after, took, err := s.settled(ctx)
	if err != nil {
		return nil, err
	}
	out.SettledSeconds = took.Seconds()
	out.compare(before, after)
	return out, nil
}

// cancelOne makes call i and cancels it.
func (s *Service) cancelOne(ctx context.Context, c CancelConfig, i uint64, out *CancelReport) {
	random := rand.New(rand.NewPCG(c.Seed, i))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	after, got := random.IntN(c.Max), 0 // tokens; 0: after a time instead
	if after == 0 || i%4 == 0 {
		after = 0
		timer := time.AfterFunc(time.Duration(random.Int64N(int64(earlyCancel))), cancel)
		defer timer.Stop()
	}
	end := s.call(ctx, i, s.Maker.Request(i, Size{Prompt: c.Prompt, Output: c.Max}), Observer{Tokens: func(n int) {
		if got += n; after > 0 && got >= after {
			cancel()
		}
	}})
	count := &out.Failed
	switch {
	case end.Cut:
		count = &out.Cancelled
		if end.Tokens == 0 {
			atomic.AddUint64(&out.Early, 1)
		}
	case end.Code == codes.OK:
		count = &out.Ended
	}
	atomic.AddUint64(count, 1)
}

// compare fills in the resources that the worker holds after the calls.
func (r *CancelReport) compare(before, after *pb.WorkerReport) {
	was, now := before.GetLoad(), after.GetLoad()
	r.busy = now.GetRunning() + now.GetWaiting()
	r.Worker = now.GetCancelled() - was.GetCancelled()
	r.StepsAfterCancel = now.GetStepsAfterCancel() - was.GetStepsAfterCancel()
	r.BlocksMissing = int64(now.GetTotalBlocks()) - int64(now.GetFreeBlocks()) // an idle worker has all blocks free
	r.BuffersMore = int64(after.GetDevice().GetLiveBuffers()) - int64(before.GetDevice().GetLiveBuffers())
	r.Leaked = after.GetDevice().GetLeakedBuffers()
}

// Err returns ErrBroken if a cancelled call left something.
func (r *CancelReport) Err() error {
	return broken(map[string]bool{
		fmt.Sprintf("%d sequences run or wait after the last call", r.busy):                   r.busy > 0,
		fmt.Sprintf("cancelled sequences were in %d steps planned later", r.StepsAfterCancel): r.StepsAfterCancel > 0,
		fmt.Sprintf("%d KV blocks are not free again", r.BlocksMissing):                       r.BlocksMissing != 0,
		fmt.Sprintf("%d more buffers are held, %d leaked", r.BuffersMore, r.Leaked):           r.BuffersMore != 0 || r.Leaked > 0,
		fmt.Sprintf("%d calls failed with a status", r.Failed):                                r.Failed > 0,
		"no call was cancelled before its end: take longer answers":                           r.Cancelled == 0,
	})
}

// Figure returns a metric of the row cancel: steps_after, blocks_missing, settled_seconds.
func (r *CancelReport) Figure(row, metric string) (float64, bool) {
	v, ok := map[string]float64{
		"cancel steps_after": float64(r.StepsAfterCancel), "cancel blocks_missing": float64(r.BlocksMissing),
		"cancel settled_seconds": r.SettledSeconds,
	}[row+" "+metric]
	return v, ok
}

// Print writes the report as text.
func (r *CancelReport) Print(w io.Writer) {
	fmt.Fprintf(w, "%d calls cancelled, %d of them before a token; %d ended first, %d failed; %d others ran to their ends\n", r.Cancelled,
		r.Early, r.Ended, r.Failed, r.Beside)
	fmt.Fprintf(w, "the worker counts %d cancelled sequences, %d steps with one that were planned later\n", r.Worker, r.StepsAfterCancel)
	fmt.Fprintf(w, "idle %.2f s after the last: %d KV blocks missing, %d more buffers, %d leaked\n", r.SettledSeconds, r.BlocksMissing,
		r.BuffersMore, r.Leaked)
}
