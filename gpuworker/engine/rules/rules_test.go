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
	require.ErrorIs(t, s.Admit(step), engine.ErrInvalid)
	require.Equal(t, Slot{}, s.Slot(1))
	step.Samples[0] = row
	require.NoError(t, s.Admit(step))
	require.Equal(t, Slot{Set: true, Generation: 5, Length: 3, Sampled: true}, s.Slot(1))

	next := &engine.Step{Segments: []engine.Segment{{
		Slot: 1, SlotGeneration: 5, Class: engine.Decode, FirstPosition: 3, Tokens: []int32{engine.PreviousSample}, Blocks: []int32{0},
	}}}
	require.NoError(t, s.Admit(next))
	next.Segments[0].FirstPosition = 4
	require.ErrorContains(t, s.Admit(next), "sampled nothing in the step before")
	next.Segments[0].Tokens[0] = 7
	require.NoError(t, s.Admit(next))
	next.Segments[0].FirstPosition = 1 // rolls back
	require.NoError(t, s.Admit(next))
	require.Equal(t, int32(2), s.Slot(1).Length)
}
