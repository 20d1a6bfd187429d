package model

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// put writes files of a few bytes below a folder.
func put(t *testing.T, dir string, files ...string) {
	t.Helper()
	for _, name := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte("123"), 0o644))
	}
}

func TestHuggingFaceFoldersAreNamedForWhatTheyAre(t *testing.T) {
	m, _ := manager(t, 1<<30)
	put(t, m.cfg.Dir, "Qwen3-0.6B/config.json", "Qwen3-0.6B/model.safetensors", "Qwen3-0.6B/tokenizer.json",
		"hub/sharded/config.json", "hub/sharded/model-00001-of-00002.safetensors", "hub/sharded/model-00002-of-00002.safetensors",
		"old/config.json", "old/pytorch_model.bin", "small/config.json", "small/model.safetensors",
		"adapter/adapter_config.json", "adapter/adapter_model.safetensors", "only/config.json")
	got := map[string]Entry{}
	for _, e := range m.Files() {
		got[e.Name] = e
	}
	for _, name := range []string{"Qwen3-0.6B", "hub/sharded", "old"} {
		require.ErrorIs(t, got[name].Problem, gguf.ErrFormat)
		require.ErrorContains(t, got[name].Problem, "as Hugging Face has it")
		require.ErrorContains(t, got[name].Problem, "convert_hf_to_gguf.py and put "+filepath.Base(name)+".gguf into the models directory")
		_, _, err := m.Load(t.Context(), name, Options{}, nil)
		require.ErrorContains(t, err, got[name].Problem.Error())
		require.ErrorIs(t, m.catalog.problem(name), gguf.ErrFormat)
	}
	require.EqualValues(t, 6, got["hub/sharded"].Bytes)
	require.NoError(t, got["small"].Problem, "a file of the name goes first")
	require.NotContains(t, got, "adapter")
	require.NotContains(t, got, "only")
	require.NotContains(t, got, ".")
	require.Empty(t, Advice(m.Files()), "there are others that can be loaded")

	_, _, err := m.Load(t.Context(), "family", Options{}, nil)
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, `"family" is a folder; the models in it are called family/other`)
	_, _, err = m.Load(t.Context(), "only", Options{}, nil)
	require.ErrorContains(t, err, "no model in it is a file NAME.gguf")
	_, _, err = m.Load(t.Context(), "absent", Options{}, nil)
	require.ErrorContains(t, err, `there is no file "absent.gguf" in the models directory`)
}

func TestAdviceSaysWhatAModelsFolderLacks(t *testing.T) {
	dir := t.TempDir()
	require.Contains(t, Advice(newCatalog(dir, simulated(t)).list()), "it holds no file NAME.gguf: put model files there")
	put(t, dir, "config.json", "model.safetensors")
	require.Contains(t, Advice(newCatalog(dir, simulated(t)).list()), "the models directory is itself a folder of a model as Hugging Face has it")
	put(t, dir, "a.gguf", "b.gguf", "c.gguf")
	advice := Advice(newCatalog(dir, simulated(t)).list())
	require.Contains(t, advice, "a: open model file")
	require.Contains(t, advice, "and 1 more, which `millrace models` lists")
	require.NotContains(t, advice, "\n")
}
