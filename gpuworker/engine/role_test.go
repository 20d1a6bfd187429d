package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestEveryRoleStandsInTheTable(t *testing.T) {
	names := map[string]bool{}
	d := engine.ModelDesc{Hidden: 2, Heads: 3, KVHeads: 5, HeadDim: 7, FFN: 11, Vocab: 13, RopeDims: 34}
	outer := 0
	for role := range engine.RoleCount {
		require.True(t, role.Known())
		require.NotEmpty(t, role.String())
		require.False(t, names[role.String()], "%v stands twice", role)
		names[role.String()] = true
		require.Equal(t, role.Vector(), len(role.Dims(d)) == 1)
		for _, n := range role.Dims(d) {
			require.Positive(t, n)
		}
		if !role.InLayer() {
			require.Equal(t, outer, int(role), "outer roles come first")
			outer++
		}
	}
	require.Equal(t, 4, outer)
	require.Equal(t, []int64{2, 35}, engine.RoleK.Dims(d))
	require.Equal(t, []int64{21, 2}, engine.RoleO.Dims(d))
	require.Equal(t, []int64{17}, engine.RoleRopeFactors.Dims(d))
	for _, unknown := range []engine.Role{-1, engine.RoleCount} {
		require.False(t, unknown.Known())
		require.Contains(t, unknown.String(), "role ")
	}
}

func TestAModelHasTheTensorsThatItsShapeSays(t *testing.T) {
	for role, d := range map[engine.Role]engine.ModelDesc{
		engine.RoleRopeFactors: {RopeFactors: true}, engine.RoleQBias: {QKVBias: true}, engine.RoleKBias: {QKVBias: true},
		engine.RoleVBias: {QKVBias: true}, engine.RoleOBias: {OBias: true}, engine.RoleQNorm: {QKNorm: true}, engine.RoleKNorm: {QKNorm: true},
	} {
		require.True(t, role.Of(d), "%v", role)
		require.False(t, role.Of(engine.ModelDesc{}), "%v", role)
	}
	require.True(t, engine.RoleOutput.Of(engine.ModelDesc{}))
	require.False(t, engine.RoleOutput.Of(engine.ModelDesc{TiedHead: true}))
	require.True(t, engine.RoleDown.Of(engine.ModelDesc{}))
}
