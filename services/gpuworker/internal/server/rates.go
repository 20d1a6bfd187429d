package server

import (
	"sync"
	"time"

	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// rates turns the loops' counters into tokens a second over the last seconds.
type rates struct {
	mu      sync.Mutex
	samples []counts // oldest first, at most rateWindow long
	retired counts   // of models unloaded since the start
	last    map[string]counts
}

type counts struct {
	at                   time.Time
	generated, prefilled uint64
}

const rateWindow = 20 // samples, one a pulse: two seconds

// sample takes the counters of now. The counters of a model that has gone stay in the sums.
func (r *rates) sample(models []model.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]counts{}
	now := counts{at: time.Now()}
	for _, m := range models {
		c := counts{generated: m.Steps.GeneratedTokens, prefilled: m.Steps.PrefilledTokens}
		if before := r.last[m.Name]; c.generated < before.generated || c.prefilled < before.prefilled {
			r.retired.generated += before.generated
			r.retired.prefilled += before.prefilled
		}
		seen[m.Name] = c
		now.generated += c.generated
		now.prefilled += c.prefilled
	}
	for name, before := range r.last {
		if _, there := seen[name]; !there {
			r.retired.generated += before.generated
			r.retired.prefilled += before.prefilled
		}
	}
	r.last = seen
	now.generated += r.retired.generated
	now.prefilled += r.retired.prefilled
	r.samples = append(r.samples, now)
	if len(r.samples) > rateWindow {
		r.samples = r.samples[1:]
	}
}

// load is what the worker is doing.
func (r *rates) load(models []model.Status) *pb.LoadStatus {
	out := &pb.LoadStatus{}
	for _, m := range models {
		out.Running += uint32(m.Steps.Running)
		out.Waiting += uint32(m.Steps.Waiting)
		out.WaitingPrefillTokens += uint64(m.Steps.WaitingPrefillTokens)
		out.FreeBlocks += uint64(m.Steps.FreeBlocks)
		out.TotalBlocks += uint64(m.Steps.TotalBlocks)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.samples); n > 0 {
		first, last := r.samples[0], r.samples[n-1]
		out.GeneratedTokens = last.generated
		if seconds := last.at.Sub(first.at).Seconds(); seconds > 0 {
			out.TokensPerSecond = float64(last.generated-first.generated) / seconds
			out.PrefillTokensPerSecond = float64(last.prefilled-first.prefilled) / seconds
		}
	}
	return out
}
