package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// differences are those of an error.
func differences(t *testing.T, err error) []Difference {
	t.Helper()
	var e *OptionsError
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, ErrOptions)
	return e.All
}

// A load of a loaded model is refused with both values if it sets an option to another value than
// the model has.
func TestLoadedModelRefusesOtherOptions(t *testing.T) {
	m, _ := manager(t, 1<<30)
	f32, f16 := engine.F32, engine.F16
	made := Options{Context: 128, KVTokens: 1000, KVType: &f32, MaxSequences: 4}
	inst, _, err := m.Load(t.Context(), "small", made, nil)
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		options Options
		differ  []Difference // nil: it is taken
	}{
		"none set":                     {Options{}, nil},
		"the same":                     {made, nil},
		"one of them":                  {Options{MaxSequences: 4}, nil},
		"as many blocks":               {Options{KVTokens: 1008}, nil},
		"what is reported":             {Options{KVTokens: uint64(inst.Runner.KVBlocks * inst.Runner.BlockSize), Context: uint32(inst.Context)}, nil},
		"another context":              {Options{Context: 64}, []Difference{{"context_length", "128", "64"}}},
		"a context beyond the model's": {Options{Context: 100_000}, []Difference{{"context_length", "128", "100000"}}},
		"a block more":                 {Options{KVTokens: 1009}, []Difference{{"kv_tokens", "1008", "1009"}}},
		"another type":                 {Options{KVType: &f16}, []Difference{{"kv_type", "f32", "f16"}}},
		"several": {
			Options{Context: 128, MaxSequences: 2, KVType: &f16},
			[]Difference{{"kv_type", "f32", "f16"}, {"max_sequences", "4", "2"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pin := true
			tc.options.Pin = &pin
			got, already, err := m.Load(t.Context(), "small", tc.options, nil)
			defer func() { inst.touch(new(bool)) }()
			if tc.differ == nil {
				require.NoError(t, err)
				require.Same(t, inst, got)
				require.True(t, already)
				require.True(t, inst.Status().Pinned)
				return
			}
			require.Equal(t, tc.differ, differences(t, err))
			require.False(t, inst.Status().Pinned, "a load that is refused pins nothing")
		})
	}
}

// A load that joins another one is refused at once if both set an option to different values, and
// at the end of the load if the model then has another value. The running load continues.
func TestLoadUnderWayRefusesOtherOptions(t *testing.T) {
	m, _ := manager(t, 1<<30)
	require.NoError(t, m.loadSlot.Acquire(t.Context(), 1))
	first := loading(m, Options{Context: 128})
	require.Eventually(t, func() bool { return listed(m) == 1 }, time.Minute, time.Millisecond)
	_, _, err := m.Load(t.Context(), "small", Options{Context: 64}, nil)
	require.Equal(t, []Difference{{"context_length", "128", "64"}}, differences(t, err))
	require.ErrorContains(t, err, "is being loaded with")
	m.loadSlot.Release(1)
	f16 := engine.F16
	_, _, err = m.Load(t.Context(), "small", Options{KVType: &f16, MaxSequences: 3}, nil)
	require.NoError(t, <-first)
	all := differences(t, err)
	require.Equal(t, "max_sequences", all[len(all)-1].Name)
	require.Equal(t, "3", all[len(all)-1].Want)
	_, _, err = m.Load(t.Context(), "small", Options{Context: 128}, nil)
	require.NoError(t, err)
}

// A load that it joined fails with another caller's impossible option; a caller without options
// does not.
func TestBadOptionFailsNoOtherCaller(t *testing.T) {
	m, _ := manager(t, 1<<30)
	require.NoError(t, m.loadSlot.Acquire(t.Context(), 1))
	first := loading(m, Options{Context: 100_000})
	require.Eventually(t, func() bool { return listed(m) == 1 }, time.Minute, time.Millisecond)
	joined, stages := make(chan error, 1), make(chan Stage, 100)
	go func() {
		_, _, err := m.Load(t.Context(), "small", Options{}, func(p Progress) { stages <- p.Stage })
		joined <- err
	}()
	require.Equal(t, Queued, <-stages)
	m.loadSlot.Release(1)
	require.ErrorIs(t, <-first, ErrOption)
	require.NoError(t, <-joined)
}
