package model

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// edited is a good model with one key more or changed.
func edited(t *testing.T, key string, value any) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gguf.NewWriter(&out)
	source, err := gguf.Open(filepath.Join("..", "..", "testdata", "models", "stories-5m-q8_0.gguf"))
	require.NoError(t, err)
	defer func() { require.NoError(t, source.Close()) }()
	w.Set("general.architecture", "llama")
	for k, v := range map[string]any{
		"block_count": uint32(6), "embedding_length": uint32(256), "attention.head_count": uint32(4), "attention.head_count_kv": uint32(2),
		"feed_forward_length": uint32(768), "context_length": uint32(512), "attention.layer_norm_rms_epsilon": float32(1e-5),
	} {
		if "llama."+k != key {
			w.Set("llama."+k, v)
		}
	}
	w.Set(key, value)
	for _, x := range source.Tensors() {
		w.Tensor(x.Name, x.Type, x.Dims...)
	}
	require.NoError(t, w.Begin())
	for _, x := range source.Tensors() {
		_, err := w.Write(source.Bytes(x))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// spoiltAlignment is a good model whose alignment has become 48.
func spoiltAlignment(t *testing.T) []byte {
	t.Helper()
	const key = "general.alignment\x04\x00\x00\x00"
	data := edited(t, "general.alignment", uint32(32))
	at := bytes.Index(data, []byte(key))
	require.Positive(t, at)
	data[at+len(key)] = 48
	return data
}

func TestListAndLoadReportTheSameProblem(t *testing.T) {
	// A foreign file has the same problem in the list and at its load.
	m, _ := manager(t, 1<<30)
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4920739232\n"
	whole := edited(t, "general.name", "x")
	for name, tc := range map[string]struct {
		data []byte
		want []string
	}{
		"pointer":   {[]byte(pointer), []string{"Git LFS pointer", "4920739232", "git lfs pull"}},
		"page":      {[]byte("<!doctype html><p>Not found"), []string{"web page", "download"}},
		"empty":     {nil, []string{"is empty", "download"}},
		"zip":       {[]byte("PK\x03\x04" + strings.Repeat("x", 90)), []string{"zip archive", "unpack"}},
		"torch":     {[]byte("PK\x03\x04" + strings.Repeat("\x00", 26) + "model/data.pkl"), []string{"PyTorch", "convert"}},
		"tensors":   {[]byte("\x02\x00\x00\x00\x00\x00\x00\x00{\"}"), []string{"safetensors", "convert"}},
		"first":     {append([]byte("GGUF\x01\x00\x00\x00"), make([]byte, 64)...), []string{"version 1 of GGUF", "newer file"}},
		"big":       {append([]byte("GGUF\x00\x00\x00\x03"), make([]byte, 64)...), []string{"big-endian"}},
		"cut":       {whole[:len(whole)-1000], []string{"truncated", "download or copy it again"}},
		"part":      {edited(t, "split.count", uint16(4)), []string{"part 1 of a model split into 4 files", "llama-gguf-split"}},
		"alignment": {spoiltAlignment(t), []string{"general.alignment is 48, want a power of two", "get the model from elsewhere"}},
		"rope":      {edited(t, "llama.rope.freq_base", float32(3e38)), []string{"llama.rope.freq_base is 3e+38, want 1 to 1e+12", "convert"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(filepath.Join(m.cfg.Dir, name+extension), tc.data, 0o644))
			var problem error
			for _, e := range m.Files() {
				if e.Name == name {
					problem = e.Problem
				}
			}
			_, _, err := m.Load(t.Context(), name, Options{}, nil)
			for _, want := range tc.want {
				require.ErrorContains(t, problem, want)
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), m.cfg.Dir, "callers far away see the name and not the folder")
		})
	}
}

func TestMisnamedFilesAreListedWithAdvice(t *testing.T) {
	// Files with invalid names are listed with advice.
	m, _ := manager(t, 1<<30)
	put := func(name string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(m.cfg.Dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(m.cfg.Dir, name), []byte("x"), 0o644))
	}
	for _, name := range []string{"my model (1).gguf", "Shouting.GGUF", "bad\xff\x1b[31m.gguf", ".hidden.gguf", ".cache/x.gguf", "notes.txt"} {
		put(name)
	}
	require.NoError(t, os.Symlink("nothing.gguf", filepath.Join(m.cfg.Dir, "dangling.gguf")))
	require.NoError(t, os.Symlink("loop.gguf", filepath.Join(m.cfg.Dir, "loop.gguf")))
	got := map[string]string{}
	for _, e := range m.Files() {
		if e.Problem != nil {
			got[e.Name] = e.Problem.Error()
		}
	}
	require.Contains(t, got["my model (1).gguf"], "rename the file")
	require.Contains(t, got["Shouting.GGUF"], "small letters")
	require.Contains(t, got["bad\ufffd\ufffd[31m.gguf"], "rename the file")
	require.Contains(t, got["dangling"], "symbolic link to nothing")
	require.Contains(t, got["loop"], "leads back to itself")
	require.Contains(t, got["link"], "leads out of the models directory")
	require.NotContains(t, got, ".hidden")
	require.NotContains(t, got, ".cache/x")
	require.NotContains(t, got, "notes")
	_, _, err := m.Load(t.Context(), "link", Options{}, nil)
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, "leads out of the models directory")
}
