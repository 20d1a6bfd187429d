package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// ErrBroken says that a stream lost something or paused too long, or that nothing was proven.
var ErrBroken = errors.New("a promise was broken")

// Stage is the result of streams under faults.
type Stage struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Faults  []Fault `json:"faults"`
	// Skipped counts the times when no worker could be chosen: none had a stream, or no other one
	// served.
	Skipped int    `json:"skipped,omitempty"`
	Streams uint64 `json:"streams"`
	Tokens  uint64 `json:"tokens"`
	// Each stream is counted in at most one of these.
	Failed    uint64 `json:"failed"`    // ended with a status, or not in time
	Lost      uint64 `json:"lost"`      // lack tokens
	Repeated  uint64 `json:"repeated"`  // have something twice
	Different uint64 `json:"different"` // differ in a bit otherwise
	// Resumes counts streams that got tokens after a fault while the faulty member could not send:
	// at least this many were continued elsewhere.
	Resumes uint64 `json:"resumes"`
	// Told is the number of resumes that schedulers log; those of a killed one count until its end.
	Told       uint64         `json:"resumes_told"`
	Gaps       []Gaps         `json:"gaps,omitempty"` // by kind of fault
	InterToken *stats.Summary `json:"inter_token"`    // of all streams, also those that no fault met
	Problems   []string       `json:"problems,omitempty"`

	problems problems
	records  []*record
}

// Gaps are the pauses of streams that faults of one kind met.
type Gaps struct {
	Kind        Kind          `json:"kind"`
	Faults      int           `json:"faults"`
	Resumes     uint64        `json:"resumes"`
	Pauses      stats.Summary `json:"pauses"`       // around the faults
	Undisturbed stats.Summary `json:"undisturbed"`  // the same resumes on the idle fleet: time to the first token
	Allowed     float64       `json:"allowed_ms"`   // besides what the same resume takes undisturbed
	Over        uint64        `json:"over_allowed"` // pauses longer than both together
}

// workload is the streams of a stage.
type workload struct {
	streams, requests int
	request           func(i int) *pb.GenerateRequest
	grace             time.Duration
}

// truth makes every request once on the undisturbed fleet, through the given schedulers, and
// returns the transcripts. The stage has the times.
func (f *fleet) truth(ctx context.Context, w workload, schedulers []*scheduler) (*Stage, []*Transcript, error) {
	c := &client{schedulers: schedulers, request: w.request, began: time.Now()}
	all := &loop{client: c, streams: w.streams, requests: w.requests, limit: w.requests, grace: w.grace}
	s := &Stage{Name: "undisturbed", records: all.run(ctx, nil)}
	if err := errors.Join(ctx.Err(), f.check()); err != nil {
		return nil, nil, err
	}
	s.Seconds = time.Since(c.began).Seconds()
	s.judge(nil)
	transcripts := make([]*Transcript, len(s.records))
	for i, r := range s.records {
		if r.err != nil {
			return nil, nil, fmt.Errorf("request %d fails undisturbed: %s", i, failure(r.err))
		}
		transcripts[i] = &r.transcript
	}
	return s, transcripts, nil
}

// stage keeps streams open while hurt injects faults, waits for their ends, and compares each with
// its truth. Clients that resume go to another scheduler when theirs is lost. The pauses are
// compared with the same resumes on the fleet when it is whole again; if clients resume, their own
// pauses are listed instead.
func (f *fleet) stage(ctx context.Context, name string, w workload, resumes bool, truth []*Transcript, hurt func(*client, *Stage) error) (
	*Stage, error) {
	c := &client{schedulers: f.schedulers, request: w.request, resumes: resumes, began: time.Now()}
	s := &Stage{Name: name}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(stop)
		done <- hurt(c, s)
	}()
	all := &loop{client: c, streams: w.streams, requests: w.requests, grace: w.grace}
	s.records = all.run(ctx, stop)
	s.Seconds = time.Since(c.began).Seconds()
	err := errors.Join(<-done, ctx.Err(), f.check())
	if s.judge(truth); err != nil {
		return s, err
	}
	if resumes {
		s.ownGaps()
	} else {
		if err := f.whole(ctx); err != nil {
			return s, err
		}
		err = s.pauses(ctx, c)
	}
	s.Problems = s.problems.all()
	return s, err
}

// mostProblems is how many of a kind are listed.
const mostProblems = 5

// problems collects problems, the first few of each kind in words.
type problems struct {
	counts map[string]int
	listed []string
}

func (p *problems) add(kind, format string, args ...any) {
	if p.counts == nil {
		p.counts = map[string]int{}
	}
	if p.counts[kind]++; p.counts[kind] <= mostProblems {
		p.listed = append(p.listed, kind+": "+fmt.Sprintf(format, args...))
	}
}

func (p *problems) all() []string {
	all := slices.Clone(p.listed)
	for kind, n := range p.counts {
		if n > mostProblems {
			all = append(all, fmt.Sprintf("%s: %d more", kind, n-mostProblems))
		}
	}
	slices.Sort(all)
	return all
}

// judge compares every stream with its truth, if there is one.
func (s *Stage) judge(truth []*Transcript) {
	between := stats.Histogram{}
	for i, r := range s.records {
		s.Streams++
		s.Tokens += uint64(r.transcript.length())
		for k := 1; k < len(r.arrivals); k++ {
			between.Add(r.arrivals[k].at - r.arrivals[k-1].at)
		}
		err := r.err
		if err == nil && truth != nil {
			err = r.transcript.Same(truth[r.request])
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
		s.problems.add(what, "stream %d (request %d, first on %s) %.2f s after the start, after %d tokens: %v",
			i, r.request, cmp.Or(r.worker, "none"), r.ended.Seconds(), r.transcript.length(), err)
	}
	if sum := between.Summary(); sum.Count > 0 {
		s.InterToken = &sum
	}
}

// pauses measures the pauses of streams that faults met, and the time of the same resumes on the
// idle fleet.
func (s *Stage) pauses(ctx context.Context, c *client) error {
	byFault := map[int][]interruption{}
	for _, r := range s.records {
		for _, in := range interruptions(r, s.Faults) {
			byFault[in.fault] = append(byFault[in.fault], in)
		}
	}
	type pause struct {
		interruption
		undisturbed time.Duration
	}
	var late []pause
	for _, kind := range append(slices.Clone(Kinds), drain) {
		g := Gaps{Kind: kind, Allowed: float64(maxPause[kind]) / 1e6}
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
				pauses.Add(in.pause)
				undisturbed.Add(took[i])
				if in.resumed {
					g.Resumes++
				}
				if limit := maxPause[kind]; limit > 0 && in.pause > limit+took[i] {
					g.Over++
					late = append(late, pause{in, took[i]})
				}
			}
		}
		if g.Faults > 0 {
			g.Pauses, g.Undisturbed = pauses.Summary(), undisturbed.Summary()
			s.Gaps = append(s.Gaps, g)
			s.Resumes += g.Resumes
		}
	}
	slices.SortFunc(late, func(a, b pause) int { return cmp.Compare(b.pause, a.pause) })
	for _, l := range late {
		f, where := s.Faults[l.fault], "first on "+l.record.worker
		if l.moved {
			where += ", and elsewhere after an earlier fault"
		}
		s.problems.add("pause", "%.2f s at the %s of %s %.2f s after the start (request %d, %s), until %.2f s; undisturbed its resume takes %.3f s",
			l.pause.Seconds(), f.Kind, f.Node, f.At.Seconds(), l.record.request, where, l.record.arrivals[l.after].at.Seconds(), l.undisturbed.Seconds())
	}
	return nil
}

// replay sends the resumes of one fault, all at once, to the idle fleet, and returns the time to
// each one's first token or end.
func replay(ctx context.Context, c *client, all []interruption) ([]time.Duration, error) {
	took, errs := make([]time.Duration, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, in := range all {
		wg.Go(func() {
			took[i], errs[i] = c.first(ctx, in.record.via, in.record.resumeAfter(in.after, c.request(in.record.request)))
		})
	}
	wg.Wait()
	return took, errors.Join(errs...)
}

// ownGaps lists the pauses of streams that their clients resumed. No limit is promised for them.
func (s *Stage) ownGaps() {
	g := Gaps{Kind: Kill, Faults: len(s.Faults)}
	var pauses stats.Histogram
	for _, r := range s.records {
		last := 0
		for _, m := range r.moves {
			if m.arrivals == last {
				continue // before the first token, or a further attempt at the same place
			}
			last = m.arrivals
			g.Resumes++
			if m.arrivals < len(r.arrivals) {
				pauses.Add(r.arrivals[m.arrivals].at - r.arrivals[m.arrivals-1].at)
			}
		}
	}
	g.Pauses = pauses.Summary()
	s.Gaps, s.Resumes = append(s.Gaps, g), g.Resumes
}

// violations counts the violations of each kind.
func (s *Stage) violations() (wrong []string) {
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
	return wrong
}

// err returns the violations, or the reason why the stage proves nothing.
func (s *Stage) err() error {
	wrong := s.violations()
	if len(s.Faults) == 0 {
		wrong = append(wrong, "no fault could be injected")
	} else if s.Resumes == 0 {
		wrong = append(wrong, "no stream was continued after a token, so nothing is proven: take more streams, or longer ones")
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", ErrBroken, s.Name, strings.Join(wrong, ", "))
}
