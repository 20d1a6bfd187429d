package e2e

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// mixed runs n requests, sixteen at a time: of five two succeed, one is cancelled in its stream,
// two are refused.
func mixed(t *testing.T, on *server, model string, n int) {
	t.Helper()
	var next atomic.Int64
	var all errgroup.Group
	for range 16 {
		all.Go(func() error {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				ctx, cancel := context.WithTimeout(t.Context(), hang)
				err := oneOfMixed(ctx, on, model, i)
				cancel()
				if err != nil {
					return fmt.Errorf("request %d: %w", i, err)
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
}

func oneOfMixed(ctx context.Context, on *server, model string, i int64) error {
	expect := func(want codes.Code, in *pb.GenerateRequest) error {
		if o := generate(ctx, on.infer, in); status.Code(o.err) != want {
			return fmt.Errorf("ended %w, want %v", o.err, want)
		}
		return nil
	}
	switch i % 5 {
	case 0:
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		c, err := begin(ctx, on.infer, ask(model, 400))
		if err != nil {
			return err
		}
		cancel()
		// The end may have been in flight already.
		if o := c.end(); o.err != nil && status.Code(o.err) != codes.Canceled {
			return o.err
		}
		return nil
	case 1:
		in := ask(model, 3)
		in.Sampling.Temperature = ptr(float32(math.NaN()))
		return expect(codes.InvalidArgument, in)
	case 2:
		return expect(codes.NotFound, ask("nobody-has-it", 3))
	default:
		return expect(codes.OK, ask(model, 4))
	}
}

func TestTwoThousandRequestsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	devices := map[string]struct {
		flags []string
		model string
	}{
		"on the sim engine": {[]string{"--device", "sim:step=100us,prefill=0s,decode=0s", "--load", long}, long},
		"on the CPU engine": {[]string{"--device", "cpu", "--load", stories}, stories},
	}
	for name, d := range devices {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startWorker(t, "w1", d.flags...)
			s := startScheduler(t, []*server{w})
			s.untilServed(t, d.model, 1)
			mixed(t, s, d.model, 8000) // enough to fill the scheduler's heap between two collections
			w.untilIdle(t)
			type footprint struct {
				bytes int64
				files int
			}
			now := func() map[string]footprint {
				return map[string]footprint{
					// The peak, because a collection takes up to half of the scheduler's memory at once.
					"worker": {w.memory(t, "VmHWM"), w.descriptors(t)}, "scheduler": {s.memory(t, "VmHWM"), s.descriptors(t)},
				}
			}
			before := now()
			started := time.Now()
			mixed(t, s, d.model, 2000)
			t.Logf("2000 requests took %v", time.Since(started))
			w.untilIdle(t)
			for program, after := range now() {
				grown := after.bytes - before[program].bytes
				t.Logf("%s: %s after 8000 requests, %s more after 2000 more; %d descriptors, then %d",
					program, mib(before[program].bytes), mib(grown), before[program].files, after.files)
				require.Less(t, grown, slack(), "the %s keeps memory", program)
			}
			for program, p := range map[string]*server{"worker": w, "scheduler": s} { // some close with a delay
				require.Eventually(t, func() bool { return p.descriptors(t) <= before[program].files+2 }, hang, 10*time.Millisecond,
					"the %s keeps descriptors", program)
			}
			for _, p := range []*server{s, w} {
				n := p.goroutines(t)
				t.Logf("%s: %d goroutines", p.name, n)
				require.Positive(t, n)
				require.Less(t, n, 100, "%s: of 10000 requests goroutines are left", p.name)
			}
		})
	}
}
