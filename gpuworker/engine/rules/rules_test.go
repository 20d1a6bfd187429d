package rules

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func desc() engine.Uniform {
	return engine.Uniform{
		Layers: 2, Hidden: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 96, Vocab: 100, Context: 256, RopeDims: 16,
		RopeBase: 10000, RopeScale: 1, NormEps: 1e-5,
	}
}

func TestTensorsOfADescription(t *testing.T) {
	d := desc()
	plain := d.Model()
	require.Len(t, Tensors(&plain), 3+2*9)
	d.TiedHead, d.QKVBias, d.OBias, d.QKNorm = true, true, true, true
	whole := d.Model()
	all := Tensors(&whole)
	require.Len(t, all, 2+2*15)
	require.Equal(t, Wanted{Role: engine.RoleDown, Layer: 1, Dims: []int64{96, 64}}, all[len(all)-1])
	require.NoError(t, CheckModel(&whole))
	whole.Layers[1].Mixer.KVLayer = 1
	require.NoError(t, CheckModel(&whole))
	require.Len(t, Tensors(&whole), 2+15+10, "the second layer has no K and V of its own")
}

// delta lets layer 1 be a delta rule with a change.
func delta(change func(*engine.Mixer)) func(*engine.ModelDesc) {
	return func(d *engine.ModelDesc) {
		m := engine.Mixer{Kind: engine.MixDelta, Heads: 4, KVHeads: 2, KeyDim: 8, ValueDim: 16, Conv: 4, Rope: engine.NoRope}
		if change != nil {
			change(&m)
		}
		d.Layers[1].Mixer = m
	}
}

func TestLayersThatCarryStates(t *testing.T) {
	d := desc().Model()
	delta(nil)(&d)
	require.NoError(t, CheckModel(&d))
	require.Equal(t, 3*(2*2*8+4*16)+4*8*16, d.StateFloats(), "the last inputs of the convolution, and S")
	c := engine.RunnerConfig{KVType: engine.F16, BlockSize: 16}
	require.EqualValues(t, 2*2*2*16*16, BlockBytes(&d, c, false), "only attention has keys and values")
	require.Len(t, Tensors(&d), 3+9+4+10)
	d.Layers[1].Mixer = engine.Mixer{Kind: engine.MixConv, Conv: 3, Rope: engine.NoRope, EndNorm: true}
	require.NoError(t, CheckModel(&d))
	require.Equal(t, 2*64, d.StateFloats())
	require.Len(t, Tensors(&d), 3+9+4+5)
}

// latent lets layer 1 be attention over a latent with a change.
func latent(change func(*engine.Mixer)) func(*engine.ModelDesc) {
	return func(d *engine.ModelDesc) {
		m := engine.Mixer{Kind: engine.MixLatent, Heads: 4, KVHeads: 1, KeyDim: 24, ValueDim: 10, Latent: 40, QueryLatent: 12}
		if change != nil {
			change(&m)
		}
		d.Layers[1].Mixer = m
	}
}

func TestAttentionOverALatent(t *testing.T) {
	d := desc().Model()
	latent(nil)(&d)
	require.NoError(t, CheckModel(&d))
	c := engine.RunnerConfig{KVType: engine.F16, BlockSize: 16, KVBlocks: 1, MaxSequences: 1, MaxBatchedTokens: 1, MaxSampleRows: 1}
	require.EqualValues(t, 2*16*(2*2*16+40+16), BlockBytes(&d, c, false), "a latent and a rotated key, once")
	require.Len(t, Tensors(&d), 3+9+4+9)
	d.Layers[1].Mixer.QueryLatent = 0
	require.Len(t, Tensors(&d), 3+9+4+7)
	require.NoError(t, CheckRunner(&d, c))
	c.KVType = engine.F8
	err := CheckRunner(&d, c)
	require.ErrorIs(t, err, engine.ErrUnsupported)
	require.ErrorContains(t, err, "layer 1 has attention over a latent")
	d.Layers = d.Layers[1:]
	require.NoError(t, CheckModel(&d), "no other attention is needed")
}

func TestModelsThatCannotRunAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*engine.ModelDesc)
		want  string
	}{
		"no layers":                           {func(d *engine.ModelDesc) { d.Layers = nil }, "model layers is 0"},
		"heads not divided":                   {func(d *engine.ModelDesc) { d.Layers[1].Mixer.KVHeads = 3 }, "layer 1 has 4 heads, which 3 kv heads"},
		"odd rope dims":                       {func(d *engine.ModelDesc) { d.Ropes[0].Dims = 7 }, "rope 0 dims is 7, want an even number"},
		"more rope dims than head":            {func(d *engine.ModelDesc) { d.Ropes[0].Dims = 18 }, "layer 0 rotates 18 dims of heads of 16"},
		"a rope base that is no number":       {func(d *engine.ModelDesc) { d.Ropes[0].Base = nan() }, "rope 0 base is NaN"},
		"a rope scale of zero":                {func(d *engine.ModelDesc) { d.Ropes[0].Scale = 0 }, "rope 0 scale is 0"},
		"a rope style that is unknown":        {func(d *engine.ModelDesc) { d.Ropes[0].Style = 2 }, "rope 0 style is 2"},
		"too few divisors":                    {func(d *engine.ModelDesc) { d.Ropes[0].Divisors = []float64{1} }, "rope 0 has 1 divisors, want 8"},
		"a divisor of zero":                   {func(d *engine.ModelDesc) { d.Ropes[0].Divisors = make([]float64, 8) }, "rope 0 divisor 0 is 0"},
		"a rope that is not there":            {func(d *engine.ModelDesc) { d.Layers[0].Mixer.Rope = 1 }, "layer 0 rope is 1, want -1 to 0"},
		"a negative eps":                      {func(d *engine.ModelDesc) { d.NormEps = -1 }, "norm eps is -1"},
		"a cap that is no number":             {func(d *engine.ModelDesc) { d.LogitCap = nan() }, "logit cap is NaN"},
		"a negative score cap":                {func(d *engine.ModelDesc) { d.Layers[0].Mixer.ScoreCap = -1 }, "layer 0 score cap is -1"},
		"a negative width of inputs":          {func(d *engine.ModelDesc) { d.LayerInputWidth = -1 }, "layer input width is -1, want 0 to 65536"},
		"a temperature of no length":          {func(d *engine.ModelDesc) { d.Layers[0].Mixer.TemperatureScale = 0.1 }, "layer 0 has a temperature scale of 0.1 and a length of 0, want both"},
		"a temperature that is no number":     {func(d *engine.ModelDesc) { d.Layers[0].Mixer.TemperatureScale = nan() }, "layer 0 temperature scale is NaN"},
		"a length of no temperature":          {func(d *engine.ModelDesc) { d.Layers[0].Mixer.TemperatureLength = 8 }, "a length of 8, want both"},
		"a negative window":                   {func(d *engine.ModelDesc) { d.Layers[0].Mixer.Window = -1 }, "layer 0 window is -1"},
		"keys of a layer above":               {func(d *engine.ModelDesc) { d.Layers[0].Mixer.KVLayer = 1 }, "layer 0 kv layer is 1"},
		"keys of another shape":               {func(d *engine.ModelDesc) { d.Layers[1].Mixer.KVLayer, d.Layers[1].Mixer.KVHeads = 1, 1 }, "layer 1 reads the keys of layer 0"},
		"norms by head and by row":            {func(d *engine.ModelDesc) { m := &d.Layers[0].Mixer; m.QKNorm, m.QKRowNorm = true, true }, "by head and by row"},
		"an activation that is unknown":       {func(d *engine.ModelDesc) { d.Layers[1].MLP.Activation = 9 }, "layer 1 activation is 9"},
		"an mlp without a width":              {func(d *engine.ModelDesc) { d.Layers[1].MLP.Width = 0 }, "layer 1 ffn is 0"},
		"experts in a dense mlp":              {func(d *engine.ModelDesc) { d.Layers[1].MLP.Experts.Count = 4 }, "layer 1 mlp is dense and has experts"},
		"no experts":                          {experts(func(e *engine.Experts) { e.Count = 0 }), "layer 1 experts is 0"},
		"more experts than are counted":       {experts(func(e *engine.Experts) { e.Count = 1 << 20 }), "layer 1 experts is 1048576"},
		"no experts used":                     {experts(func(e *engine.Experts) { e.Used = 0 }), "layer 1 experts used is 0"},
		"more experts used than there are":    {experts(func(e *engine.Experts) { e.Used = 9 }), "layer 1 experts used is 9"},
		"a gating that is unknown":            {experts(func(e *engine.Experts) { e.Gating = 2 }), "layer 1 gating is 2"},
		"groups that do not divide":           {experts(func(e *engine.Experts) { e.Groups, e.GroupsUsed = 3, 1 }), "layer 1 has 8 experts, which 3 groups"},
		"no groups used":                      {experts(func(e *engine.Experts) { e.Groups = 2 }), "layer 1 groups used is 0"},
		"groups used and none there":          {experts(func(e *engine.Experts) { e.GroupsUsed = 1 }), "layer 1 uses groups of experts and has none"},
		"groups of too few experts":           {experts(func(e *engine.Experts) { e.Groups, e.GroupsUsed, e.Used = 4, 1, 3 }), "layer 1 uses 3 experts, but 1 groups of 2"},
		"a weight scale of NaN":               {experts(func(e *engine.Experts) { e.WeightScale = nan() }), "layer 1 weight scale"},
		"norms apart without a shared expert": {experts(func(e *engine.Experts) { e.Apart = true }), "layer 1 has experts with norms of their own"},
		"a gate without a shared expert":      {experts(func(e *engine.Experts) { e.SharedGate = true }), "layer 1 gates a shared expert"},
		"a delta rule without taps":           {delta(func(m *engine.Mixer) { m.Conv = 0 }), "layer 1 taps is 0, want 2 to 64"},
		"a delta rule without key heads":      {delta(func(m *engine.Mixer) { m.KVHeads = 0 }), "layer 1 kv heads is 0"},
		"value heads that are not divided":    {delta(func(m *engine.Mixer) { m.KVHeads = 3 }), "layer 1 has 4 heads, which 3 kv heads"},
		"a delta rule with a rotation":        {delta(func(m *engine.Mixer) { m.Rope = 0 }), "layer 1 carries a state, and sets what only attention has"},
		"a delta rule with a window":          {delta(func(m *engine.Mixer) { m.Window = 4 }), "layer 1 carries a state, and sets"},
		"a delta rule with a gated Q":         {delta(func(m *engine.Mixer) { m.OutGate = true }), "layer 1 carries a state, and sets"},
		"a convolution with heads":            {delta(func(m *engine.Mixer) { m.Kind = engine.MixConv }), "layer 1 carries a state, and sets"},
		"attention with taps":                 {func(d *engine.ModelDesc) { d.Layers[1].Mixer.Conv = 3 }, "layer 1 is attention, and has a convolution"},
		"attention with tiled heads":          {func(d *engine.ModelDesc) { d.Layers[1].Mixer.TiledHeads = true }, "layer 1 is attention, and has"},
		"keys of a delta rule": {func(d *engine.ModelDesc) {
			delta(nil)(d)
			d.Layers[0], d.Layers[1] = d.Layers[1], d.Layers[0]
			d.Layers[1].Mixer.KVLayer = 1
		}, "layer 1 reads the keys of layer 0"},
		"norms of rows with gates":     {func(d *engine.ModelDesc) { m := &d.Layers[0].Mixer; m.OutGate, m.QKRowNorm = true, true }, "layer 0 norms whole rows of Q, which has gates"},
		"a latent of no width":         {latent(func(m *engine.Mixer) { m.Latent = 0 }), "layer 1 latent is 0"},
		"a latent of queries below 0":  {latent(func(m *engine.Mixer) { m.QueryLatent = -1 }), "layer 1 latent of queries is -1"},
		"a latent without a rotation":  {latent(func(m *engine.Mixer) { m.Rope = engine.NoRope }), "layer 1 rope is -1, want 0 to 0"},
		"a latent of several kv heads": {latent(func(m *engine.Mixer) { m.KVHeads = 2 }), "layer 1 kv heads is 2, want 1 to 1"},
		"heads that rotate as a whole": {latent(func(m *engine.Mixer) { m.KeyDim = 16 }), "layer 1 rotates 16 dims of heads of 16, want fewer"},
		"a latent with a window":       {latent(func(m *engine.Mixer) { m.Window = 4 }), "layer 1 is attention over a latent, and sets"},
		"a latent with biases":         {latent(func(m *engine.Mixer) { m.QKVBias = true }), "layer 1 is attention over a latent, and sets"},
		"a latent with taps":           {latent(func(m *engine.Mixer) { m.Conv = 3 }), "layer 1 is attention over a latent, and sets"},
		"keys of a latent": {func(d *engine.ModelDesc) {
			latent(nil)(d)
			d.Layers[0], d.Layers[1] = d.Layers[1], d.Layers[0]
			d.Layers[1].Mixer.KVLayer = 1
		}, "layer 1 reads the keys of layer 0"},
		"attention with a latent":         {func(d *engine.ModelDesc) { d.Layers[1].Mixer.Latent = 3 }, "layer 1 is attention, and has a latent"},
		"a delta rule with a latent":      {delta(func(m *engine.Mixer) { m.QueryLatent = 3 }), "layer 1 carries a state, and sets"},
		"a kind of mixer that is unknown": {func(d *engine.ModelDesc) { d.Layers[1].Mixer.Kind = 0 }, "layer 1 mixer kind is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			d := desc().Model()
			tc.spoil(&d)
			err := CheckModel(&d)
			require.ErrorIs(t, err, engine.ErrInvalid)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestBlocksThatAreNotBuiltAreRefusedByName(t *testing.T) {
	for want, spoil := range map[string]func(*engine.ModelDesc){
		"model has no layer of attention": func(d *engine.ModelDesc) {
			for i := range d.Layers {
				d.Layers[i].Mixer = engine.Mixer{Kind: engine.MixConv, Conv: 3, Rope: engine.NoRope}
			}
		},
		"layer 0 value dim is 8 and key dim 16, which": func(d *engine.ModelDesc) { d.Layers[0].Mixer.ValueDim = 8 },
	} {
		d := desc().Model()
		spoil(&d)
		err := CheckModel(&d)
		require.ErrorIs(t, err, engine.ErrUnsupported)
		require.ErrorContains(t, err, want)
	}
}

// experts spoils the experts of a legal mixture in layer 1.
func experts(spoil func(*engine.Experts)) func(*engine.ModelDesc) {
	return func(d *engine.ModelDesc) {
		m := &d.Layers[1].MLP
		m.Kind, m.Experts = engine.MLPExperts, engine.Experts{Count: 8, Used: 2}
		spoil(&m.Experts)
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
	s := NewSlots(desc().Model(), cfg)
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
	s := NewSlots(desc().Model(), pool())
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
	s := NewSlots(d.Model(), pool())
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
	s := NewSlots(desc().Model(), pool())
	step := &engine.Step{PreOps: []engine.PreOp{{SlotGeneration: 1, Params: plain()}}}
	for _, at := range []int32{0, 2} {
		step.Segments = append(step.Segments, engine.Segment{SlotGeneration: 1, FirstPosition: at, Tokens: []int32{1, 2}, Blocks: []int32{0}})
	}
	require.NoError(t, s.Admit(step, nil))
	step.Segments[1].FirstPosition = 1
	require.ErrorContains(t, s.Admit(step, nil), "inside an earlier segment")
}

func TestAMaskIsThereOrComesLate(t *testing.T) {
	s := NewSlots(desc().Model(), pool())
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
	d := desc().Model()
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
	require.EqualValues(t, 2*2*2*16*(16+4), BlockBytes(&d, c, false), "a byte an element, and a scale for each head of each token")
}
