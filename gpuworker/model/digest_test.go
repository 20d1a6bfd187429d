package model

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
)

// unused is a tensor that old files have and no model has a use for.
const unused = "blk.0.attn_rot_embd.weight"

// writeWithUnused copies a model file, whose metadata are strings and numbers, with an unused
// tensor among the others.
func writeWithUnused(t *testing.T, from, to string, content []byte) {
	t.Helper()
	f, err := gguf.Open(from)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	out, err := os.Create(to)
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Close()) }()
	w := gguf.NewWriter(out)
	copyMetadata(t, w, f)
	var bytes []byte
	for i, tensor := range f.Tensors() {
		w.Tensor(tensor.Name, tensor.Type, tensor.Dims...)
		bytes = append(bytes, f.Bytes(tensor)...)
		if i == 2 {
			w.Tensor(unused, gguf.F32, uint64(len(content)/4))
			bytes = append(bytes, content...)
		}
	}
	require.NoError(t, w.Begin())
	_, err = w.Write(bytes)
	require.NoError(t, err)
	require.NoError(t, w.Close())
}

// copyMetadata sets every pair of f in w. All of them are strings and numbers.
func copyMetadata(t *testing.T, w *gguf.Writer, f *gguf.File) {
	t.Helper()
	for _, key := range f.Metadata().Keys() {
		if s, ok, err := f.Metadata().String(key); ok && err == nil {
			w.Set(key, s)
		} else if n, ok, err := f.Metadata().Uint(key); ok && err == nil {
			w.Set(key, uint32(n))
		} else {
			x, ok, err := f.Metadata().Float(key)
			require.NoError(t, err)
			require.True(t, ok, key)
			w.Set(key, float32(x))
		}
	}
}

// fileDigest is the digest of a whole file, by the plain hash.
func fileDigest(t *testing.T, path string) engine.Digest {
	t.Helper()
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	digests := make([]gguf.Digest, len(f.Tensors()))
	for i, tensor := range f.Tensors() {
		digests[i] = blake3.Sum256(f.Bytes(tensor))
	}
	return engine.Digest(gguf.ModelDigest(f.Metadata(), f.Tensors(), digests))
}

func TestUnusedTensorsCountInTheDigest(t *testing.T) {
	// A tensor that the model does not use counts in the digest and takes no memory.
	plain, _ := manager(t, 1<<30)
	for name, m := range map[string]*Manager{"plain": plain, "staged": staging(t, enginetest.Hooks{}, nil).Manager} {
		t.Run(name, func(t *testing.T) {
			small, _, err := m.Load(t.Context(), "small", Options{}, nil)
			require.NoError(t, err)
			seen := map[engine.Digest]bool{small.Digest: true}
			content := make([]byte, uploadPiece+1000) // of several pieces
			for i, name := range []string{"first", "second"} {
				content[len(content)-1] = byte(i)
				path := filepath.Join(m.cfg.Dir, name+extension)
				writeWithUnused(t, filepath.Join(m.cfg.Dir, "small"+extension), path, content)
				inst, _, err := m.Load(t.Context(), name, Options{}, nil)
				require.NoError(t, err)
				require.Equal(t, fileDigest(t, path), inst.Digest)
				require.False(t, seen[inst.Digest])
				seen[inst.Digest] = true
				require.Equal(t, small.DeviceBytes, inst.DeviceBytes)
				require.NoError(t, m.Verify(t.Context(), name))
			}
		})
	}
}

func TestViewsCountInTheDigest(t *testing.T) {
	// Views of a tensor that holds several roles stand in the digest in place of the tensor, and each
	// is verified by itself. Those of a stack are not contiguous in the file.
	for name, tc := range map[string]struct {
		ends map[string][]uint64 // of the rows of each role, by the suffix of the tensor
		more int                 // tensors with views than without
		flip string
	}{
		"phi3": {map[string][]uint64{"attn_qkv.weight": {48, 72, 96}, "ffn_up.weight": {80, 160}},
			3 * (2 + 1), "blk.1.attn_qkv.weight[48:72]"},
		"gemma4-experts": {map[string][]uint64{"ffn_gate_up_exps.weight": {20, 40}}, 6, "blk.4.ffn_gate_up_exps.weight[20:40]"},
	} {
		t.Run(name, func(t *testing.T) { requireViewsInDigest(t, name, tc.ends, tc.more, tc.flip) })
	}
}

// requireViewsInDigest loads a small model whose tensors have views that end at the given rows, and
// changes one of the views.
func requireViewsInDigest(t *testing.T, name string, ends map[string][]uint64, more int, flip string) {
	t.Helper()
	m, _ := manager(t, 1<<30)
	shape, ok := synth.Small(name)
	require.True(t, ok)
	path := filepath.Join(m.cfg.Dir, "fused"+extension)
	out, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, synth.Write(out, shape, synth.Only(gguf.Q8_0), 3))
	require.NoError(t, out.Close())
	inst, _, err := m.Load(t.Context(), "fused", Options{}, nil)
	require.NoError(t, err)
	require.NoError(t, m.Verify(t.Context(), "fused"))

	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	var tensors []gguf.Tensor
	for _, x := range f.Tensors() {
		_, suffix, _ := strings.Cut(strings.TrimPrefix(x.Name, "blk."), ".")
		ends := ends[suffix]
		if ends == nil {
			tensors = append(tensors, x)
		}
		first := uint64(0)
		for _, end := range ends {
			view, err := x.Rows(first, end)
			require.NoError(t, err)
			tensors, first = append(tensors, view), end
		}
	}
	digests := make([]gguf.Digest, len(tensors))
	for i, x := range tensors {
		digests[i] = blake3.Sum256(f.Bytes(x))
	}
	require.Equal(t, engine.Digest(gguf.ModelDigest(f.Metadata(), tensors, digests)), inst.Digest)
	require.Len(t, tensors, len(f.Tensors())+more)
	require.NotEqual(t, fileDigest(t, path), inst.Digest)

	for n, x := range inst.tensors {
		if x.name == flip {
			_, err = inst.FlipBit(n, 77)
			require.NoError(t, err)
		}
	}
	require.ErrorContains(t, m.Verify(t.Context(), "fused"), fmt.Sprintf("tensor %q has digest", flip))
}
