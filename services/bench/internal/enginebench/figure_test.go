package enginebench

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/gauge"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

func TestFiguresAreFoundByModelCachePromptClassAndBatch(t *testing.T) {
	r := &Report{
		Model: Model{File: "/models/llama-1b-q8_0.gguf"}, Prompt: 128, Device: Device{KV: "f16"},
		Load: Load{Verified: stats.Spread{Median: 3e9}, Ready: stats.Spread{Median: 2e9}},
		Lines: []Line{
			{Class: "prefill", Batch: 1, TokensPerSecond: stats.Spread{Median: 700}, ReadShare: 0.1, OpsShare: 0.6},
			{Class: "decode", Batch: 8, TokensPerSecond: stats.Spread{Median: 70}, OpsShare: 0.2},
		},
		Mixes: []Mix{{Mix: gauge.Mix{Sequences: 64, Prompt: 128, Tokens: 256}, Generated: stats.Spread{Median: 9000}, Idle: 0.25}},
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

func TestFiguresOfAModelOnTwoGPUsAreNotThoseOfOne(t *testing.T) {
	r := &Report{
		Model: Model{File: "llama-8b-bf16.gguf"}, Prompt: 128, Device: Device{KV: "f16", Devices: 2},
		Load:  Load{Verified: stats.Spread{Median: 3e9}},
		Lines: []Line{{Class: "decode", Batch: 1, TokensPerSecond: stats.Spread{Median: 388}}},
		Mixes: []Mix{{Mix: gauge.Mix{Sequences: 64, Prompt: 128, Tokens: 256}, Generated: stats.Spread{Median: 9000}}},
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
