package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/device"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

func TestLineRelatesTheMedianToTheRoof(t *testing.T) {
	phaseOf := func(d time.Duration) phase {
		return phase{Positions: 10, Samples: 10, Steps: 5, Bytes: 1000, Time: d}
	}
	var roofs device.Roofs
	phases := []phase{phaseOf(4 * time.Second), phaseOf(2 * time.Second), phaseOf(time.Second)}
	l := line("decode", 2, phases, []float64{1000, 1000, 1000}, Work{}, roofs, 199)
	require.InDelta(t, 5, l.TokensPerSecond.Median, 1e-9)
	require.InDelta(t, 2.5, l.TokensPerSecond.Min, 1e-9)
	require.InDelta(t, 10, l.TokensPerSecond.Max, 1e-9)
	require.InDelta(t, 200, l.BytesPerStep, 1e-9)
	require.InDelta(t, 500, l.BytesPerSecond, 1e-9)
	require.InDelta(t, 0.5, l.ReadShare, 1e-9)
	l = line("decode", 2, phases, []float64{250, 2500, 2000}, Work{}, roofs, 199)
	require.InDelta(t, 0.5, l.ReadShare, 1e-9, "the median of 250/250, 500/2500 and 1000/2000")
	l = line("decode", 2, phases, []float64{0, 0, 0}, Work{}, roofs, 199)
	require.Zero(t, l.ReadShare, "no roof is known")
	cached := line("decode", 2, []phase{phaseOf(time.Second)}, []float64{1000}, Work{}, roofs, 200)
	require.Zero(t, cached.ReadShare, "200 bytes a step may all come from a cache of 200")
}

func TestReportFailsALoadWithTooMuchMemory(t *testing.T) {
	m := Memory{DevicePeak: 100, Model: 60, Tensor: 20, KV: 15, Workspace: 5}
	require.NoError(t, (&Report{Load: Load{Memory: m}}).check())
	m.DevicePeak++
	require.ErrorIs(t, (&Report{Load: Load{Memory: m}}).check(), ErrMemory)
}

func TestReportFailsAShareAboveTheRoof(t *testing.T) {
	for name, tc := range map[string]struct {
		line Line
		want string
	}{
		"below":        {Line{Class: "decode", Batch: 1, ReadShare: 0.99, OpsKind: "int8", OpsShare: 0.5}, ""},
		"exactly":      {Line{Class: "decode", Batch: 1, ReadShare: 1}, ""},
		"too much":     {Line{Class: "decode", Batch: 4, ReadShare: 1.01, OpsKind: "int8"}, "decode at batch 4 reaches 101.0 % of the read roof"},
		"operations":   {Line{Class: "prefill", Batch: 1, OpsKind: "bf16", OpsShare: 2}, "prefill at batch 1 reaches 200.0 % of the bf16 roof"},
		"not measured": {Line{Class: "decode", Batch: 1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&Report{Lines: []Line{tc.line}}).check()
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrTooFast)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestFigureFindsRows(t *testing.T) {
	r := &Report{
		Model: Model{File: "/models/llama-1b-q8_0.gguf"}, Prompt: 128, Device: Device{KV: "f16"},
		Load: Load{Verified: stats.Spread{Median: 3e9}, Ready: stats.Spread{Median: 2e9}},
		Lines: []Line{
			{Class: "prefill", Batch: 1, TokensPerSecond: stats.Spread{Median: 700}, ReadShare: 0.1, OpsShare: 0.6},
			{Class: "decode", Batch: 8, TokensPerSecond: stats.Spread{Median: 70}, OpsShare: 0.2},
		},
		Mixes: []MixResult{{Mix: Mix{Sequences: 64, Prompt: 128, Tokens: 256}, Generated: stats.Spread{Median: 9000}, Idle: 0.25}},
	}
	for key, want := range map[[2]string]float64{
		{"llama-1b-q8_0/f16/128/prefill/1", "tokens"}: 700, {"llama-1b-q8_0/f16/128/prefill/1", "read_share"}: 0.1,
		{"llama-1b-q8_0/f16/128/decode/8", "ops_share"}: 0.2, {"llama-1b-q8_0/f16/128/load", "verified_gbps"}: 3,
		{"llama-1b-q8_0/f16/128/load", "ready_gbps"}: 2, {"llama-1b-q8_0/f16/mix/64x128/256", "generated"}: 9000,
		{"llama-1b-q8_0/f16/mix/64x128/256", "busy"}: 0.75,
	} {
		got, known := r.Figure(key[0], key[1])
		require.True(t, known, key)
		require.InDelta(t, want, got, 1e-9, key)
	}
	for _, key := range [][2]string{
		{"llama-1b-q8_0@1/f16/128/decode/8", "tokens"}, {"llama-1b-q8_0/f16/128/decode/8", "read_share"}, {"llama-1b-q8_0/f16/128/decode/1", "tokens"},
		{"llama-1b-q8_0/f16/512/decode/8", "tokens"}, {"llama-1b-q8_0/bf16/128/decode/8", "tokens"},
		{"llama-1b-q8_0/f16/128/load", "tokens"}, {"llama-1b-q8_0/f16/mix/64x128/255", "generated"},
	} {
		_, known := r.Figure(key[0], key[1])
		require.False(t, known, key)
	}
}

func TestFigureNamesTheNumberOfGPUs(t *testing.T) {
	r := &Report{
		Model: Model{File: "llama-8b-bf16.gguf"}, Prompt: 128, Device: Device{KV: "f16", Devices: 2},
		Load:  Load{Verified: stats.Spread{Median: 3e9}},
		Lines: []Line{{Class: "decode", Batch: 1, TokensPerSecond: stats.Spread{Median: 388}}},
		Mixes: []MixResult{{Mix: Mix{Sequences: 64, Prompt: 128, Tokens: 256}, Generated: stats.Spread{Median: 9000}}},
	}
	for key, want := range map[[2]string]float64{
		{"llama-8b-bf16@2/f16/128/decode/1", "tokens"}: 388, {"llama-8b-bf16@2/f16/128/load", "verified_gbps"}: 3,
		{"llama-8b-bf16@2/f16/mix/64x128/256", "generated"}: 9000,
	} {
		got, known := r.Figure(key[0], key[1])
		require.True(t, known, key)
		require.InDelta(t, want, got, 1e-9, key)
		_, known = r.Figure(strings.Replace(key[0], "@2", "", 1), key[1])
		require.False(t, known, key)
	}
}

func TestAnswersNameTheDifference(t *testing.T) {
	known := answers{0: {1, 2, 3}}
	require.NoError(t, known.compare([][]int32{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}))
	require.NoError(t, known.compare([][]int32{{1, 2, 3}, {4, 5, 6}}))
	err := known.compare([][]int32{{1, 2, 3}, {4, 5, 7}, {0, 8, 9}})
	require.ErrorIs(t, err, ErrTokens)
	require.ErrorContains(t, err, "in a batch of 3, 2 sequences")
	require.ErrorContains(t, err, "sequence 1 from token 2 on")
	require.ErrorContains(t, err, "all of them: [1 2]")
	require.ErrorIs(t, known.compare([][]int32{{1, 2}}), ErrTokens, "an answer that ends early is another")
}
