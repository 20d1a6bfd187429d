package batch

import (
	"math"
	"slices"
	"time"
)

// prefillCoalescer delays short prompts so that one step computes several of them. A step with
// prefill tokens reads the weights once more than a decode-only step, whether it has one short
// prompt or several, and every decoding sequence waits for that.
//
// The delay follows from a cost model. Let a prompts arrive in a step on average, let d sequences
// decode, and let one more reading of the weights cost as much as a decode-only step. If prompts
// are released every n steps, then a*n of them wait n/2 steps each, and d sequences wait one extra
// step. Per step that idles a*n/2 + d/n slots, which is smallest for n = sqrt(2*d/a). Prompts are
// not delayed if fewer than one more is expected to arrive within n steps, and never for longer
// than limit.
//
// The delay changes no result bit, so it may depend on time and on other requests.
type prefillCoalescer struct {
	limit time.Duration // longest delay of a prompt
	grain int           // prompt tokens that fill the device: no delay beyond them; 0: never delay

	step        time.Duration // moving average of a decode-only step; 0: unknown
	arrivalRate float64       // moving average of prompts that arrive in a step
	arrivals    int           // prompts that arrived since the last round with decoding sequences
	heldSince   time.Time     // when the first waiting prompt was held; zero: none is
}

// arrived counts a prompt that got its slot.
func (g *prefillCoalescer) arrived() { g.arrivals++ }

// learn records the length of a decode-only step.
func (g *prefillCoalescer) learn(took time.Duration) {
	if g.step == 0 {
		g.step = took
	}
	g.step += (took - g.step) / 8
}

// endRound updates the arrival rate after a round with decoding sequences.
func (g *prefillCoalescer) endRound() {
	g.arrivalRate += (float64(g.arrivals) - g.arrivalRate) / 32
	g.arrivals = 0
}

// holds reports whether waiting prompts must keep waiting while decoding sequences decode.
func (g *prefillCoalescer) holds(now time.Time, decoding int) bool {
	if g.heldSince.IsZero() {
		g.heldSince = now
	}
	return now.Sub(g.heldSince) < g.maxWait(decoding)
}

// release ends the delay, because the prompts are planned or gone.
func (g *prefillCoalescer) release() { g.heldSince = time.Time{} }

// maxWait is the delay with this number of decoding sequences.
func (g *prefillCoalescer) maxWait(decoding int) time.Duration {
	if g.step <= 0 || g.arrivalRate <= 0 {
		return 0
	}
	steps := min(math.Sqrt(2*float64(decoding)/g.arrivalRate), float64(g.limit)/float64(g.step))
	if steps*g.arrivalRate < 1 {
		return 0
	}
	return time.Duration(steps * float64(g.step))
}

// delayPrefill reports whether the round's prompts wait for others to arrive. It runs when the plan
// has exactly the decoding sequences.
func (l *Loop) delayPrefill(now time.Time, prompts []*sequence) bool {
	g, decoding := &l.coalescer, len(l.plan.chosen)
	if g.grain == 0 || decoding == 0 {
		return false
	}
	g.endRound()
	tokens, enough := 0, min(g.grain, l.mixed.tokens)
	for _, s := range prompts {
		switch {
		case !l.plannable(s):
			continue
		case !l.mayDelay(s):
			return false
		}
		tokens += s.length() - s.submitted
	}
	return 0 < tokens && tokens < enough && g.holds(now, decoding)
}

// mayDelay reports whether a prompt may be delayed: it has not begun, and a sequence of the same
// tenant and at least its priority decodes. A delay is only worth its cost to the tenant whose
// decoding gains by it.
func (l *Loop) mayDelay(s *sequence) bool {
	return s.fresh && s.generated() == 0 && slices.ContainsFunc(l.plan.chosen, func(p part) bool {
		return p.seq.request.Tenant == s.request.Tenant && p.seq.request.Priority >= s.request.Priority
	})
}
