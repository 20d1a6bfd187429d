package relaybench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/process"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// measurement is a run in progress.
type measurement struct {
	fleet *fleet
	maker load.Maker
}

// begin starts the programs. The caller stops the fleet, also after an error.
func begin(ctx context.Context, r rig) (*measurement, error) {
	f, err := r.start(ctx)
	return &measurement{fleet: f, maker: load.Maker{
		Model: f.target.Model, Vocabulary: f.target.Vocabulary, IDsOnly: !f.target.Tokenizer, Seed: r.Seed,
	}}, err
}

// warmUp is how many first tokens are made on each way before any is counted.
const warmUp = 20

// idle takes the times of first tokens on each way, in turn, one at a time.
func (m *measurement) idle(ctx context.Context, c Config, ways []*way) ([]stats.Histogram, error) {
	times := make([]stats.Histogram, len(ways))
	for i := range warmUp + c.Pairs {
		for k := range ways {
			w := (i + k) % len(ways) // none is always the first
			took, err := m.first(ctx, ways[w], uint64(i), c.Prompt)
			if err != nil {
				return nil, err
			}
			if i >= warmUp {
				times[w].Add(took)
			}
		}
	}
	return times, nil
}

// first is the time of one first token.
func (m *measurement) first(ctx context.Context, w *way, i uint64, prompt int) (time.Duration, error) {
	in := m.maker.Request(i, load.Size{Prompt: prompt, Output: 1})
	out := load.Call(ctx, w.conns[i%uint64(len(w.conns))], in, time.Now(), 0, load.Observer{}, nil)
	if out.Tokens != 1 {
		return 0, fmt.Errorf("%w: first token %d through %s: %d tokens, %v %s", ErrFailed, i, w.name, out.Tokens, out.Code, out.Message)
	}
	return out.FirstToken, nil
}

// streams runs n streams at once on a way.
func (m *measurement) streams(ctx context.Context, w *way, n int, size load.Size) (load.Report, error) {
	to := load.NewRecorder(nil)
	g := load.Generator{Conns: w.conns, Maker: m.maker, To: to}
	g.Closed(ctx, n, size, 0, uint64(n))
	return to.Report()
}

// turn takes processor time while the streams of a way run, and first tokens beside them.
func (m *measurement) turn(ctx context.Context, w *way, streams int, size load.Size) (t turn, err error) {
	programs := []*process.Program{w.program, m.fleet.direct[0].program}
	before, err := used(programs)
	if err != nil {
		return t, err
	}
	done := make(chan struct{})
	var work sync.WaitGroup
	var next atomic.Uint64
	times, errs := make([]stats.Histogram, probes), make([]error, probes)
	for p := range probes {
		work.Go(func() { errs[p] = m.probe(ctx, w, size.Prompt, &next, &times[p], done) })
	}
	t.streams, err = m.streams(ctx, w, streams, size)
	close(done)
	work.Wait()
	after, usedErr := used(programs)
	if err := errors.Join(err, usedErr, errors.Join(errs...)); err != nil {
		return t, err
	}
	for p := range times {
		t.first.Merge(&times[p])
	}
	t.cpu, t.worker = after[0]-before[0], after[1]-before[1]
	return t, nil
}

// probe takes first tokens on a way until done is closed.
func (m *measurement) probe(ctx context.Context, w *way, prompt int, next *atomic.Uint64, times *stats.Histogram, done <-chan struct{}) error {
	for {
		select {
		case <-done:
			return nil
		default:
		}
		took, err := m.first(ctx, w, next.Add(1), prompt)
		if err != nil {
			return err
		}
		times.Add(took)
	}
}

// used is the processor time of programs.
func used(programs []*process.Program) ([]time.Duration, error) {
	times := make([]time.Duration, len(programs))
	for i, p := range programs {
		var err error
		if times[i], err = p.CPU(); err != nil {
			return nil, err
		}
	}
	return times, nil
}
