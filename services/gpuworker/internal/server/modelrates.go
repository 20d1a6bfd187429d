package server

import (
	"time"

	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// modelRates are tokens a second of each model, over the last pulses. One goroutine uses it.
type modelRates map[string]*modelRate

// modelRate is what one step loop did in the last pulses.
type modelRate struct {
	at      time.Time // of the last look
	last    counts
	pending bool // whether prompt tokens were waiting at the last look

	all     []work // of the last pulses
	prompts []work // of the last pulses in which prompt tokens waited or were computed
}

// work is what was done between two looks.
type work struct {
	took                 time.Duration
	generated, prefilled uint64
}

// sample takes the counters of now, and forgets models that have gone.
func (r modelRates) sample(now time.Time, models []model.Status) {
	seen := make(map[string]bool, len(models))
	for _, m := range models {
		seen[m.Name] = true
		is := countsOf(m.Steps)
		rate := r[m.Name]
		if rate == nil || !rate.last.before(is) { // another loop under the same name
			rate = &modelRate{at: now, last: is}
			r[m.Name] = rate
		}
		rate.add(now, is, m.Steps.WaitingPrefillTokens > 0)
	}
	for name := range r {
		if !seen[name] {
			delete(r, name)
		}
	}
}

// add takes one look.
func (r *modelRate) add(now time.Time, is counts, pending bool) {
	did := work{now.Sub(r.at), is.generated - r.last.generated, is.prefilled - r.last.prefilled}
	if did.took > 0 {
		r.all = shift(r.all, did)
		if did.prefilled > 0 || r.pending && pending {
			r.prompts = shift(r.prompts, did)
		}
	}
	r.at, r.last, r.pending = now, is, pending
}

// shift appends to a window.
func shift(window []work, did work) []work {
	if len(window) == rateWindow {
		copy(window, window[1:])
		window = window[:rateWindow-1]
	}
	return append(window, did)
}

// perSecond is what was counted a second; 0 before anything was.
func perSecond(window []work, count func(work) uint64) float64 {
	var took time.Duration
	var n uint64
	for _, did := range window {
		took, n = took+did.took, n+count(did)
	}
	if took == 0 {
		return 0
	}
	return float64(n) / took.Seconds()
}

// loads is what each model that is loaded is doing.
func (r modelRates) loads(models []model.Status) []*pb.ModelLoad {
	var out []*pb.ModelLoad
	for _, m := range models {
		if m.State == model.Loading || m.State == model.Failed {
			continue
		}
		l := &pb.ModelLoad{
			Name: m.Name, Running: uint32(m.Steps.Running), Waiting: uint32(m.Steps.Waiting),
			WaitingPrefillTokens: uint64(m.Steps.WaitingPrefillTokens), FreeBlocks: uint64(m.Steps.FreeBlocks),
			Paused: uint32(m.Steps.Paused), Stalled: uint32(m.Steps.Stalled),
		}
		if rate := r[m.Name]; rate != nil {
			l.TokensPerSecond = perSecond(rate.all, func(w work) uint64 { return w.generated })
			l.PrefillTokensPerSecond = perSecond(rate.prompts, func(w work) uint64 { return w.prefilled })
		}
		out = append(out, l)
	}
	return out
}
