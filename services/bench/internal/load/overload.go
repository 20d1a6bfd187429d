package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
)

// OverloadConfig configures Overload.
type OverloadConfig struct {
	Capacity int           // calls that the workers compute at once
	Factor   int           // Factor times Capacity calls are sent
	Duration time.Duration // of the overload
	Measure  time.Duration // of the measurements before and after it, with Capacity calls
	Grace    time.Duration // in which the calls that still run must end
	Prompt   int           // tokens
	Answer   int
	PID      int // of the worker, whose memory is watched; 0: it is not
}

// refusalPause keeps a caller that was refused from retrying at once.
const refusalPause = 20 * time.Millisecond

// OverloadReport is the result of an overload.
type OverloadReport struct {
	Config OverloadConfig `json:"config"`
	Before float64        `json:"tokens_per_second_before"`
	During Report         `json:"during"`
	After  float64        `json:"tokens_per_second_after"`
	Hung   int64          `json:"hung"`  // calls without an end when the grace was over
	Empty  int64          `json:"empty"` // calls that ended OK without a token
	// Bytes of the worker's process (0: not watched) and of its device, before and at most during
	// the overload.
	HostBefore   uint64 `json:"host_bytes_before"`
	HostPeak     uint64 `json:"host_bytes_peak"`
	DeviceBefore uint64 `json:"device_bytes_before"`
	DevicePeak   uint64 `json:"device_bytes_peak"`
}

// Overload sends more calls than can be computed, and compares speed and memory before, during and
// after.
func (s *Service) Overload(ctx context.Context, c OverloadConfig) (*OverloadReport, error) {
	out := &OverloadReport{Config: c}
	var hungBefore, hungAfter int64
	var err error
	if out.Before, hungBefore, err = s.speed(ctx, c, "before"); err != nil {
		return nil, err
	}
	if out.HostBefore, out.DeviceBefore, err = s.memory(ctx, c.PID); err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	var watchErr error
	watch.Go(func() { watchErr = s.watchMemory(watching, out) })
	s.flood(ctx, c, out)
	stop()
	watch.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// A short overload may end before the first sample.
	if err := errors.Join(watchErr, s.sampleMemory(ctx, out)); err != nil {
		return nil, err
	}
	if _, _, err := s.settled(ctx); err != nil {
		return nil, err
	}
	if out.After, hungAfter, err = s.speed(ctx, c, "afterwards"); err != nil {
		return nil, err
	}
	out.Hung += hungBefore + hungAfter
	return out, nil
}

// speed returns the tokens a second of Capacity calls at once, and how many of them hang.
func (s *Service) speed(ctx context.Context, c OverloadConfig, when string) (rate float64, hung int64, err error) {
	s.Progress("%d calls at once, %s", c.Capacity, when)
	to := NewRecorder(nil)
	g := Generator{Conns: s.Conns, Maker: s.Maker, To: to}
	bounded, cancel := cancelAfter(ctx, c.Measure+c.Grace)
	defer cancel()
	g.Closed(bounded, c.Capacity, Size{Prompt: c.Prompt, Output: c.Answer}, c.Measure, 0)
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

// cancelAfter returns a context that is cancelled after d. It has no deadline, because a server
// that gets a deadline would end a hung call just before it can be counted.
func cancelAfter(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(d, cancel)
	return ctx, func() { timer.Stop(); cancel() }
}

// flood keeps too many calls running, and then waits for those that run.
func (s *Service) flood(ctx context.Context, c OverloadConfig, out *OverloadReport) {
	s.Progress("%d calls at once for %v", c.Factor*c.Capacity, c.Duration)
	to := NewRecorder(nil)
	ctx, cancel := cancelAfter(ctx, c.Duration+c.Grace)
	defer cancel()
	end := time.Now().Add(c.Duration)
	g := Generator{Conns: s.Conns, Maker: s.Maker, To: to}
	_ = together(c.Factor*c.Capacity, func(int) error {
		for n := 0; (n == 0 || time.Now().Before(end)) && ctx.Err() == nil; n++ {
			o := g.One(ctx, Size{Prompt: c.Prompt, Output: c.Answer})
			switch {
			case o.Cut:
				atomic.AddInt64(&out.Hung, 1)
			case o.Code != codes.OK:
				time.Sleep(refusalPause)
			case o.Tokens == 0:
				atomic.AddInt64(&out.Empty, 1)
			}
		}
		return nil
	})
	out.During, _ = to.Report() // its error is that of writing CSV
}

// sampleMemory updates the peaks.
func (s *Service) sampleMemory(ctx context.Context, out *OverloadReport) error {
	host, device, err := s.memory(ctx, out.Config.PID)
	out.HostPeak, out.DevicePeak = max(out.HostPeak, host), max(out.DevicePeak, device)
	return err
}

// watchMemory samples the memory until its context ends.
func (s *Service) watchMemory(ctx context.Context, out *OverloadReport) error {
	ticker := time.NewTicker(time.Second / 4)
	defer ticker.Stop()
	for {
		err := s.sampleMemory(ctx, out)
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

// memory returns the bytes that the worker's process and its device hold.
func (s *Service) memory(ctx context.Context, pid int) (host, device uint64, err error) {
	report, err := s.report(ctx)
	if err != nil {
		return 0, 0, err
	}
	if pid != 0 {
		if host, err = s.HostMemory(pid); err != nil {
			return 0, 0, fmt.Errorf("the worker's process: %w", err)
		}
	}
	d := report.GetDevice()
	return host, d.GetBytesWeights() + d.GetBytesKv() + d.GetBytesWorkspace() + d.GetBytesStaging(), nil
}

// Err returns ErrBroken if a call had no proper end.
func (r *OverloadReport) Err() error {
	return broken(map[string]bool{
		fmt.Sprintf("%d calls had no end %v after the last was sent", r.Hung, r.Config.Grace): r.Hung > 0,
		fmt.Sprintf("%d calls ended OK without a token", r.Empty):                             r.Empty > 0,
		"no call succeeded during the overload":                                               r.During.OK == 0,
	})
}

// Figure returns a metric of the row overload: after (as a share of before), host_growth_mb,
// device_growth_mb.
func (r *OverloadReport) Figure(row, metric string) (float64, bool) {
	growth := func(before, peak uint64) float64 { return (float64(peak) - float64(before)) / 1e6 }
	v, ok := map[string]float64{
		"overload after": r.After / r.Before, "overload host_growth_mb": growth(r.HostBefore, r.HostPeak),
		"overload device_growth_mb": growth(r.DeviceBefore, r.DevicePeak),
	}[row+" "+metric]
	return v, ok && (metric != "host_growth_mb" || r.HostBefore > 0)
}

// Print writes the report as text.
func (r *OverloadReport) Print(w io.Writer) {
	c := &r.Config
	fmt.Fprintf(w, "%d calls at once for %v, where %d are computed at once\n", c.Factor*c.Capacity, c.Duration, c.Capacity)
	fmt.Fprintf(w, "before      %.0f tokens/s\n", r.Before)
	fmt.Fprintf(w, "afterwards  %.0f tokens/s, %.1f %%\n", r.After, 100*r.After/r.Before)
	fmt.Fprintf(w, "hung        %d calls; %d ended OK without a token\n", r.Hung, r.Empty)
	fmt.Fprintf(w, "device      %.1f MB, at most %.1f during the overload\n", float64(r.DeviceBefore)/1e6, float64(r.DevicePeak)/1e6)
	if r.HostBefore > 0 {
		fmt.Fprintf(w, "process     %.1f MB, at most %.1f during the overload\n", float64(r.HostBefore)/1e6, float64(r.HostPeak)/1e6)
	}
	fmt.Fprintf(w, "during      ")
	r.During.Print(w)
}
