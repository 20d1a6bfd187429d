package load

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/millrace/millrace/services/bench/internal/stats"
)

// FairnessConfig configures Fairness.
type FairnessConfig struct {
	Crowd   int // calls of the first tenant, kept running
	Singles int // calls of the second, one after another
	Prompt  int // tokens
	Answer  int
}

// FairnessReport has the times of a call of a tenant that has no other call. Times are medians in
// milliseconds.
type FairnessReport struct {
	Config     FairnessConfig `json:"config"`
	Idle       Single         `json:"idle"`
	Crowded    Single         `json:"crowded"`
	FirstRatio float64        `json:"first_token_ratio"` // crowded over idle
	TotalRatio float64        `json:"total_ratio"`
	Crowd      Report         `json:"crowd"`
}

// Single is the times of the second tenant's calls.
type Single struct {
	First stats.Spread `json:"first_token_ms"`
	Total stats.Spread `json:"total_ms"`
	Gap   float64      `json:"inter_token_p50_ms"`
}

// Fairness compares the calls of one tenant on an idle worker with the same during another tenant's
// many.
func (s *Service) Fairness(ctx context.Context, c FairnessConfig) (*FairnessReport, error) {
	out := &FairnessReport{Config: c}
	var err error
	s.Progress("%d calls one after another on an idle worker", c.Singles)
	if out.Idle, err = s.singles(ctx, c); err != nil {
		return nil, err
	}
	crowding, leave := context.WithCancel(ctx)
	full := make(chan struct{})
	to := NewRecorder(nil)
	var crowd sync.WaitGroup
	crowd.Go(func() { s.crowd(crowding, c, to, full) })
	select {
	case <-full:
	case <-ctx.Done():
	}
	s.Progress("the same during %d calls of another tenant", c.Crowd)
	out.Crowded, err = s.singles(ctx, c)
	leave()
	crowd.Wait()
	if err != nil {
		return nil, err
	}
	out.Crowd, _ = to.Report() // its error is that of writing CSV
	out.FirstRatio = out.Crowded.First.Median / out.Idle.First.Median
	out.TotalRatio = out.Crowded.Total.Median / out.Idle.Total.Median
	return out, nil
}

// crowd keeps the first tenant's calls running. It closes full when one of them has ended: all have
// begun long before.
func (s *Service) crowd(ctx context.Context, c FairnessConfig, to *Recorder, full chan struct{}) {
	maker := s.Maker
	maker.Tenant, maker.Seed = "crowd", maker.Seed+1<<40
	g := Generator{Conns: s.Conns, Maker: maker, To: to}
	var once sync.Once
	_ = together(c.Crowd, func(int) error {
		for ctx.Err() == nil {
			o := g.One(ctx, Size{Prompt: c.Prompt, Output: c.Answer})
			once.Do(func() { close(full) })
			if o.Code != 0 {
				time.Sleep(refusalPause)
			}
		}
		return nil
	})
	once.Do(func() { close(full) })
}

func (s *Service) singles(ctx context.Context, c FairnessConfig) (Single, error) {
	maker := s.Maker
	maker.Tenant = "single"
	var first, total []float64
	var gaps stats.Histogram
	for i := range c.Singles {
		end := s.call(ctx, uint64(i), maker.Request(uint64(i), Size{Prompt: c.Prompt, Output: c.Answer}), Observer{})
		if err := failure("a single call", &end); err != nil {
			return Single{}, err
		}
		first, total = append(first, milliseconds(end.FirstToken)), append(total, milliseconds(end.Total))
		for _, g := range end.Gaps {
			gaps.AddN(g.After/time.Duration(g.Tokens), uint64(g.Tokens))
		}
	}
	return Single{First: stats.SpreadOf(first), Total: stats.SpreadOf(total), Gap: gaps.Summary().P50}, nil
}

// Err returns nil: how tenants share is a matter of time.
func (r *FairnessReport) Err() error { return nil }

// Figure returns a metric of the row fairness: first_ratio, total_ratio.
func (r *FairnessReport) Figure(row, metric string) (float64, bool) {
	v, ok := map[string]float64{"fairness first_ratio": r.FirstRatio, "fairness total_ratio": r.TotalRatio}[row+" "+metric]
	return v, ok
}

// Print writes the report as text.
func (r *FairnessReport) Print(w io.Writer) {
	c := &r.Config
	fmt.Fprintf(w, "a tenant's single call of %d/%d tokens, %d times, alone and during %d calls of another tenant; median (min..max)\n",
		c.Prompt, c.Answer, c.Singles, c.Crowd)
	for _, row := range []struct {
		name string
		of   *Single
	}{{"idle", &r.Idle}, {"crowded", &r.Crowded}} {
		fmt.Fprintf(w, "%-8s  first token %s ms, whole call %s ms, inter-token p50 %.2f ms\n", row.name, spread(row.of.First),
			spread(row.of.Total), row.of.Gap)
	}
	fmt.Fprintf(w, "%.2f times as long to the first token, %.2f times to the end\n", r.FirstRatio, r.TotalRatio)
	fmt.Fprintf(w, "\nthe other tenant: ")
	r.Crowd.Print(w)
}
