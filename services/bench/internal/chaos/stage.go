package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/services/bench/internal/stats"
)

// ErrBroken says that a stream lost something, or that nothing was proven.
var ErrBroken = errors.New("a promise was broken")

// Stage is what became of the streams of one stage.
type Stage struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Faults  []Fault `json:"faults"`
	// Skipped is how often no worker could be hurt: none had a sequence, or no other one served.
	Skipped int    `json:"skipped,omitempty"`
	Streams uint64 `json:"streams"`
	Tokens  uint64 `json:"tokens"`
	// Of the streams, each in one of these at most:
	Failed    uint64 `json:"failed"`    // ended with a status, or not in time
	Lost      uint64 `json:"lost"`      // lack tokens
	Repeated  uint64 `json:"repeated"`  // have something twice
	Different uint64 `json:"different"` // differ in a bit otherwise
	// Resumes is how often streams were seen to go on behind a token while the program that sent it could not: at least so
	// often were they continued elsewhere.
	Resumes uint64 `json:"resumes"`
	// Told is how often schedulers say that their streams went on elsewhere behind a token; of those that were killed, until then.
	Told       uint64         `json:"resumes_told"`
	Gaps       []Gaps         `json:"gaps,omitempty"` // by kind of fault
	InterToken *stats.Summary `json:"inter_token"`    // of all streams, those beside the faults included
	Problems   []string       `json:"problems,omitempty"`
}

// Gaps are the pauses in streams that faults of one kind met.
type Gaps struct {
	Kind        Kind          `json:"kind"`
	Faults      int           `json:"faults"`
	Resumes     uint64        `json:"resumes"`
	Pauses      stats.Summary `json:"pauses"`       // of streams at the faults
	Undisturbed stats.Summary `json:"undisturbed"`  // the same resume requests on the idle fleet: time to the first token
	Allowed     float64       `json:"allowed_ms"`   // beside what the same resume takes undisturbed
	Over        uint64        `json:"over_allowed"` // pauses longer than both together
}

// mostProblems is how many of a kind are told one by one.
const mostProblems = 5

// problems collects what is wrong, the first few of each kind whole.
type problems struct {
	counts map[string]int
	told   []string
}

func (p *problems) add(kind, format string, args ...any) {
	if p.counts == nil {
		p.counts = map[string]int{}
	}
	if p.counts[kind]++; p.counts[kind] <= mostProblems {
		p.told = append(p.told, kind+": "+fmt.Sprintf(format, args...))
	}
}

func (p *problems) all() []string {
	for kind, n := range p.counts {
		if n > mostProblems {
			p.told = append(p.told, fmt.Sprintf("%s: %d more", kind, n-mostProblems))
		}
	}
	slices.Sort(p.told)
	return p.told
}

// judge compares every stream with the undisturbed one of its request.
func (s *Stage) judge(records []*record, undisturbed []*Transcript, p *problems) {
	between := stats.Histogram{}
	for i, r := range records {
		s.Streams++
		s.Tokens += uint64(len(r.transcript.tokens()))
		for k := 1; k < len(r.arrivals); k++ {
			between.Add(r.arrivals[k].at - r.arrivals[k-1].at)
		}
		err := r.err
		if err == nil && undisturbed != nil {
			err = r.transcript.Same(undisturbed[r.request])
		}
		what := "failed"
		switch {
		case err == nil:
			continue
		case errors.Is(err, errLost):
			what = "lost"
			s.Lost++
		case errors.Is(err, errRepeated):
			what = "repeated"
			s.Repeated++
		case errors.Is(err, errDifferent):
			what = "different"
			s.Different++
		default:
			s.Failed++
			err = errors.New(failure(err))
		}
		p.add(what, "stream %d (request %d, first on %s) %.2f s after the start, behind %d tokens: %v",
			i, r.request, cmp.Or(r.worker, "none"), r.ended.Seconds(), len(r.transcript.tokens()), err)
	}
	if sum := between.Summary(); sum.Count > 0 {
		s.InterToken = &sum
	}
}

// pauses measures what faults did to the streams that they met, and what the same resumes take on the idle fleet.
func (s *Stage) pauses(ctx context.Context, c *client, records []*record, p *problems) error {
	byFault := map[int][]interruption{}
	for _, r := range records {
		for _, in := range interruptions(r, s.Faults) {
			byFault[in.fault] = append(byFault[in.fault], in)
		}
	}
	var late []pause
	for _, kind := range Kinds {
		g := Gaps{Kind: kind, Allowed: float64(gapAllowed[kind]) / 1e6}
		var pauses, undisturbed stats.Histogram
		for k, f := range s.Faults {
			if f.Kind != kind {
				continue
			}
			g.Faults++
			took, err := replay(ctx, c, byFault[k])
			if err != nil {
				return fmt.Errorf("resume undisturbed: %w", err)
			}
			for i, in := range byFault[k] {
				pauses.Add(in.gap)
				undisturbed.Add(took[i])
				if in.resumed {
					g.Resumes++
				}
				if in.gap > gapAllowed[kind]+took[i] {
					g.Over++
					late = append(late, pause{interruption: in, undisturbed: took[i]})
				}
			}
		}
		if g.Faults > 0 {
			g.Pauses, g.Undisturbed = pauses.Summary(), undisturbed.Summary()
			s.Gaps = append(s.Gaps, g)
			s.Resumes += g.Resumes
		}
	}
	slices.SortFunc(late, func(a, b pause) int { return cmp.Compare(b.gap, a.gap) })
	for _, l := range late {
		p.add("pause", "%v", l.tell(s.Faults[l.fault]))
	}
	return nil
}

// pause is an interruption that took too long.
type pause struct {
	interruption
	undisturbed time.Duration
}

func (p *pause) tell(f Fault) string {
	where := "first on " + p.record.worker
	if p.moved {
		where += ", and elsewhere after a fault before"
	}
	return fmt.Sprintf("%.2f s at the %s of %s %.2f s after the start (request %d, %s), until %.2f s; undisturbed its resume takes %.3f s",
		p.gap.Seconds(), f.Kind, f.Node, f.At.Seconds(), p.record.request, where, p.record.arrivals[p.behind].at.Seconds(), p.undisturbed.Seconds())
}

// replay sends the resume requests of one fault, all at once, to the idle fleet, and takes the time to each one's first token or
// end.
func replay(ctx context.Context, c *client, all []interruption) ([]time.Duration, error) {
	took, errs := make([]time.Duration, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, in := range all {
		wg.Go(func() {
			took[i], errs[i] = c.first(ctx, in.record.via, in.record.resumeBehind(in.behind, c.mix.Request(in.record.request)))
		})
	}
	wg.Wait()
	return took, errors.Join(errs...)
}

// err says what was broken, or what the stage did not prove.
func (s *Stage) err() error {
	var wrong []string
	add := func(n uint64, what string) {
		if n > 0 {
			wrong = append(wrong, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(s.Failed, "streams failed")
	add(s.Lost, "streams lack tokens")
	add(s.Repeated, "streams have something twice")
	add(s.Different, "streams differ from the undisturbed run")
	for _, g := range s.Gaps {
		add(g.Over, fmt.Sprintf("streams paused too long at a %s", g.Kind))
	}
	if len(s.Faults) == 0 {
		wrong = append(wrong, "no fault could be made")
	} else if s.Resumes == 0 {
		wrong = append(wrong, "no stream was continued behind a token, so nothing is proven: take more streams, or longer ones")
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", ErrBroken, s.Name, strings.Join(wrong, ", "))
}
