package server

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// rates turns the loops' counters into sums since the start and tokens a second over the last seconds. One goroutine uses it.
type rates struct {
	samples []sample // oldest first, at most rateWindow long
	retired counts   // of models unloaded since the start
	last    map[string]counts
	models  modelRates
}

// sample is the sums of all models at one moment.
type sample struct {
	at time.Time
	counts
}

// counts is what one loop has done since it began.
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

// before says whether c can be of the loop that d is of, and earlier: counters only grow.
func (c counts) before(d counts) bool {
	return c.generated <= d.generated && c.prefilled <= d.prefilled && c.cached <= d.cached && c.cancelled <= d.cancelled &&
		c.preempted <= d.preempted && c.swapped <= d.swapped && c.afterCancel <= d.afterCancel && c.refused <= d.refused
}

const rateWindow = 20 // samples, one a pulse: two seconds

// sample takes the counters of now. The counters of a model that has gone stay in the sums.
func (r *rates) sample(models []model.Status) {
	seen := map[string]counts{}
	now := sample{at: time.Now()}
	if r.models == nil {
		r.models = modelRates{}
	}
	r.models.sample(now.at, models)
	for _, m := range models {
		c := countsOf(m.Steps)
		if last := r.last[m.Name]; !last.before(c) { // another loop under the same name
			r.retired = r.retired.plus(last)
		}
		seen[m.Name] = c
		now.counts = now.plus(c)
	}
	for name, last := range r.last {
		if _, there := seen[name]; !there {
			r.retired = r.retired.plus(last)
		}
	}
	r.last = seen
	now.counts = now.plus(r.retired)
	r.samples = append(r.samples, now)
	if len(r.samples) > rateWindow {
		r.samples = r.samples[1:]
	}
}

// load is what the worker is doing.
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
		if m.State != model.Failed { // the cache of one that has is of no use to anybody
			out.FreeBlocks += uint64(m.Steps.FreeBlocks)
			out.CachedBlocks += uint64(m.Steps.CachedBlocks)
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
