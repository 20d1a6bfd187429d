package sametest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Options say how much is tried.
type Options struct {
	First     uint64 // seed; the others follow it
	Scenarios int
	// Workers run scenarios at the same time, each on a device of its own; 0 = 1.
	Workers int
	// Cache is the type of keys and values of every runner; zero = each model's own.
	Cache engine.Type
	// One seed in this number is a scenario of a kind that costs more: many rows, a width of 4096, more
	// keys than 65536. 0 = none.
	RowsEvery, WideEvery, LongEvery int
	// Demanded are the things that must have happened at least once.
	Demanded []string
	// Rerun says how a failed seed is run again, before its number.
	Rerun string

	oneClass  bool  // of the devices: prompts are then computed by either class
	ordinary  []int // the models of numOrdinary that the devices compute
	described []int // and of the described ones
}

// Run runs scenarios on devices that opener opens, which must be empty again at the end, and logs the counts.
func Run(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	t.Helper()
	counts := &Counts{}
	require.NoError(t, Check(func() engine.Device { return opener(t) }, opts, counts))
	t.Logf("%d scenarios:\n%s", opts.Scenarios, counts)
	require.Empty(t, counts.Missing(opts.Demanded), "these never happened in %d scenarios", opts.Scenarios)
}

// Check runs scenarios until one fails and says what of it differs; counts are of all that ran. It opens one device a worker.
func Check(open func() engine.Device, opts Options, counts *Counts) error {
	beds := make([]*bed, max(opts.Workers, 1))
	for i := range beds {
		beds[i] = newBed(open(), opts.Cache)
	}
	info, err := beds[0].device.Info()
	if err != nil {
		return err
	}
	opts.oneClass = info.OneClass
	if opts.ordinary, err = beds[0].computed(0, numOrdinary); err != nil {
		return err
	}
	if opts.described, err = beds[0].computed(firstDescribed, len(models)); err != nil {
		return err
	}
	known := &answers{oneClass: info.OneClass}
	errs := make([]error, len(beds))
	var next atomic.Int64
	var failed atomic.Bool
	var all sync.WaitGroup
	for w, b := range beds {
		all.Go(func() {
			for !failed.Load() {
				i := next.Add(1) - 1
				if i >= int64(opts.Scenarios) {
					break
				}
				if err := trial(b, known, opts.First+uint64(i), opts, counts); err != nil {
					errs[w] = err
					failed.Store(true)
				}
			}
			errs[w] = errors.Join(errs[w], b.close())
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// trial runs the scenario of one seed and compares every answer with what its ask gives alone.
func trial(b *bed, known *answers, seed uint64, opts Options, counts *Counts) error {
	solve := func(a *ask) (answer, error) { return known.get(a, b.solve) }
	s, err := draw(seed, opts, solve)
	if err != nil {
		return fmt.Errorf("seed %d: %w", seed, err)
	}
	if b.cache != engine.F32 {
		s.cfg.Runner.KVType = b.cache
	}
	counts.Add("scenarios of kind "+string(s.kind), 1)
	runner, err := b.runner(s.model, s.layout)
	if err != nil {
		return fmt.Errorf("seed %d: %w", seed, err)
	}
	got, err := play(s, runner, counts)
	for i := 0; err == nil && i < len(s.actors); i++ {
		a := &s.actors[i]
		for j := 0; err == nil && j < len(a.asks); j++ {
			var alone answer
			if alone, err = solve(&a.asks[j]); err != nil {
				break
			}
			if err = alone.differ(got[i][j], len(a.request.Continuations[j].Resumed)); err != nil {
				err = fmt.Errorf("actor %d, %s, output %d: %w", i, a, a.asks[j].params.OutputIndex, err)
				break
			}
			tally(counts, s, a, j, alone, got[i][j])
		}
	}
	if err != nil {
		return fmt.Errorf("seed %d (%s; run it again with %s%d): %w", seed, s, opts.Rerun, seed, err)
	}
	return nil
}
