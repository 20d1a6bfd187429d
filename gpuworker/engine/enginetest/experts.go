package enginetest

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// testExperts checks mixtures at the edges: many rows, least widths, and numbers that are not
// finite.
func testExperts(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	dev := open(t, opener)
	t.Run("more rows of experts than are computed at once", func(t *testing.T) { manyExpertRows(t, dev, opts) })
	for name, e := range map[string]engine.Experts{
		"one expert":           {Count: 1, Used: 1, Renorm: true},
		"one shared dimension": {Count: 3, Used: 3, SharedWidth: 1, SharedGate: true},
		"groups of one":        {Count: 5, Used: 2, Groups: 5, GroupsUsed: 2, GroupBestTwo: true, Gating: engine.GateSigmoid},
		"all of the most":      {Count: 4096, Used: 4096, Gating: engine.GateSigmoid, Renorm: true},
		"one group":            {Count: 5, Used: 5, Groups: 1, GroupsUsed: 1, ChoiceBias: true},
	} {
		t.Run(name, func(t *testing.T) {
			tinyModel{desc: leastExperts(e), weights: engine.F32, seed: 61, prompt: 21, slack: 3}.checkExact(t, dev, opts)
		})
	}
	for name, types := range map[string]func(engine.Role) engine.Type{
		"F32": all(engine.F32), "BF16": bf16Matrices, "MXFP4": withMXFP4(all(engine.F32)),
	} {
		t.Run("a token that is not a number fails alone, experts of "+name, func(t *testing.T) { nanAmongExperts(t, dev, types) })
	}
	nan, infinity := math.NaN(), math.Inf(1)
	for name, tc := range map[string]notFinite{
		"a router that is not a number":       {role: engine.RoleRouter, values: []float64{nan}, fails: true},
		"a router of infinities":              {role: engine.RoleRouter, values: []float64{infinity}, fails: true},
		"a router bias that is not a number":  {role: engine.RoleRouterBias, values: []float64{nan}, fails: true},
		"a choice bias that is not a number":  {role: engine.RoleChoiceBias, values: []float64{0, 0, 0, 0, 0, nan}, fails: true},
		"a choice bias of infinity":           {role: engine.RoleChoiceBias, values: []float64{infinity, 0, 0, 0, 0, 0}},
		"choice biases that bar experts":      {role: engine.RoleChoiceBias, values: []float64{0, -infinity, 0}},
		"groups whose scores are not numbers": {role: engine.RoleChoiceBias, values: []float64{infinity, -infinity, -infinity}, fails: true},
		"sinks that are not numbers":          {role: engine.RoleSinks, values: []float64{nan}, fails: true},
		"sinks of infinity":                   {role: engine.RoleSinks, values: []float64{infinity}, fails: true},
		"sinks of minus infinity":             {role: engine.RoleSinks, values: []float64{-infinity}},
	} {
		t.Run(name, func(t *testing.T) { tc.check(t, dev) })
	}
	t.Run("sinks of keys that threads share", func(t *testing.T) { farSinks().checkExact(t, dev, opts) })
	t.Run("rows of experts need no room for wider layers", func(t *testing.T) { expertRoom(t, dev) })
	t.Run("bytes of experts count once a step", func(t *testing.T) { expertBytes(t, dev) })
}

func bf16Matrices(role engine.Role) engine.Type {
	if role == engine.RoleEmbedding {
		return engine.F32
	}
	return engine.BF16
}

// unlikeExperts is a model whose layers have unlike MLPs: a dense one, many narrow experts, few
// wide ones with a shared one that is wider than the dense MLP, and few very narrow ones. All
// experts are used.
func unlikeExperts() engine.ModelDesc {
	shape := Small()
	shape.Layers = 4
	d := shape.Model()
	for i, mlp := range []engine.MLP{
		{Width: 24, Experts: engine.Experts{Count: 24, Used: 24, Renorm: true}},
		{Width: 120, Experts: engine.Experts{Count: 2, Used: 2, SharedWidth: 300}},
		{Width: 5, Experts: engine.Experts{Count: 3, Used: 3, Gating: engine.GateSigmoid, ChoiceBias: true}},
	} {
		mlp.Kind = engine.MLPExperts
		d.Layers[1+i].MLP = mlp
	}
	return d
}

// leastExperts is a model of experts of width 1.
func leastExperts(e engine.Experts) engine.ModelDesc {
	shape := Small()
	shape.Hidden, shape.FFN, shape.Heads, shape.KVHeads = 3, 1, 1, 1
	d := shape.Model()
	for i := range d.Layers {
		d.Layers[i].MLP.Kind, d.Layers[i].MLP.Experts = engine.MLPExperts, e
	}
	return d
}

// farSinks is a model with sinks and enough keys that the threads share those of a row.
func farSinks() tinyModel {
	shape := engine.Uniform{
		Layers: 2, Hidden: 16, Heads: 2, KVHeads: 1, HeadDim: 4, FFN: 16, Vocab: 37, Context: 2400, RopeDims: 4,
		RopeBase: 10000, RopeScale: 1, NormEps: 1e-5,
	}
	d := shape.Model()
	for i := range d.Layers {
		d.Layers[i].Mixer.Sinks = true
	}
	d.Layers[1].Mixer.Window = 300
	return tinyModel{desc: d, weights: engine.F32, seed: 65, prompt: 2200, slack: 3}
}

// checkExact is check with the most exact cache alone.
func (m tinyModel) checkExact(t *testing.T, dev engine.Device, opts Options) (engine.Model, *tinyReference) {
	t.Helper()
	want, err := m.reference()
	require.NoError(t, err)
	model := Load(t, dev, want.weights)
	m.checkCache(t, model, want, opts.caches(&m.desc)[0], opts)
	return model, want
}

// manyExpertRows computes 300 tokens with 24 experts each in one step and in smaller ones.
func manyExpertRows(t *testing.T, dev engine.Device, opts Options) {
	t.Helper()
	model := tinyModel{desc: unlikeExperts(), weights: engine.F32, seed: 62, prompt: 300, slack: 3}
	m, want := model.checkExact(t, dev, opts)
	cfg := Sizes()
	cfg.MaxBatchedTokens, cfg.MaxScoreRows = 400, 400
	request := Request{Prompt: want.prompt, Tokens: 2, Params: Plain(1, 0), Score: true}
	whole, err := Play(m, cfg, request)
	require.NoError(t, err)
	for _, chunk := range []int{170, 171, 64, 3} { // 4080 rows, 4104, and fewer
		request.Chunk = chunk
		got, err := Play(m, cfg, request)
		require.NoError(t, err)
		require.NoError(t, whole[0].equal(got[0]), "in chunks of %d", chunk)
	}
}

// nanAmongExperts gives a token an embedding that is not a number. Its row shares the step, and
// experts, with others.
func nanAmongExperts(t *testing.T, dev engine.Device, types func(engine.Role) engine.Type) {
	t.Helper()
	shape := Small()
	shape.Hidden, shape.FFN = 96, 64
	w := Random(grouped(mixture(shape.Model(), 6, 2)), types, 63)
	const bad, good = 7, 8
	embedding := tensorOf(w, engine.RoleEmbedding)
	for i := range shape.Hidden {
		putFloat(embedding, bad*shape.Hidden+i, math.NaN())
	}
	m := Load(t, dev, w)
	want, got := oneEach(t, m, 20, 21, good, 23, 24, 25), oneEach(t, m, 20, 21, bad, 23, 24, 25)
	for i := range want {
		require.Equal(t, engine.RowOK, want[i].Status)
		if i == 2 {
			require.Equal(t, engine.RowNaN, got[i].Status)
			continue
		}
		require.Equal(t, want[i], got[i], "row %d", i)
	}
}

// notFinite sets the numbers of a tensor to values, over and over.
type notFinite struct {
	role   engine.Role
	values []float64
	fails  bool // no row is a number; else all are
}

func (n notFinite) check(t *testing.T, dev engine.Device) {
	t.Helper()
	d := grouped(mixture(Small().Model(), 6, 2))
	for i := range d.Layers {
		d.Layers[i].Mixer.Sinks = true
		d.Layers[i].MLP.Experts.RouterBias = d.Layers[i].MLP.Experts.Count > 0
	}
	w := Random(d, all(engine.F32), 64)
	data := tensorOf(w, n.role)
	for i := range len(data) / 4 {
		putFloat(data, i, n.values[i%len(n.values)])
	}
	want := engine.RowOK
	if n.fails {
		want = engine.RowNaN
	}
	for _, row := range oneEach(t, Load(t, dev, w), 20, 21, 22) {
		require.Equal(t, want, row.Status)
	}
}

// oneEach returns the sample rows of a step in which each slot has one token.
func oneEach(t *testing.T, m engine.Model, tokens ...int32) []engine.RowResult {
	t.Helper()
	r := NewRunner(t, m, Sizes())
	step := &engine.Step{}
	for i, token := range tokens {
		slot := int32(i)
		step.PreOps = append(step.PreOps, set(slot, 1, Plain(1, 0)))
		step.Segments = append(step.Segments, engine.Segment{Slot: slot, SlotGeneration: 1, Tokens: []int32{token}, Blocks: []int32{slot}})
		step.Samples = append(step.Samples, engine.SampleRow{TokenIndex: slot, Slot: slot, SlotGeneration: 1, Position: 1})
	}
	require.NoError(t, r.Submit(step))
	result, err := r.Wait(guard)
	require.NoError(t, err)
	return cloneRows(result.Samples)
}

// expertRoom checks that a wide dense layer costs as much memory with experts as without them, in a
// model that is not whole yet: a worker plans with that cost.
func expertRoom(t *testing.T, dev engine.Device) {
	t.Helper()
	workspace := func(dense int, experts bool) int64 {
		d := Small().Model()
		d.Layers[0].MLP.Width, d.Layers[1].MLP.Width = dense, 64
		if experts {
			d = mixture(d, 8, 2)
		}
		m, err := dev.NewModel(d)
		require.NoError(t, err)
		cost, err := m.RunnerCost(Sizes())
		require.NoError(t, err)
		require.NoError(t, m.Close())
		return int64(cost.WorkspaceBytes)
	}
	require.Equal(t, workspace(8192, false)-workspace(512, false), workspace(8192, true)-workspace(512, true))
	require.Greater(t, workspace(512, true), workspace(512, false))
}

// expertBytes checks that the bytes of a step do not depend on how an engine divides its rows. All
// experts are used, so that other bytes grow by the same number with each token.
func expertBytes(t *testing.T, dev engine.Device) {
	t.Helper()
	m := Load(t, dev, Random(unlikeExperts(), all(engine.F32), 66))
	cfg := Sizes()
	cfg.MaxBatchedTokens, cfg.KVBlocks = 900, 100
	bytes := func(counts ...int) int64 {
		r := NewRunner(t, m, cfg)
		step, block := &engine.Step{}, int32(0)
		for slot, count := range counts {
			step.PreOps = append(step.PreOps, set(int32(slot), 1, Plain(1, 0)))
			segment := engine.Segment{Slot: int32(slot), SlotGeneration: 1, Tokens: numbers(67, count, Small().Vocab)}
			for range (count + cfg.BlockSize - 1) / cfg.BlockSize {
				segment.Blocks = append(segment.Blocks, block)
				block++
			}
			step.Segments = append(step.Segments, segment)
		}
		require.NoError(t, r.Submit(step))
		result, err := r.Wait(guard)
		require.NoError(t, err)
		return int64(result.BytesRead)
	}
	few, many, most := bytes(100), bytes(250, 250), bytes(300, 300, 300)
	require.Equal(t, many-few, most-many, "bytes of 100, 500 and 900 tokens are %d, %d and %d", few, many, most)
	require.Equal(t, many, bytes(1, 499))
	require.Equal(t, many, bytes(1, 1, 498))
	require.Equal(t, many, bytes(1, 8, 25, 466))
}

// tensorOf returns the bytes of the first tensor of a role.
func tensorOf(w *reference.Weights, role engine.Role) []byte {
	for i := range w.Tensors {
		if w.Tensors[i].Role == role {
			return w.Tensors[i].Bytes
		}
	}
	panic("the model has no such tensor")
}

func putFloat(data []byte, i int, v float64) {
	binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(v)))
}
