package model

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/internal/cputest"
)

// longRoped writes the model "small", whose context is 256, with LongRoPE beyond 64 positions.
func longRoped(t *testing.T, dir, name string) {
	t.Helper()
	var data bytes.Buffer
	require.NoError(t, synth.Write(&data, small, synth.Only(gguf.Q8_0), 7))
	f, err := gguf.Parse(data.Bytes())
	require.NoError(t, err)
	out, err := os.Create(filepath.Join(dir, name+extension))
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Close()) }()
	w := gguf.NewWriter(out)
	copyMetadata(t, w, f)
	w.Set("llama.rope.scaling.original_context_length", uint32(64))
	var content []byte
	for _, x := range f.Tensors() {
		w.Tensor(x.Name, x.Type, x.Dims...)
		content = append(content, f.Bytes(x)...)
	}
	for _, list := range []struct {
		name  string
		value byte // high byte of BF16 numbers: 0x3F80 is 1, 0x4080 is 4
	}{{"rope_factors_short.weight", 0x3F}, {"rope_factors_long.weight", 0x40}} {
		w.Tensor(list.name, gguf.BF16, 8)
		content = append(content, bytes.Repeat([]byte{0x80, list.value}, 8)...)
	}
	require.NoError(t, w.Begin())
	_, err = w.Write(content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
}

func TestServedContextChoosesRopeFactors(t *testing.T) {
	// A worker that serves at most the original context uses the short factors: other tokens, another
	// class, the same model. Its memory decides if the load does not.
	device, err := native.Open(native.Options{Device: "cpu", Path: cputest.Path(), Threads: 2}, hclog.NewNullLogger())
	require.NoError(t, err)
	dir := t.TempDir()
	longRoped(t, dir, "long")
	m := NewManager(Config{Dir: dir, VerifyInterval: time.Hour}, device, hclog.NewNullLogger())
	defer func() {
		require.NoError(t, m.Close())
		require.NoError(t, device.Close())
	}()
	load := func(options Options) (*Instance, []string) {
		inst, _, err := m.Load(t.Context(), "long", options, nil)
		require.NoError(t, err)
		require.NoError(t, m.Verify(t.Context(), "long"))
		tokens := greedy(t, inst)
		_, err = m.Unload(t.Context(), "long", false)
		require.NoError(t, err)
		return inst, tokens
	}
	long, longTokens := load(Options{})
	require.Equal(t, 256, long.Context)
	beyond, beyondTokens := load(Options{Context: 65})
	short, shortTokens := load(Options{Context: 64})
	require.Equal(t, longTokens, beyondTokens)
	require.NotEqual(t, longTokens, shortTokens)
	require.Equal(t, long.ClassID, beyond.ClassID)
	require.NotEqual(t, long.ClassID, short.ClassID)
	require.Equal(t, long.Digest, short.Digest)
	bound, boundTokens := load(Options{KVTokens: 48})
	require.Equal(t, 48, bound.Context)
	require.Equal(t, short.ClassID, bound.ClassID)
	require.Equal(t, shortTokens, boundTokens)
}
