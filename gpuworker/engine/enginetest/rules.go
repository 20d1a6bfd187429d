package enginetest

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// guess returns a number that is mostly within 0 .. most, and otherwise just or far outside.
func guess(rng *rand.Rand, most int) int32 {
	switch rng.IntN(60) {
	case 0:
		return -1
	case 1:
		return int32(most) + 1
	default:
		return int32(rng.IntN(most + 1))
	}
}

// randomStep returns a step that is likely to be valid for the slots, and otherwise breaks a rule
// or two.
func randomStep(rng *rand.Rand, d *engine.ModelDesc, c engine.RunnerConfig, slots *rules.Slots) *engine.Step {
	step := &engine.Step{}
	next := make([]rules.Slot, c.MaxSequences)
	for i := range next {
		next[i] = slots.Slot(int32(i))
	}
	for range rng.IntN(4) {
		op := engine.PreOp{Kind: engine.PreOpKind(guess(rng, 5)), Slot: guess(rng, c.MaxSequences-1), SlotGeneration: rng.Uint32N(3)}
		blocks, host := c.KVBlocks, c.HostBlocks
		if op.Window = c.WindowBlocks > 0 && rng.IntN(2) == 0 || rng.IntN(200) == 0; op.Window {
			blocks, host = max(c.WindowBlocks, 1), max(c.HostWindowBlocks, 1)
		}
		switch op.Kind {
		case engine.BlockCopy:
			op.Src, op.Dst = guess(rng, blocks-1), guess(rng, blocks-1)
		case engine.BlockOut:
			op.Src, op.Dst = guess(rng, blocks-1), guess(rng, host-1)
		case engine.BlockIn:
			op.Src, op.Dst = guess(rng, host-1), guess(rng, blocks-1)
		case engine.StateOut:
			op.Src, op.Dst = guess(rng, c.SavedStates), guess(rng, c.HostStates)
		case engine.StateIn:
			op.Src, op.Dst = guess(rng, c.HostStates), guess(rng, c.SavedStates)
		default:
			op.Params = Plain(rng.Uint64(), 1)
			for range rng.IntN(40) {
				op.History = append(op.History, int32(rng.IntN(d.Vocab)))
			}
			if rng.IntN(30) == 0 {
				op.History = append(op.History, guess(rng, d.Vocab-1))
			}
			if op.Slot >= 0 && int(op.Slot) < len(next) {
				next[op.Slot] = rules.Slot{Set: true, Generation: op.SlotGeneration, Length: int32(len(op.History))}
			}
		}
		step.PreOps = append(step.PreOps, op)
	}
	tokens := 0
	for range rng.IntN(4) {
		i := rng.IntN(len(next))
		slot := &next[i]
		if !slot.Set && rng.IntN(20) > 0 {
			continue
		}
		seg := engine.Segment{Slot: int32(i), SlotGeneration: slot.Generation, Class: engine.KernelClass(rng.IntN(2)), FirstPosition: slot.Length}
		if rng.IntN(3) == 0 {
			seg.FirstPosition = guess(rng, int(slot.Length))
		}
		for range 1 + rng.IntN(9) {
			seg.Tokens = append(seg.Tokens, int32(rng.IntN(d.Vocab)))
		}
		if rng.IntN(4) == 0 {
			seg.Tokens, seg.Class = []int32{engine.PreviousSample}, engine.Decode
		}
		end := int(seg.FirstPosition) + len(seg.Tokens)
		for range max(0, (end+c.BlockSize-1)/c.BlockSize-rng.IntN(20)/19) {
			seg.Blocks = append(seg.Blocks, int32(rng.IntN(c.KVBlocks)))
		}
		if c.WindowBlocks > 0 || rng.IntN(200) == 0 {
			for i := range seg.Blocks {
				id := guess(rng, max(c.WindowBlocks, 1)-1)
				if i < engine.FirstWindowBlock(int(seg.FirstPosition), d.GroupWindow(), c.BlockSize) && rng.IntN(2) == 0 {
					id = engine.NoBlock
				}
				seg.WindowBlocks = append(seg.WindowBlocks, id)
			}
		}
		if c.SavedStates > 0 {
			for id := range int32(c.SavedStates + 1) { // one that has read as far, if there is
				if slots.Read(seg.Slot, id) == seg.FirstPosition && rng.IntN(2) == 0 {
					seg.StateFrom = id
				}
			}
			if rng.IntN(3) == 0 {
				seg.StateTo = guess(rng, c.SavedStates)
			}
			if rng.IntN(30) == 0 {
				seg.StateFrom = guess(rng, c.SavedStates)
			}
		}
		slot.Length = int32(end)
		tokens += len(seg.Tokens)
		step.Segments = append(step.Segments, seg)
	}
	for range rng.IntN(4) {
		i := rng.IntN(len(next))
		if !next[i].Set || tokens == 0 {
			continue
		}
		step.Samples = append(step.Samples, engine.SampleRow{
			TokenIndex: guess(rng, tokens-1), Slot: int32(i), SlotGeneration: next[i].Generation, Position: guess(rng, d.Context),
			MaskLate: rng.IntN(8) == 0,
		})
		if rng.IntN(6) == 0 {
			step.Samples[len(step.Samples)-1].Mask = make([]uint32, (d.Vocab+31)/32)
		}
	}
	if tokens > 0 && rng.IntN(3) == 0 {
		step.Scores = append(step.Scores, engine.ScoreRow{TokenIndex: guess(rng, tokens-1), Target: guess(rng, d.Vocab-1), TopN: guess(rng, c.MaxTopN)})
	}
	return step
}

// testRules checks that package rules and the engine accept the same steps.
func testRules(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	t.Run("of a model of attention", func(t *testing.T) { testRulesOf(t, opener, opts, Small().Model(), 0, 0) })
	t.Run("of a model with states", func(t *testing.T) { testRulesOf(t, opener, opts, Hybrid(), 3, 0) })
	t.Run("of a model with a window group", func(t *testing.T) { testRulesOf(t, opener, opts, Windowed(20, 5), 0, 9) })
}

func testRulesOf(t *testing.T, opener func(*testing.T) engine.Device, opts Options, desc engine.ModelDesc, states, window int) {
	g := rigOf(t, opener, desc, func(c *engine.RunnerConfig) {
		c.KVBlocks, c.MaxSequences, c.HostBlocks, c.MaxSampleRows, c.MaxBatchedTokens = 12, 3, 4, 3, 24
		c.SavedStates, c.HostStates = states, states
		c.WindowBlocks, c.HostWindowBlocks = window, window/2
	})
	slots := rules.NewSlots(desc, g.cfg)
	rng := generator(2026)
	steps, accepted := 4000, 0
	if opts.Slow {
		steps = 500
	}
	for i := range steps {
		step := randomStep(rng, &desc, g.cfg, slots)
		want, got := slots.Admit(step, nil), g.r.Submit(step)
		require.Equal(t, want == nil, got == nil, "step %d: the rules say %v, the engine %v: %+v", i, want, got, step)
		if got != nil {
			require.True(t, errors.Is(got, engine.ErrInvalid) && errors.Is(want, engine.ErrInvalid), "step %d: %v and %v", i, want, got)
			continue
		}
		accepted++
		var masks [][]uint32
		for j := range step.Samples {
			if step.Samples[j].MaskLate {
				masks = append(masks, allowing(desc.Vocab, 5, 70))
			}
		}
		if masks != nil {
			require.NoError(t, g.masks(masks...))
		}
		g.wait()
	}
	t.Logf("%d of %d steps accepted", accepted, steps)
	require.Greater(t, accepted, steps/8)
	require.Less(t, accepted, steps*9/10)
}
