package sametest

import (
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// spy is a runner that counts what its steps do, so that what happened is known from the steps and not from the loop's word.
type spy struct {
	engine.Runner
	counts   *Counts
	inFlight int
}

func (s *spy) Submit(step *engine.Step) error {
	if err := s.Runner.Submit(step); err != nil {
		return err
	}
	s.inFlight++
	s.saw(SawSteps, true)
	s.saw(SawTwoInFlight, s.inFlight > 1)
	prompts, rows := 0, 0
	for i := range step.Segments {
		g := &step.Segments[i]
		s.saw(SawPrevious, g.Tokens[0] == engine.PreviousSample)
		s.saw(SawReplay, g.Class == engine.Decode && len(g.Tokens) > 1)
		s.saw(SawChunks, g.Class == engine.Prefill && g.FirstPosition > 0)
		s.saw(SawStateSaved, g.StateTo > 0)
		s.saw(SawStateRead, g.StateFrom > 0)
		s.saw(SawWindowLeft, slices.Contains(g.WindowBlocks, engine.NoBlock))
		if g.Class == engine.Decode && len(g.Tokens) == 1 {
			rows++
		} else {
			prompts++
		}
	}
	s.saw(SawMixed, prompts > 0 && rows > 0)
	s.saw(SawRows(rows), rows > 0 && prompts == 0)
	for i := range step.PreOps {
		op := &step.PreOps[i]
		s.saw(SawHistory, op.Kind == engine.SlotSet && len(op.History) > 0)
		s.saw(SawBlockOut, op.Kind == engine.BlockOut)
		s.saw(SawBlockIn, op.Kind == engine.BlockIn)
		s.saw(SawWindowOut, op.Kind == engine.BlockOut && op.Window)
		s.saw(SawWindowIn, op.Kind == engine.BlockIn && op.Window)
		s.saw(SawStateOut, op.Kind == engine.StateOut)
		s.saw(SawStateIn, op.Kind == engine.StateIn)
		s.saw(SawBlockCopy, op.Kind == engine.BlockCopy)
	}
	return nil
}

// Masks passes masks on; every runner of a loop with asks under grammars can.
func (s *spy) Masks(masks [][]uint32) error {
	masker, ok := s.Runner.(engine.LateMasker)
	if !ok {
		return engine.ErrUnsupported
	}
	s.counts.Add(SawMasks, uint64(len(masks)))
	return masker.Masks(masks)
}

func (s *spy) Wait(timeout time.Duration) (*engine.StepResult, error) {
	result, err := s.Runner.Wait(timeout)
	if err == nil {
		s.inFlight--
	}
	return result, err
}

func (s *spy) saw(thing string, happened bool) {
	if happened {
		s.counts.Add(thing, 1)
	}
}

// watch counts the loop's own events.
type watch struct{ counts *Counts }

func (w watch) Admitted(_ time.Duration, _, cached int) { w.counts.Add(SawCached, uint64(cached)) }

func (w watch) Stepped(_, _, _ int, _ time.Duration) {}

func (w watch) FirstToken(time.Duration) {}

func (w watch) NextToken(time.Duration) {}

func (w watch) Preempted(how batch.Preemption) {
	if how == batch.Swap {
		w.counts.Add(SawSwapped, 1)
		return
	}
	w.counts.Add(SawRecomputed, 1)
}

func (w watch) Freed(time.Duration, int) { w.counts.Add(SawFreed, 1) }
