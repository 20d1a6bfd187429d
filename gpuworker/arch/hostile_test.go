package arch_test

import (
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine/rules"
	"github.com/millrace/millrace/gpuworker/synth"
)

// hostile are values of every type and size, for keys that want others.
var hostile = []any{
	uint32(0), uint32(1), uint32(2), uint32(3), uint32(7), uint32(46), uint32(62), uint32(64), uint32(4096), uint32(1 << 24), uint32(math.MaxUint32),
	uint64(1 << 60), int32(-1), float32(0), float32(1e-9), float32(1), float32(3e38), float32(math.Inf(1)), float32(math.NaN()), float32(-2), true, false,
	"yarn", "linear", "none", "longrope", "x", []bool{}, []bool{true}, slices.Repeat([]bool{true, false}, 4), []int32{}, []int32{0}, []int32{-1, 1 << 30},
	slices.Repeat([]int32{2}, 8), slices.Repeat([]int32{0}, 64), []uint64{1 << 63}, []string{"a"}, []float32{1},
}

func TestWideHeadsAreRefusedEarly(t *testing.T) {
	// Divisors of YaRN are made of keys alone, so a small file could ask for as much memory as a head
	// is wide.
	shape, _ := synth.Small("mistral3")
	keys := maps.Clone(shape.Family.Keys)
	maps.Copy(keys, map[string]any{"attention.key_length": uint32(1 << 24), "attention.value_length": uint32(1 << 24), "rope.dimension_count": uint32(1 << 24)})
	file := header(t, "mistral3", keys, shape.Family.Tensors, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := arch.Describe(file, "mistral3")
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, arch.ErrInvalidModel)
	require.ErrorContains(t, err, "heads have 16777216 dimensions, want at most 4096")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

func TestHostileKeysGiveErrorsNotPanics(t *testing.T) {
	// A file with up to four absurd values is refused, or it gives a description that is legal but for
	// its size, which engines refuse by name.
	rng := rand.New(rand.NewPCG(7, 8))
	accepted := 0
	for _, name := range smallModels() {
		shape, ok := synth.Small(name)
		require.True(t, ok)
		keys := slices.Concat(slices.Collect(maps.Keys(shape.Family.Keys)), slices.Collect(maps.Keys(changing)), []string{
			"rope.scaling.finetuned", "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast"})
		slices.Sort(keys)
		for range 300 {
			changed := maps.Clone(shape.Family.Keys)
			for range 1 + rng.IntN(4) {
				changed[keys[rng.IntN(len(keys))]] = hostile[rng.IntN(len(hostile))]
			}
			layout, err := arch.Describe(header(t, shape.Architecture, changed, shape.Family.Tensors, divisorsOf(shape.Family)), shape.Architecture)
			if err != nil {
				continue
			}
			accepted++
			if err := rules.CheckModel(&layout.Desc); err != nil {
				require.ErrorContains(t, err, "is 16777216, want 1 to", "%s with %v", name, changed)
			}
		}
	}
	require.Greater(t, accepted, 50, "some files are legal")
}
