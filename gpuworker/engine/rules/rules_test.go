package rules

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func desc() engine.ModelDesc {
	return engine.ModelDesc{
		Layers: 2, Hidden: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 96, Vocab: 100, Context: 256, RopeDims: 16,
		RopeBase: 10000, RopeScale: 1, NormEps: 1e-5,
	}
}

func TestTensorsOfAShape(t *testing.T) {
	d := desc()
	require.Len(t, Tensors(d), 3+2*9)
	d.TiedHead, d.QKVBias, d.OBias, d.QKNorm, d.RopeFactors = true, true, true, true, true
	all := Tensors(d)
	require.Len(t, all, 3+2*15)
	require.Equal(t, Wanted{Role: engine.RoleDown, Layer: 1, Dims: []int64{96, 64}}, all[len(all)-1])
	require.NoError(t, CheckModel(d))
}

func TestModelsThatCannotRunAreRefused(t *testing.T) {
	for name, break_ := range map[string]func(*engine.ModelDesc){
		"no layers":                     func(d *engine.ModelDesc) { d.Layers = 0 },
		"heads not divided":             func(d *engine.ModelDesc) { d.KVHeads = 3 },
		"odd rope dims":                 func(d *engine.ModelDesc) { d.RopeDims = 7 },
		"more rope dims than head":      func(d *engine.ModelDesc) { d.RopeDims = 18 },
		"a rope base that is no number": func(d *engine.ModelDesc) { d.RopeBase = nan() },
		"a rope scale of zero":          func(d *engine.ModelDesc) { d.RopeScale = 0 },
		"a rope style nobody has":       func(d *engine.ModelDesc) { d.RopeStyle = 2 },
		"a negative eps":                func(d *engine.ModelDesc) { d.NormEps = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			d := desc()
			break_(&d)
			require.ErrorIs(t, CheckModel(d), engine.ErrInvalid)
		})
	}
}

func nan() float32 { var zero float32; return zero / zero }

func TestSizesOfTensors(t *testing.T) {
	size, err := TensorSize(engine.TensorDesc{Role: engine.RoleQ, Type: engine.Q4_K, Dims: []int64{512, 3}})
	require.NoError(t, err)
	require.Equal(t, uint64(3*2*144), size)
	for _, d := range []engine.TensorDesc{
		{Type: engine.Q8_0, Dims: []int64{33}}, {Type: engine.F32, Dims: []int64{0}}, {Type: engine.F32},
		{Type: engine.F32, Dims: []int64{1 << 40, 1 << 40}}, {Type: engine.F32, Dims: []int64{-1}},
	} {
		_, err := TensorSize(d)
		require.ErrorIs(t, err, engine.ErrInvalid, d)
	}
	_, err = TensorSize(engine.TensorDesc{Type: 99, Dims: []int64{1}})
	require.ErrorIs(t, err, engine.ErrUnsupported)
	for _, w := range WeightTypes() {
		_, ok := BlockOf(w)
		require.True(t, ok)
	}
	require.Equal(t, "layer 3 gate", Name(engine.RoleGate, 3))
}

func TestARefusedStepLeavesTheSlotsAsTheyWere(t *testing.T) {
	cfg := engine.RunnerConfig{KVBlocks: 8, BlockSize: 16, MaxSequences: 2, MaxBatchedTokens: 32, MaxSampleRows: 2, KVType: engine.F32}
	require.NoError(t, CheckConfig(cfg))
	s := NewSlots(desc(), cfg)
	set := engine.PreOp{Slot: 1, SlotGeneration: 5, Params: &engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}}
	seg := engine.Segment{Slot: 1, SlotGeneration: 5, Tokens: []int32{1, 2, 3}, Blocks: []int32{0}}
	row := engine.SampleRow{TokenIndex: 2, Slot: 1, SlotGeneration: 5, Position: 3}
	bad := row
	bad.TokenIndex = 3
	step := &engine.Step{PreOps: []engine.PreOp{set}, Segments: []engine.Segment{seg}, Samples: []engine.SampleRow{bad}}
	require.ErrorIs(t, s.Admit(step, nil), engine.ErrInvalid)
	require.Equal(t, Slot{}, s.Slot(1))
	step.Samples[0] = row
	require.NoError(t, s.Admit(step, nil))
	require.Equal(t, Slot{Set: true, Generation: 5, Length: 3, Sampled: true}, s.Slot(1))

	next := &engine.Step{Segments: []engine.Segment{{
		Slot: 1, SlotGeneration: 5, Class: engine.Decode, FirstPosition: 3, Tokens: []int32{engine.PreviousSample}, Blocks: []int32{0},
	}}}
	require.NoError(t, s.Admit(next, nil))
	next.Segments[0].FirstPosition = 4
	require.ErrorContains(t, s.Admit(next, nil), "sampled nothing in the step before")
	next.Segments[0].Tokens[0] = 7
	require.NoError(t, s.Admit(next, nil))
	next.Segments[0].FirstPosition = 1 // rolls back
	require.NoError(t, s.Admit(next, nil))
	require.Equal(t, int32(2), s.Slot(1).Length)
}

// pool is a config of two slots, eight blocks and three host blocks.
func pool() engine.RunnerConfig {
	return engine.RunnerConfig{
		KVBlocks: 8, BlockSize: 16, MaxSequences: 2, MaxBatchedTokens: 32, MaxSampleRows: 2, KVType: engine.F32, HostBlocks: 3,
	}
}

func plain() *engine.SlotParams {
	return &engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}
}

func TestABlockComesInFromWhereOneWentOut(t *testing.T) {
	s := NewSlots(desc(), pool())
	ops := func(ops ...engine.PreOp) *engine.Step { return &engine.Step{PreOps: ops} }
	out := func(to int32) engine.PreOp { return engine.PreOp{Kind: engine.BlockOut, Src: 7, Dst: to} }
	in := func(from int32) engine.PreOp { return engine.PreOp{Kind: engine.BlockIn, Src: from, Dst: 0} }
	require.ErrorContains(t, s.Admit(ops(in(1)), nil), "pre-operation 0 copies host block 1 in, which was never written")
	require.ErrorIs(t, s.Admit(ops(in(1), out(1)), nil), engine.ErrInvalid, "in their order")
	require.ErrorIs(t, s.Admit(ops(in(1)), nil), engine.ErrInvalid, "a refused step writes nothing")
	full := func() error { return engine.ErrOutOfMemory }
	require.ErrorIs(t, s.Admit(ops(out(1)), full), engine.ErrOutOfMemory)
	require.ErrorIs(t, s.Admit(ops(in(1)), nil), engine.ErrInvalid)
	require.NoError(t, s.Admit(ops(out(1), in(1)), nil))
	require.ErrorIs(t, s.Admit(ops(out(1)), full), engine.ErrOutOfMemory)
	require.NoError(t, s.Admit(ops(in(1)), nil), "what an earlier step wrote stays written")
	for _, wrong := range []engine.PreOp{out(3), out(-1), in(3), in(-1), {Kind: engine.BlockOut, Src: 8}, {Kind: engine.BlockIn, Src: 1, Dst: 8}, {Kind: 4}} {
		require.ErrorIs(t, s.Admit(ops(wrong), nil), engine.ErrInvalid)
	}
}

func TestASlotBeginsWithItsHistory(t *testing.T) {
	d := desc()
	d.Context = 100
	s := NewSlots(d, pool())
	begin := func(history []int32, at int32) *engine.Step {
		return &engine.Step{
			PreOps:   []engine.PreOp{{SlotGeneration: 1, Params: plain(), History: history}},
			Segments: []engine.Segment{{SlotGeneration: 1, FirstPosition: at, Tokens: []int32{1}, Blocks: make([]int32, 8)}},
		}
	}
	require.NoError(t, s.Admit(begin(make([]int32, 99), 99), nil))
	require.Equal(t, int32(100), s.Slot(0).Length)
	require.NoError(t, s.Admit(begin(make([]int32, 99), 5), nil), "rolled back at once")
	require.Equal(t, int32(6), s.Slot(0).Length)
	require.ErrorIs(t, s.Admit(begin(make([]int32, 99), 100), nil), engine.ErrInvalid)
	require.ErrorIs(t, s.Admit(begin(make([]int32, 101), 0), nil), engine.ErrInvalid)
	require.ErrorIs(t, s.Admit(begin([]int32{1, 100}, 0), nil), engine.ErrInvalid)
	require.ErrorIs(t, s.Admit(begin([]int32{-1}, 0), nil), engine.ErrInvalid)
}

func TestSegmentsOfOneSlotFollowEachOther(t *testing.T) {
	s := NewSlots(desc(), pool())
	step := &engine.Step{PreOps: []engine.PreOp{{SlotGeneration: 1, Params: plain()}}}
	for _, at := range []int32{0, 2} {
		step.Segments = append(step.Segments, engine.Segment{SlotGeneration: 1, FirstPosition: at, Tokens: []int32{1, 2}, Blocks: []int32{0}})
	}
	require.NoError(t, s.Admit(step, nil))
	step.Segments[1].FirstPosition = 1
	require.ErrorContains(t, s.Admit(step, nil), "inside an earlier segment")
}

func TestAMaskIsThereOrComesLate(t *testing.T) {
	s := NewSlots(desc(), pool())
	step := &engine.Step{
		PreOps:   []engine.PreOp{{SlotGeneration: 1, Params: plain()}},
		Segments: []engine.Segment{{SlotGeneration: 1, Tokens: []int32{1}, Blocks: []int32{0}}},
		Samples:  []engine.SampleRow{{SlotGeneration: 1, Position: 1, MaskLate: true, Mask: make([]uint32, 4)}},
	}
	require.ErrorIs(t, s.Admit(step, nil), engine.ErrInvalid)
	step.Samples[0].Mask = nil
	require.NoError(t, s.Admit(step, nil))
}

func TestConfigsThatNoEngineKnowsAreRefused(t *testing.T) {
	for name, change := range map[string]func(*engine.RunnerConfig){
		"a cache of quantised blocks": func(c *engine.RunnerConfig) { c.KVType = engine.Q8_0 },
		"activations of eight bits":   func(c *engine.RunnerConfig) { c.ActType = engine.F8 },
		"fewer than no host blocks":   func(c *engine.RunnerConfig) { c.HostBlocks = -1 },
		"more host blocks than ids":   func(c *engine.RunnerConfig) { c.HostBlocks = 1 << 31 },
	} {
		t.Run(name, func(t *testing.T) {
			c := pool()
			require.NoError(t, CheckConfig(c))
			change(&c)
			require.ErrorIs(t, CheckConfig(c), engine.ErrInvalid)
		})
	}
	c := pool()
	c.KVType, c.ActType = engine.F8, engine.BF16
	require.NoError(t, CheckConfig(c))
	require.EqualValues(t, 2*2*2*16*(16+4), BlockBytes(desc(), c), "a byte an element, and a scale for each head of each token")
}
