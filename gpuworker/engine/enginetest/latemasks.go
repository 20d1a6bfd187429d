package enginetest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// allowing returns a mask that allows these tokens.
func allowing(vocab int, tokens ...int32) []uint32 {
	mask := make([]uint32, (vocab+31)/32)
	for _, token := range tokens {
		mask[token/32] |= 1 << (token % 32)
	}
	return mask
}

// masked returns a step over 20 tokens with a row for each mask (nil = none), each for its own
// slot.
func masked(masks ...[]uint32) *engine.Step {
	step := prompt()
	step.PreOps, step.Samples = nil, nil
	for i, mask := range masks {
		slot := int32(i)
		p := Plain(uint64(i), 1.2)
		p.TopN = 3
		step.PreOps = append(step.PreOps, set(slot, 1, p))
		step.Samples = append(step.Samples, engine.SampleRow{
			TokenIndex: 19 - slot, Slot: slot, SlotGeneration: 1, Position: 20 - slot, Mask: mask,
		})
	}
	return step
}

// late returns the step with late masks for these rows, and those masks.
func late(step *engine.Step, rows ...int) (*engine.Step, [][]uint32) {
	out := *step
	out.Samples = slices.Clone(step.Samples)
	var masks [][]uint32
	for _, i := range rows {
		masks = append(masks, out.Samples[i].Mask)
		out.Samples[i].Mask, out.Samples[i].MaskLate = nil, true
	}
	return &out, masks
}

func (g *rig) masks(masks ...[]uint32) error { return g.r.(engine.LateMasker).Masks(masks) }

func testLateMasks(t *testing.T, opener func(*testing.T) engine.Device, _ Options) {
	vocab := Small().Vocab
	few, one, last := allowing(vocab, 3, 40, 90, 200), allowing(vocab, 64), allowing(vocab, int32(vocab-1), 31, 32)
	t.Run("give the bits of masks that are there", func(t *testing.T) {
		g := newRig(t, opener, nil)
		for name, c := range map[string]struct {
			masks [][]uint32
			late  []int
		}{
			"one":                               {[][]uint32{few}, []int{0}},
			"one for one of two":                {[][]uint32{few, nil}, []int{0}},
			"one for the last of three":         {[][]uint32{nil, nil, last}, []int{2}},
			"three":                             {[][]uint32{one, last, few}, []int{0, 1, 2}},
			"one beside one that is there":      {[][]uint32{few, last}, []int{1}},
			"two around one that is there":      {[][]uint32{one, few, last, nil}, []int{0, 2}},
			"the same twice":                    {[][]uint32{last, last, last}, []int{0, 1, 2}},
			"one beside two that share theirs":  {[][]uint32{few, few, one, few}, []int{2}},
			"one that leaves no token":          {[][]uint32{allowing(vocab), few}, []int{0, 1}},
			"one that leaves every token":       {[][]uint32{allowing(vocab, span(0, int32(vocab))...), nil}, []int{0}},
			"eight, as many as there are rows":  {[][]uint32{few, one, last, few, one, last, few, one}, []int{0, 1, 2, 3, 4, 5, 6, 7}},
			"the last of eight, the others not": {[][]uint32{few, one, last, few, one, last, few, one}, []int{7}},
		} {
			early := masked(c.masks...)
			want := g.do(early)
			step, masks := late(early, c.late...)
			require.NoError(t, g.r.Submit(step), name)
			require.NoError(t, g.masks(masks...), name)
			got := g.wait()
			require.Equal(t, want.Samples, got.Samples, name)
			require.Equal(t, want.Scores, got.Scores, name)
		}
	})
	t.Run("are waited for", func(t *testing.T) {
		g := newRig(t, opener, nil)
		early := masked(few, last)
		want := g.do(early).Samples
		require.ErrorIs(t, g.masks(few), engine.ErrPrecondition, "no step waits")
		require.NoError(t, g.r.Submit(early))
		require.ErrorIs(t, g.masks(few), engine.ErrPrecondition, "the step has its masks")
		g.wait()
		step, masks := late(early, 0, 1)
		require.NoError(t, g.r.Submit(step))
		for _, timeout := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
			_, err := g.r.Wait(timeout)
			require.ErrorIs(t, err, engine.ErrTimeout)
		}
		p := g.r.Progress()
		require.Equal(t, p.Submitted, p.Completed+1)
		require.ErrorIs(t, g.r.Submit(early), engine.ErrPrecondition, "a step behind it needs its samples")
		require.ErrorIs(t, g.r.Submit(step), engine.ErrPrecondition, "late or not")
		for name, wrong := range map[string][][]uint32{
			"none": nil, "one of two": masks[:1], "three of two": {few, few, few}, "one without words": {few, nil},
			"one that is too short": {few, last[1:]}, "one that is too long": {append(slices.Clone(few), 1), last},
		} {
			require.ErrorIs(t, g.masks(wrong...), engine.ErrInvalid, name)
			_, err := g.r.Wait(0)
			require.ErrorIs(t, err, engine.ErrTimeout, "it still waits")
		}
		require.NoError(t, g.masks(masks...))
		require.ErrorIs(t, g.masks(masks...), engine.ErrPrecondition, "they were given")
		require.Equal(t, want, g.wait().Samples)
		require.Equal(t, want, g.do(early).Samples)
		p = g.r.Progress()
		require.Equal(t, p.Submitted, p.Completed)
	})
	t.Run("guide a sequence behind a step in flight", func(t *testing.T) {
		masks := [][]uint32{few, last, one, allowing(vocab, span(0, 150)...), last, few, allowing(vocab, span(90, 301)...), few}
		run := func(deep, isLate bool) (rows []engine.RowResult) {
			g := newRig(t, opener, nil)
			l := &line{prompt: 20, params: penalised(-1), blocks: blocksFrom(0, 3)}
			first := ops(l.set(nil))
			l.sample(first, l.feed(first, 0, numbers(4, 20, vocab)...)+19, 20)
			require.NoError(t, g.r.Submit(first))
			if !deep {
				rows = append(rows, g.wait().Samples[0])
			}
			for i, mask := range masks {
				step := &engine.Step{}
				l.sample(step, l.feed(step, 20+i, engine.PreviousSample), 21+i)
				step.Samples[0].Mask = mask
				var given [][]uint32
				if isLate {
					step, given = late(step, 0)
				}
				require.NoError(t, g.r.Submit(step))
				if isLate && i%2 == 0 { // before the step in flight is read, or after
					require.NoError(t, g.masks(given...))
				}
				rows = append(rows, g.wait().Samples[0]) // of the step before, two in flight
				if isLate && i%2 == 1 {
					require.NoError(t, g.masks(given...))
				}
			}
			if deep {
				rows = append(rows, g.wait().Samples[0])
			}
			return rows
		}
		want := run(false, false)
		require.Len(t, want, len(masks)+1)
		require.NoError(t, sameRows(want, run(true, false)))
		require.NoError(t, sameRows(want, run(true, true)))
	})
	t.Run("do not hold up a runner that is closed", func(t *testing.T) {
		g := newRig(t, opener, nil)
		step, _ := late(masked(few), 0)
		for range 3 {
			for _, wait := range []time.Duration{-1, 0, 5 * time.Millisecond} {
				r, err := g.model.NewRunner(g.cfg)
				require.NoError(t, err)
				if wait == 0 {
					require.NoError(t, r.Submit(prompt()))
				}
				require.NoError(t, r.Submit(step))
				if wait > 0 {
					_, err := r.Wait(wait)
					require.ErrorIs(t, err, engine.ErrTimeout)
				}
				require.NoError(t, r.Close())
				require.ErrorIs(t, r.(engine.LateMasker).Masks([][]uint32{few}), engine.ErrPrecondition)
			}
		}
	})
	t.Run("that are there already are refused", func(t *testing.T) {
		g := newRig(t, opener, nil)
		step := masked(few, last)
		step.Samples[1].MaskLate = true
		require.ErrorIs(t, g.r.Submit(step), engine.ErrInvalid)
		require.ErrorIs(t, g.masks(few), engine.ErrPrecondition)
	})
}
