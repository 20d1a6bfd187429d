package server

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// rates turns the counters of the step loops into sums since the start and tokens a second. One
// goroutine uses it.
type rates struct {
	samples  []sample          // oldest first, at most rateWindow
	unloaded counts            // of loops that ended
	last     map[string]counts // by model
	models   modelRates
}

const rateWindow = 20 // samples, one a pulse: two seconds

// sample has the sums over all models at one time.
type sample struct {
	at time.Time
	counts
}

// counts are the counters of one step loop since its start.
type counts struct {
	generated, prefilled, cached, cancelled, preempted, swapped, afterCancel, refused uint64
}

func countsOf(s batch.Stats) counts {
	return counts{
		generated: s.GeneratedTokens, prefilled: s.PrefilledTokens, cached: s.CachedTokens, cancelled: s.Cancelled,
		preempted: s.Preempted, swapped: s.Swapped, afterCancel: s.StepsAfterCancel, refused: s.RefusedSteps,
	}
}

func (c counts) plus(d counts) counts {
	return counts{
		generated: c.generated + d.generated, prefilled: c.prefilled + d.prefilled, cached: c.cached + d.cached,
		cancelled: c.cancelled + d.cancelled, preempted: c.preempted + d.preempted, swapped: c.swapped + d.swapped,
		afterCancel: c.afterCancel + d.afterCancel, refused: c.refused + d.refused,
	}
}

// before reports whether c can be an earlier reading of d's loop: counters only grow.
func (c counts) before(d counts) bool {
	return c.generated <= d.generated && c.prefilled <= d.prefilled && c.cached <= d.cached && c.cancelled <= d.cancelled &&
		c.preempted <= d.preempted && c.swapped <= d.swapped && c.afterCancel <= d.afterCancel && c.refused <= d.refused
}

// sample reads the counters. Those of a model that was unloaded stay in the sums.
func (r *rates) sample(models []model.Status) {
	current := map[string]counts{}
	s := sample{at: time.Now()}
	if r.models == nil {
		r.models = modelRates{}
	}
	r.models.sample(s.at, models)
	for _, m := range models {
		c := countsOf(m.Steps)
		if last := r.last[m.Name]; !last.before(c) { // the model was reloaded
			r.unloaded = r.unloaded.plus(last)
		}
		current[m.Name] = c
		s.counts = s.plus(c)
	}
	for name, last := range r.last {
		if _, loaded := current[name]; !loaded {
			r.unloaded = r.unloaded.plus(last)
		}
	}
	r.last = current
	s.counts = s.plus(r.unloaded)
	r.samples = append(r.samples, s)
	if len(r.samples) > rateWindow {
		r.samples = r.samples[1:]
	}
}

// load returns the worker's load.
func (r *rates) load(models []model.Status) *pb.LoadStatus {
	out := &pb.LoadStatus{Models: r.models.loads(models)}
	var oldest time.Duration
	for _, m := range models {
		oldest = max(oldest, m.Steps.QueueAge)
		out.Paused += uint32(m.Steps.Paused)
		out.Stalled += uint32(m.Steps.Stalled)
		out.Running += uint32(m.Steps.Running)
		out.Waiting += uint32(m.Steps.Waiting)
		out.WaitingPrefillTokens += uint64(m.Steps.WaitingPrefillTokens)
		if m.State != model.Failed { // no request can use the cache of a failed model
			free := m.Steps.TotalBlocks - m.Steps.HeldBlocks() // of the fullest group
			out.FreeBlocks += uint64(free)
			out.CachedBlocks += uint64(min(m.Steps.CachedBlocks, free))
			out.TotalBlocks += uint64(m.Steps.TotalBlocks)
		}
	}
	if oldest > 0 {
		out.QueueAge = durationpb.New(oldest)
	}
	if n := len(r.samples); n > 0 {
		first, last := r.samples[0], r.samples[n-1]
		out.GeneratedTokens, out.Cancelled, out.Preempted = last.generated, last.cancelled, last.preempted
		out.StepsAfterCancel, out.RefusedSteps = last.afterCancel, last.refused
		out.Swapped, out.CachedTokens = last.swapped, last.cached
		if seconds := last.at.Sub(first.at).Seconds(); seconds > 0 {
			out.TokensPerSecond = float64(last.generated-first.generated) / seconds
			out.PrefillTokensPerSecond = float64(last.prefilled-first.prefilled) / seconds
		}
	}
	return out
}

// modelRates has the tokens a second of each model over the last pulses. One goroutine uses it.
type modelRates map[string]*modelRate

// modelRate has what one step loop did in the last pulses.
type modelRate struct {
	at      time.Time // of the last sample
	last    counts
	pending bool // prompt tokens were waiting at the last sample

	all     []interval // the last pulses
	prompts []interval // the last pulses in which prompt tokens waited or were computed
}

// interval has the tokens between two samples.
type interval struct {
	took                 time.Duration
	generated, prefilled uint64
}

// sample reads the counters, and removes models that were unloaded.
func (r modelRates) sample(at time.Time, models []model.Status) {
	loaded := make(map[string]bool, len(models))
	for _, m := range models {
		loaded[m.Name] = true
		c := countsOf(m.Steps)
		rate := r[m.Name]
		if rate == nil || !rate.last.before(c) { // it was loaded or reloaded
			rate = &modelRate{at: at, last: c}
			r[m.Name] = rate
		}
		rate.add(at, c, m.Steps.WaitingPrefillTokens > 0)
	}
	for name := range r {
		if !loaded[name] {
			delete(r, name)
		}
	}
}

// add adds one sample.
func (r *modelRate) add(at time.Time, c counts, pending bool) {
	d := interval{at.Sub(r.at), c.generated - r.last.generated, c.prefilled - r.last.prefilled}
	if d.took > 0 {
		r.all = shift(r.all, d)
		if d.prefilled > 0 || r.pending && pending {
			r.prompts = shift(r.prompts, d)
		}
	}
	r.at, r.last, r.pending = at, c, pending
}

// shift appends to a window of rateWindow intervals.
func shift(window []interval, d interval) []interval {
	if len(window) == rateWindow {
		copy(window, window[1:])
		window = window[:rateWindow-1]
	}
	return append(window, d)
}

// perSecond returns what was counted a second, and 0 for an empty window.
func perSecond(window []interval, count func(interval) uint64) float64 {
	var took time.Duration
	var n uint64
	for _, d := range window {
		took, n = took+d.took, n+count(d)
	}
	if took == 0 {
		return 0
	}
	return float64(n) / took.Seconds()
}

// loads returns the load of each model that is ready or draining. Schedulers compare its free
// blocks with the length of a prompt.
func (r modelRates) loads(models []model.Status) []*pb.ModelLoad {
	var out []*pb.ModelLoad
	for _, m := range models {
		if m.State == model.Loading || m.State == model.Failed {
			continue
		}
		l := &pb.ModelLoad{
			Name: m.Name, Running: uint32(m.Steps.Running), Waiting: uint32(m.Steps.Waiting),
			WaitingPrefillTokens: uint64(m.Steps.WaitingPrefillTokens), FreeBlocks: uint64(m.Steps.StartBlocks),
			Paused: uint32(m.Steps.Paused), Stalled: uint32(m.Steps.Stalled),
		}
		if rate := r[m.Name]; rate != nil {
			l.TokensPerSecond = perSecond(rate.all, func(d interval) uint64 { return d.generated })
			l.PrefillTokensPerSecond = perSecond(rate.prompts, func(d interval) uint64 { return d.prefilled })
		}
		out = append(out, l)
	}
	return out
}
