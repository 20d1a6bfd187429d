package served

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// FairnessConfig says who meets whom.
type FairnessConfig struct {
	Crowd   int // calls of the first tenant, all the time
	Singles int // calls of the second, one after another
	Prompt  int // tokens
	Answer  int
}

// The tenants' names.
const (
	crowdTenant  = "crowd"
	singleTenant = "single"
)

// FairnessReport is what one call costs a tenant that has no other. Times are milliseconds, of medians.
type FairnessReport struct {
	Config     FairnessConfig `json:"config"`
	Idle       Single         `json:"idle"`
	Crowded    Single         `json:"crowded"`
	FirstRatio float64        `json:"first_token_ratio"` // crowded over idle
	TotalRatio float64        `json:"total_ratio"`
	Crowd      load.Report    `json:"crowd"`
}

// Single is how the calls of the second tenant fared.
type Single struct {
	First stats.Spread `json:"first_token_ms"`
	Total stats.Spread `json:"total_ms"`
	Gap   float64      `json:"inter_token_p50_ms"`
}

// Fairness compares the calls of one tenant alone with the same beside another's many.
func Fairness(ctx context.Context, s *Service, c FairnessConfig) (*FairnessReport, error) {
	out := &FairnessReport{Config: c}
	var err error
	s.Tell("%d calls one after another on an idle worker", c.Singles)
	if out.Idle, err = s.singles(ctx, c); err != nil {
		return nil, err
	}
	crowding, leave := context.WithCancel(ctx)
	full := make(chan struct{})
	to := load.NewRecorder(nil)
	var crowd sync.WaitGroup
	crowd.Go(func() { s.crowd(crowding, c, to, full) })
	select {
	case <-full:
	case <-ctx.Done():
	}
	s.Tell("the same beside %d calls of another tenant", c.Crowd)
	out.Crowded, err = s.singles(ctx, c)
	leave()
	crowd.Wait()
	if err != nil {
		return nil, err
	}
	out.Crowd, _ = to.Report() // it writes no lines
	out.FirstRatio = out.Crowded.First.Median / out.Idle.First.Median
	out.TotalRatio = out.Crowded.Total.Median / out.Idle.Total.Median
	return out, nil
}

// crowd keeps the first tenant's calls running; full is closed when one of them has ended, and all have long been there.
func (s *Service) crowd(ctx context.Context, c FairnessConfig, to *load.Recorder, full chan struct{}) {
	maker := s.Maker
	maker.Tenant, maker.Seed = crowdTenant, maker.Seed+1<<40
	g := load.Generator{Conns: s.Conns, Maker: maker, To: to}
	var once sync.Once
	_ = together(c.Crowd, func(int) error {
		for ctx.Err() == nil {
			o := g.One(ctx, load.Size{Prompt: c.Prompt, Output: c.Answer})
			once.Do(func() { close(full) })
			if o.Code != 0 {
				time.Sleep(pause)
			}
		}
		return nil
	})
	once.Do(func() { close(full) })
}

func (s *Service) singles(ctx context.Context, c FairnessConfig) (Single, error) {
	maker := s.Maker
	maker.Tenant = singleTenant
	var first, total []float64
	var gaps stats.Histogram
	for i := range c.Singles {
		end := s.call(ctx, uint64(i), maker.Request(uint64(i), load.Size{Prompt: c.Prompt, Output: c.Answer}), load.Observer{})
		if err := failure("a single call", &end); err != nil {
			return Single{}, err
		}
		first, total = append(first, float64(end.FirstToken)/1e6), append(total, float64(end.Total)/1e6)
		for _, g := range end.Gaps {
			gaps.AddN(g.After/time.Duration(g.Tokens), uint64(g.Tokens))
		}
	}
	return Single{First: stats.SpreadOf(first), Total: stats.SpreadOf(total), Gap: gaps.Summary().P50}, nil
}

// Err is nil: how tenants share is a matter of time.
func (r *FairnessReport) Err() error { return nil }

// Figure is a metric of the row fairness: first_ratio, total_ratio.
func (r *FairnessReport) Figure(row, metric string) (float64, bool) {
	v, ok := map[string]float64{"fairness first_ratio": r.FirstRatio, "fairness total_ratio": r.TotalRatio}[row+" "+metric]
	return v, ok
}

// Print writes the report as text.
func (r *FairnessReport) Print(w io.Writer) {
	c := &r.Config
	fmt.Fprintf(w, "a tenant's single call of %d/%d tokens, %d times, alone and beside %d calls of another tenant; median (min..max)\n",
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
