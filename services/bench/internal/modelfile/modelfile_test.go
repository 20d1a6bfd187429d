package modelfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/services/bench/internal/modelfile"
)

var tiny = synth.Shape{Name: "tiny", Architecture: "llama", Desc: engine.Uniform{Layers: 1, Hidden: 64, Heads: 2, FFN: 64, Vocab: 32}}

func TestEnsureWritesAFileOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	told := 0
	tell := func(_ string, size uint64) { told++; require.Positive(t, size) }
	path, err := modelfile.Ensure(dir, tiny, synth.Only(gguf.Q8_0), 3, tell)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "tiny-q8_0-seed3.gguf"), path)
	before, err := os.Stat(path)
	require.NoError(t, err)
	again, err := modelfile.Ensure(dir, tiny, synth.Only(gguf.Q8_0), 3, tell)
	require.NoError(t, err)
	require.Equal(t, path, again)
	after, err := os.Stat(path)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	require.Equal(t, 1, told)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing unfinished is left")
}

func TestEnsureRewritesAnIncompleteFile(t *testing.T) {
	dir := t.TempDir()
	path, err := modelfile.Ensure(dir, tiny, synth.Only(gguf.F16), 1, nil)
	require.NoError(t, err)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, whole[:len(whole)/2], 0o600))
	_, err = modelfile.Ensure(dir, tiny, synth.Only(gguf.F16), 1, nil)
	require.NoError(t, err)
	again, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, whole, again)
}

func TestParseNamesInAnyCase(t *testing.T) {
	for name, want := range map[string]synth.Mix{
		"q8_0": synth.Only(gguf.Q8_0), "Q4_K": synth.Only(gguf.Q4K), "bf16": synth.Only(gguf.BF16), "iq4_nl": synth.Only(gguf.IQ4NL),
		"q4_k_m": synth.Q4KM, "Q5_K_M": synth.Q5KM,
	} {
		got, err := modelfile.ParseType(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := modelfile.ParseType("q9")
	require.ErrorIs(t, err, modelfile.ErrUnknown)
	require.ErrorContains(t, err, "q4_k")
	shape, err := modelfile.ParseShape("llama-0.1b")
	require.NoError(t, err)
	require.Equal(t, 768, shape.Desc.Hidden)
	_, err = modelfile.ParseShape("llama")
	require.ErrorIs(t, err, modelfile.ErrUnknown)
	require.ErrorContains(t, err, "llama-1b")
	shape, err = modelfile.ParseShape("small-gemma4-e2b")
	require.NoError(t, err)
	require.Equal(t, "gemma4", shape.Architecture)
	_, err = modelfile.ParseShape("small-mamba")
	require.ErrorContains(t, err, "gemma4-e2b")
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	impossible := tiny
	impossible.Desc.Heads = 7
	require.ErrorIs(t, modelfile.Write(filepath.Join(dir, "x.gguf"), impossible, synth.Only(gguf.F16), 1), synth.ErrShape)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}
