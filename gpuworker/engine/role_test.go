package engine_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// plain is a model of one layer whose sizes are different primes.
func plain() engine.ModelDesc {
	return engine.Uniform{Layers: 1, Hidden: 2, Heads: 3, KVHeads: 5, HeadDim: 7, FFN: 11, Vocab: 13}.Model()
}

// stacks have a matrix or a vector for each expert.
var stacks = map[engine.Role]bool{
	engine.RoleExpertGate: true, engine.RoleExpertUp: true, engine.RoleExpertDown: true,
	engine.RoleExpertGateBias: true, engine.RoleExpertUpBias: true, engine.RoleExpertDownBias: true,
}

// byHead have a matrix for each head.
var byHead = map[engine.Role]bool{engine.RoleKUp: true, engine.RoleVUp: true}

func TestTableHasEveryRole(t *testing.T) {
	names := map[string]bool{}
	d := plain()
	d.LayerInputWidth, d.Layers[0].Mixer.Conv = 17, 29
	d.Layers[0].Mixer.Latent, d.Layers[0].Mixer.QueryLatent = 31, 37
	d.Ropes[0].Dims = 4
	d.Layers[0].MLP.Experts = engine.Experts{Count: 19, Used: 2, SharedWidth: 23}
	var outer []engine.Role
	for role := range engine.RoleCount {
		require.True(t, role.Known())
		require.NotEmpty(t, role.String())
		require.False(t, names[role.String()], "%v stands twice", role)
		names[role.String()] = true
		dims := role.Dims(&d, 0)
		if role == engine.RoleMixConv {
			require.Equal(t, int64(2*5*7+3*7), dims[len(dims)-1], "%v: one for each column", role)
			dims = dims[:len(dims)-1]
		}
		if stacks[role] {
			require.Equal(t, int64(19), dims[len(dims)-1], "%v: one for each expert", role)
			dims = dims[:len(dims)-1]
		}
		if byHead[role] {
			require.Equal(t, int64(3), dims[len(dims)-1], "%v: one for each head", role)
			dims = dims[:len(dims)-1]
		}
		require.Equal(t, role.Vector(), len(dims) == 1, "%v", role)
		for _, n := range dims {
			require.Positive(t, n)
		}
		if !role.InLayer() {
			outer = append(outer, role)
		}
	}
	require.Equal(t, []engine.Role{engine.RoleEmbedding, engine.RoleOutputNorm, engine.RoleOutput,
		engine.RoleLayerInputEmbedding, engine.RoleLayerInputProjection, engine.RoleLayerInputNorm}, outer)
	require.Equal(t, []int64{2, 19}, engine.RoleRouter.Dims(&d, 0))
	require.Equal(t, []int64{2, 11, 19}, engine.RoleExpertUp.Dims(&d, 0))
	require.Equal(t, []int64{11, 2, 19}, engine.RoleExpertDown.Dims(&d, 0))
	require.Equal(t, []int64{2, 19}, engine.RoleExpertDownBias.Dims(&d, 0), "of what an expert returns")
	require.Equal(t, []int64{23, 2}, engine.RoleSharedDown.Dims(&d, 0))
	require.Equal(t, []int64{2, 35}, engine.RoleK.Dims(&d, 0))
	require.Equal(t, []int64{21, 2}, engine.RoleO.Dims(&d, 0))
	require.Equal(t, []int64{29, 2*35 + 21}, engine.RoleMixConv.Dims(&d, 0))
	require.Equal(t, []int64{2, 2*35 + 21}, engine.RoleMixIn.Dims(&d, 0), "queries and keys of the key heads, and values")
	require.Equal(t, []int64{21, 2}, engine.RoleMixOut.Dims(&d, 0))
	d.Layers[0].Mixer.Kind = engine.MixConv
	require.Equal(t, []int64{29, 2}, engine.RoleMixConv.Dims(&d, 0))
	require.Equal(t, []int64{2, 6}, engine.RoleMixIn.Dims(&d, 0), "three parts")
	require.Equal(t, []int64{2, 2}, engine.RoleMixOut.Dims(&d, 0))
	require.Equal(t, []int64{2, 37}, engine.RoleQDown.Dims(&d, 0))
	require.Equal(t, []int64{37}, engine.RoleQLatentNorm.Dims(&d, 0))
	require.Equal(t, []int64{37, 21}, engine.RoleQUp.Dims(&d, 0))
	require.Equal(t, []int64{2, 31 + 4}, engine.RoleKVDown.Dims(&d, 0), "the latent and the rotated key")
	require.Equal(t, []int64{31}, engine.RoleKVLatentNorm.Dims(&d, 0))
	require.Equal(t, []int64{7 - 4, 31, 3}, engine.RoleKUp.Dims(&d, 0), "from the part without rotation to the latent")
	require.Equal(t, []int64{31, 7, 3}, engine.RoleVUp.Dims(&d, 0))
	d.Layers[0].Mixer.Kind, d.Layers[0].Mixer.OutGate = engine.MixAttention, true
	require.Equal(t, []int64{2, 42}, engine.RoleQ.Dims(&d, 0), "with its gates")
	d.Layers[0].Mixer.OutGate = false
	d.Layers[0].Mixer.ValueDim = 17
	require.Equal(t, []int64{2, 85}, engine.RoleV.Dims(&d, 0))
	require.Equal(t, []int64{51, 2}, engine.RoleO.Dims(&d, 0), "O reads values")
	require.Equal(t, []int64{7}, engine.RoleQNorm.Dims(&d, 0))
	d.Layers[0].Mixer.QKRowNorm = true
	require.Equal(t, []int64{21}, engine.RoleQNorm.Dims(&d, 0))
	require.Equal(t, []int64{35}, engine.RoleKNorm.Dims(&d, 0))
	for _, unknown := range []engine.Role{-1, engine.RoleCount} {
		require.False(t, unknown.Known())
		require.Contains(t, unknown.String(), "role ")
	}
}

func TestLayerSelectsTheTensors(t *testing.T) {
	for role, set := range map[engine.Role]func(*engine.Layer){
		engine.RoleQBias:       func(l *engine.Layer) { l.Mixer.QKVBias = true },
		engine.RoleKBias:       func(l *engine.Layer) { l.Mixer.QKVBias = true },
		engine.RoleVBias:       func(l *engine.Layer) { l.Mixer.QKVBias = true },
		engine.RoleOBias:       func(l *engine.Layer) { l.Mixer.OutBias = true },
		engine.RoleQNorm:       func(l *engine.Layer) { l.Mixer.QKNorm = true },
		engine.RoleKNorm:       func(l *engine.Layer) { l.Mixer.QKRowNorm = true },
		engine.RoleAttnEndNorm: func(l *engine.Layer) { l.Mixer.EndNorm = true },
		engine.RoleSinks:       func(l *engine.Layer) { l.Mixer.Sinks = true },
		engine.RoleFFNEndNorm:  func(l *engine.Layer) { l.MLP.EndNorm = true },
		engine.RoleLayerScale:  func(l *engine.Layer) { l.OutputScale = true },
	} {
		d := plain()
		require.False(t, role.Of(&d, 0), "%v", role)
		set(&d.Layers[0])
		require.True(t, role.Of(&d, 0), "%v", role)
	}
	for role, set := range map[engine.Role]func(*engine.Experts){
		engine.RoleRouterBias:     func(e *engine.Experts) { e.RouterBias = true },
		engine.RoleChoiceBias:     func(e *engine.Experts) { e.ChoiceBias = true },
		engine.RoleExpertGateBias: func(e *engine.Experts) { e.Bias = true },
		engine.RoleExpertUpBias:   func(e *engine.Experts) { e.Bias = true },
		engine.RoleExpertDownBias: func(e *engine.Experts) { e.Bias = true },
		engine.RoleExpertScale:    func(e *engine.Experts) { e.Scales = true },
		engine.RoleSharedGate:     func(e *engine.Experts) { e.SharedWidth = 1 },
		engine.RoleSharedUp:       func(e *engine.Experts) { e.SharedWidth = 1 },
		engine.RoleSharedDown:     func(e *engine.Experts) { e.SharedWidth = 1 },
		engine.RoleSharedRouter:   func(e *engine.Experts) { e.SharedWidth, e.SharedGate = 1, true },
		engine.RoleRouterNorm:     func(e *engine.Experts) { e.SharedWidth, e.Apart = 1, true },
		engine.RoleExpertNorm:     func(e *engine.Experts) { e.SharedWidth, e.Apart = 1, true },
		engine.RoleExpertEndNorm:  func(e *engine.Experts) { e.SharedWidth, e.Apart = 1, true },
		engine.RoleSharedEndNorm:  func(e *engine.Experts) { e.SharedWidth, e.Apart = 1, true },
	} {
		d := plain()
		mlp := &d.Layers[0].MLP
		set(&mlp.Experts)
		require.False(t, role.Of(&d, 0), "%v of a dense MLP", role)
		mlp.Kind, mlp.Experts = engine.MLPExperts, engine.Experts{Count: 3, Used: 2}
		require.False(t, role.Of(&d, 0), "%v", role)
		set(&mlp.Experts)
		require.True(t, role.Of(&d, 0), "%v", role)
	}
	for role := engine.RoleLayerInputEmbedding; role <= engine.RoleLayerInputEndNorm; role++ {
		d := plain()
		require.False(t, role.Of(&d, 0), "%v", role)
		d.LayerInputWidth = 1
		require.True(t, role.Of(&d, 0), "%v", role)
	}
	latent := []engine.Role{engine.RoleKVDown, engine.RoleKVLatentNorm, engine.RoleKUp, engine.RoleVUp}
	for _, role := range append(latent, engine.RoleQDown, engine.RoleQLatentNorm, engine.RoleQUp) {
		d := plain()
		d.Layers[0].Mixer.QueryLatent = 3
		require.False(t, role.Of(&d, 0), "%v of attention of another kind", role)
		d.Layers[0].Mixer.Kind = engine.MixLatent
		require.True(t, role.Of(&d, 0), "%v", role)
		require.False(t, engine.RoleQ.Of(&d, 0), "Q reads its latent")
		require.True(t, engine.RoleO.Of(&d, 0))
		d.Layers[0].Mixer.QueryLatent = 0
		require.Equal(t, slices.Contains(latent, role), role.Of(&d, 0), "%v", role)
		require.True(t, engine.RoleQ.Of(&d, 0))
	}
	for role, clear := range map[engine.Role]func(*engine.ModelDesc, *engine.Layer){
		engine.RoleOutput:   func(d *engine.ModelDesc, _ *engine.Layer) { d.TiedHead = true },
		engine.RoleAttnNorm: func(_ *engine.ModelDesc, l *engine.Layer) { l.Mixer.NoNorm = true },
		engine.RoleFFNNorm:  func(_ *engine.ModelDesc, l *engine.Layer) { l.MLP.NoNorm = true },
		engine.RoleK:        func(_ *engine.ModelDesc, l *engine.Layer) { l.Mixer.KVLayer = 1 },
		engine.RoleV:        func(_ *engine.ModelDesc, l *engine.Layer) { l.Mixer.ValueIsKey = true },
		engine.RoleGate:     func(_ *engine.ModelDesc, l *engine.Layer) { l.MLP.Kind = engine.MLPExperts },
		engine.RoleUp:       func(_ *engine.ModelDesc, l *engine.Layer) { l.MLP.Kind = engine.MLPExperts },
		engine.RoleDown:     func(_ *engine.ModelDesc, l *engine.Layer) { l.MLP.Kind = engine.MLPExperts },
	} {
		d := plain()
		require.True(t, role.Of(&d, 0), "%v", role)
		clear(&d, &d.Layers[0])
		require.False(t, role.Of(&d, 0), "%v", role)
	}
}
