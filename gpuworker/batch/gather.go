package batch

import (
	"math"
	"slices"
	"time"
)

// gather lets prompts wait for each other, so that one step computes several of them. A step with prompt tokens reads the weights
// once more than one in which sequences only decode, for one short prompt as for several; each sequence that decodes waits for that.
//
// Let a prompts come a step on average, d sequences decode, and a reading of the weights last about as long as a step that only
// decodes. When prompts go every n steps, then a n of them wait n/2 steps each, and d sequences wait for one step more: of every
// step, a n/2 + d/n places are idle, which is least for n = sqrt(2 d/a). Nobody waits where less than one prompt is to be expected
// meanwhile, and nobody longer than limit.
//
// When a prompt is computed changes no bit of any result, so that this may depend on time and on who else is there.
type gather struct {
	limit time.Duration // longest wait of a prompt
	grain int           // prompt tokens with which the device is busy, so that more of them gain nothing; 0: any number is as good

	step  time.Duration // a step that only decodes, lately; 0: not known
	came  float64       // prompts that came a step, lately
	fresh int           // prompts that came since the last round in which sequences decode
	since time.Time     // when the first of those who wait was held; zero: nobody is
}

// arrived counts a prompt that got its place.
func (g *gather) arrived() { g.fresh++ }

// learn takes in how long a step took that only decoded.
func (g *gather) learn(took time.Duration) {
	if g.step == 0 {
		g.step = took
	}
	g.step += (took - g.step) / 8
}

// count ends a round in which sequences decode: so many prompts came with it.
func (g *gather) count() {
	g.came += (float64(g.fresh) - g.came) / 32
	g.fresh = 0
}

// holds says whether the prompts that wait go on waiting while so many sequences decode.
func (g *gather) holds(now time.Time, decoding int) bool {
	if g.since.IsZero() {
		g.since = now
	}
	return now.Sub(g.since) < g.patience(decoding)
}

// release ends the wait: the prompts go, or there are none.
func (g *gather) release() { g.since = time.Time{} }

// patience is how long prompts wait while so many sequences decode.
func (g *gather) patience(decoding int) time.Duration {
	if g.step <= 0 || g.came <= 0 {
		return 0
	}
	steps := min(math.Sqrt(2*float64(decoding)/g.came), float64(g.limit)/float64(g.step))
	if steps*g.came < 1 {
		return 0
	}
	return time.Duration(steps * float64(g.step))
}

// gathers says whether the prompts of a round wait for others to come; the plan has the sequences that decode and nothing else.
func (l *Loop) gathers(now time.Time, prompts []*sequence) bool {
	g, decoding := &l.gather, len(l.plan.chosen)
	if g.grain == 0 || decoding == 0 {
		return false
	}
	g.count()
	tokens, enough := 0, min(g.grain, l.shared.tokens)
	for _, s := range prompts {
		switch {
		case !l.plannable(s):
			continue
		case !l.patient(s):
			return false
		}
		tokens += s.length() - s.submitted
	}
	return 0 < tokens && tokens < enough && g.holds(now, decoding)
}

// patient says whether a prompt may be held: it has not begun, and a sequence of its own tenant, of its priority at least, decodes
// meanwhile. A tenant with nothing that decodes gains nothing by it.
func (l *Loop) patient(s *sequence) bool {
	return s.fresh && s.generated() == 0 && slices.ContainsFunc(l.plan.chosen, func(p part) bool {
		return p.seq.request.Tenant == s.request.Tenant && p.seq.request.Priority >= s.request.Priority
	})
}
