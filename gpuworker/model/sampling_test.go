package model

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

func TestSamplingRecommendationsOfAFile(t *testing.T) {
	read := func(key string, value any) Sampling {
		t.Helper()
		path := filepath.Join(t.TempDir(), "x.gguf")
		require.NoError(t, os.WriteFile(path, edited(t, key, value), 0o644))
		f, err := gguf.Open(path)
		require.NoError(t, err)
		defer func() { require.NoError(t, f.Close()) }()
		facts, err := readFacts(f, simulated(t))
		require.NoError(t, err, "no file is refused for its advice")
		return facts.Sampling
	}
	float := func(v float32) *float32 { return &v }
	whole := func(v int32) *int32 { return &v }
	for name, tc := range map[string]struct {
		key   string
		value any
		want  Sampling
	}{
		"none":                   {"general.name", "x", Sampling{}},
		"a temperature":          {"general.sampling.temp", float32(0.6), Sampling{Temperature: float(0.6)}},
		"greedy":                 {"general.sampling.temp", float32(-1), Sampling{Temperature: float(0)}},
		"an integer temperature": {"general.sampling.temp", int32(1), Sampling{Temperature: float(1)}},
		"a top k":                {"general.sampling.top_k", int32(20), Sampling{TopK: whole(20)}},
		"a top k of all":         {"general.sampling.top_k", int32(-1), Sampling{TopK: whole(0)}},
		"a top k beyond all":     {"general.sampling.top_k", int32(1 << 30), Sampling{TopK: whole(0)}},
		"a top p":                {"general.sampling.top_p", 0.95, Sampling{TopP: float(0.95)}},
		"a min p":                {"general.sampling.min_p", float32(0), Sampling{MinP: float(0)}},
		"a penalty":              {"general.sampling.penalty_repeat", float32(1.05), Sampling{RepetitionPenalty: float(1.05)}},
		"a window":               {"general.sampling.penalty_last_n", int32(-1), Sampling{PenaltyWindow: whole(-1)}},
		"out of range":           {"general.sampling.temp", float32(500), Sampling{Unapplied: []string{"general.sampling.temp is 500, want 0 to 100"}}},
		"a share of nothing":     {"general.sampling.top_p", float32(0), Sampling{Unapplied: []string{"general.sampling.top_p is 0, want a number above 0 and at most 1"}}},
		"half a window": {"general.sampling.penalty_last_n", float32(0.5),
			Sampling{Unapplied: []string{"general.sampling.penalty_last_n is 0.5, want a whole number of at least -1"}}},
		"another sampler": {"general.sampling.mirostat", int32(2), Sampling{Unapplied: []string{"general.sampling.mirostat needs a feature that Millrace lacks"}}},
		"an order":        {"general.sampling.sequence", "dkpmt", Sampling{Unapplied: []string{"general.sampling.sequence needs a feature that Millrace lacks"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := read(tc.key, tc.value)
			require.Equal(t, tc.want, got)
			require.Equal(t, got.Temperature == nil && got.TopK == nil && got.TopP == nil && got.MinP == nil &&
				got.RepetitionPenalty == nil && got.PenaltyWindow == nil, got.Empty())
		})
	}
}
