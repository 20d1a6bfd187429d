package served

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/process"
)

// OverloadConfig says how much too much.
type OverloadConfig struct {
	Capacity int           // calls that the workers compute at once
	Factor   int           // so many times as many are sent
	Duration time.Duration // for so long
	Measure  time.Duration // before and afterwards, Capacity calls at once
	Grace    time.Duration // in which what still runs must end
	Prompt   int           // tokens
	Answer   int
	PID      int // of the worker, whose memory is watched; 0: it is not
}

// pause keeps a caller that was refused from asking again at once.
const pause = 20 * time.Millisecond

// OverloadReport is how a server came through.
type OverloadReport struct {
	Config OverloadConfig `json:"config"`
	Before float64        `json:"tokens_per_second_before"`
	During load.Report    `json:"during"`
	After  float64        `json:"tokens_per_second_after"`
	// Hung are calls that had no end when the grace was over; Empty ended OK without a token.
	Hung  int64 `json:"hung"`
	Empty int64 `json:"empty"`
	// Bytes that the worker's process holds (0: not watched) and its device counts, before and at most meanwhile.
	HostBefore   uint64 `json:"host_bytes_before"`
	HostPeak     uint64 `json:"host_bytes_peak"`
	DeviceBefore uint64 `json:"device_bytes_before"`
	DevicePeak   uint64 `json:"device_bytes_peak"`
	problems     []string
}

// Overload sends far more calls than can be computed, and compares speed and memory before, meanwhile and afterwards.
func Overload(ctx context.Context, s *Service, c OverloadConfig) (*OverloadReport, error) {
	out := &OverloadReport{Config: c}
	var hungBefore, hungAfter int64
	var err error
	if out.Before, hungBefore, err = s.speed(ctx, c, "before"); err != nil {
		return nil, err
	}
	if out.HostBefore, out.DeviceBefore, err = s.memory(ctx, c.PID); err != nil {
		return nil, err
	}
	watching, enough := context.WithCancel(ctx)
	var watch sync.WaitGroup
	var watchErr error
	watch.Go(func() { watchErr = s.watch(watching, c.PID, out) })
	s.flood(ctx, c, out)
	enough()
	watch.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := errors.Join(watchErr, s.look(ctx, c.PID, out)); err != nil { // a last look: a short overload may end before the first
		return nil, err
	}
	if _, _, err := s.settled(ctx); err != nil {
		return nil, err
	}
	if out.After, hungAfter, err = s.speed(ctx, c, "afterwards"); err != nil {
		return nil, err
	}
	out.Hung += hungBefore + hungAfter
	if out.Hung > 0 {
		out.problems = append(out.problems, fmt.Sprintf("%d calls had no end %v after the last was sent", out.Hung, c.Grace))
	}
	if out.Empty > 0 {
		out.problems = append(out.problems, fmt.Sprintf("%d calls ended OK without a token", out.Empty))
	}
	if out.During.OK == 0 {
		out.problems = append(out.problems, "no call succeeded meanwhile")
	}
	return out, nil
}

// speed is tokens a second of as many calls as there is room for, and how many of them had no end.
func (s *Service) speed(ctx context.Context, c OverloadConfig, when string) (rate float64, hung int64, err error) {
	s.Tell("%d calls at once, %s", c.Capacity, when)
	to := load.NewRecorder(nil)
	g := load.Generator{Conns: s.Conns, Maker: s.Maker, To: to}
	bounded, cancel := until(ctx, c.Measure+c.Grace)
	defer cancel()
	g.Closed(bounded, c.Capacity, load.Size{Prompt: c.Prompt, Output: c.Answer}, c.Measure, 0)
	if ctx.Err() != nil {
		return 0, 0, context.Cause(ctx)
	}
	report, err := to.Report()
	if err == nil && report.Failed > 0 {
		e := report.Errors[0]
		err = fmt.Errorf("%s: %d of %d calls at once failed: %s %s: %s", when, report.Failed, c.Capacity, e.Code, e.Reason, e.Example)
	}
	return report.TokensPerSecond, int64(report.Cut), err
}

// until is a context that is cancelled after d. It has no deadline: servers would be told of one, and end a call that hangs just
// before it is seen to hang.
func until(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(d, cancel)
	return ctx, func() { timer.Stop(); cancel() }
}

// flood keeps too many calls running, and then waits for those that run.
func (s *Service) flood(ctx context.Context, c OverloadConfig, out *OverloadReport) {
	s.Tell("%d calls at once for %v", c.Factor*c.Capacity, c.Duration)
	to := load.NewRecorder(nil)
	ctx, cancel := until(ctx, c.Duration+c.Grace)
	defer cancel()
	end := time.Now().Add(c.Duration)
	g := load.Generator{Conns: s.Conns, Maker: s.Maker, To: to}
	_ = together(c.Factor*c.Capacity, func(int) error {
		for n := 0; (n == 0 || time.Now().Before(end)) && ctx.Err() == nil; n++ {
			o := g.One(ctx, load.Size{Prompt: c.Prompt, Output: c.Answer})
			switch {
			case o.Cut:
				atomic.AddInt64(&out.Hung, 1)
			case o.Code != codes.OK:
				time.Sleep(pause)
			case o.Tokens == 0:
				atomic.AddInt64(&out.Empty, 1)
			}
		}
		return nil
	})
	out.During, _ = to.Report() // it writes no lines
}

// look notes the memory of the moment.
func (s *Service) look(ctx context.Context, pid int, out *OverloadReport) error {
	host, device, err := s.memory(ctx, pid)
	out.HostPeak, out.DevicePeak = max(out.HostPeak, host), max(out.DevicePeak, device)
	return err
}

// watch notes the most memory until its context ends.
func (s *Service) watch(ctx context.Context, pid int, out *OverloadReport) error {
	ticker := time.NewTicker(time.Second / 4)
	defer ticker.Stop()
	for {
		err := s.look(ctx, pid, out)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// memory is what the worker's process and its device hold now.
func (s *Service) memory(ctx context.Context, pid int) (host, device uint64, err error) {
	report, err := s.report(ctx)
	if err != nil {
		return 0, 0, err
	}
	if pid != 0 {
		if host, err = process.MemoryOf(pid); err != nil {
			return 0, 0, fmt.Errorf("the worker's process: %w", err)
		}
	}
	return host, heldBytes(report.GetDevice()), nil
}

func heldBytes(d *pb.DeviceStatus) uint64 {
	return d.GetBytesWeights() + d.GetBytesKv() + d.GetBytesWorkspace() + d.GetBytesStaging()
}

// Err is ErrBroken where a call had no proper end.
func (r *OverloadReport) Err() error { return broken(r.problems) }

// Figure is a metric of the row overload: after (as a share of before), host_growth_mb, device_growth_mb.
func (r *OverloadReport) Figure(row, metric string) (float64, bool) {
	v, ok := map[string]float64{
		"overload after": r.After / r.Before, "overload host_growth_mb": growth(r.HostBefore, r.HostPeak),
		"overload device_growth_mb": growth(r.DeviceBefore, r.DevicePeak),
	}[row+" "+metric]
	return v, ok && (metric != "host_growth_mb" || r.HostBefore > 0)
}

func growth(before, peak uint64) float64 { return (float64(peak) - float64(before)) / 1e6 }

// Print writes the report as text.
func (r *OverloadReport) Print(w io.Writer) {
	c := &r.Config
	fmt.Fprintf(w, "%d calls at once for %v, where %d are computed at once\n", c.Factor*c.Capacity, c.Duration, c.Capacity)
	fmt.Fprintf(w, "before      %.0f tokens/s\n", r.Before)
	fmt.Fprintf(w, "afterwards  %.0f tokens/s, %.1f %%\n", r.After, 100*r.After/r.Before)
	fmt.Fprintf(w, "hung        %d calls; %d ended OK without a token\n", r.Hung, r.Empty)
	fmt.Fprintf(w, "device      %.1f MB, at most %.1f meanwhile\n", float64(r.DeviceBefore)/1e6, float64(r.DevicePeak)/1e6)
	if r.HostBefore > 0 {
		fmt.Fprintf(w, "process     %.1f MB, at most %.1f meanwhile\n", float64(r.HostBefore)/1e6, float64(r.HostPeak)/1e6)
	}
	fmt.Fprintf(w, "meanwhile   ")
	r.During.Print(w)
}
