package model

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/internal/cputest"
)

// narrow writes a model whose norms have the given type of 16 bits and a trailing dimension of 1,
// and one with the same norms in F32. Every other tensor is the shape's.
func narrow(t *testing.T, dir string, shape synth.Shape, typ gguf.Type, name string) (narrow, wide string) {
	t.Helper()
	var data bytes.Buffer
	require.NoError(t, synth.Write(&data, shape, synth.Only(gguf.Q8_0), 7))
	f, err := gguf.Parse(data.Bytes())
	require.NoError(t, err)
	write := func(name string, wide bool) string {
		path := filepath.Join(dir, name+extension)
		out, err := os.Create(path)
		require.NoError(t, err)
		defer func() { require.NoError(t, out.Close()) }()
		w := gguf.NewWriter(out)
		copyMetadata(t, w, f)
		var content []byte
		for _, x := range f.Tensors() {
			raw := f.Bytes(x)
			if len(x.Dims) == 1 {
				half := make([]byte, 0, len(raw)/2)
				for i := 2; i < len(raw); i += 4 { // the high half of an F32 is a BF16, and some F16
					half = append(half, raw[i], raw[i+1])
				}
				x.Type, x.Dims, raw = typ, append(x.Dims, 1), half
				if wide {
					raw = arch.Binding{Tensor: x}.Widen(half)
					x.Type = gguf.F32
				}
			}
			w.Tensor(x.Name, x.Type, x.Dims...)
			content = append(content, raw...)
		}
		require.NoError(t, w.Begin())
		_, err = w.Write(content)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return path
	}
	return write(name, false), write(name+"-wide", true)
}

// greedy returns the tokens that a model chooses and their logprobs.
func greedy(t *testing.T, inst *Instance) (out []string) {
	t.Helper()
	s, err := submit(inst.Loop, batch.Request{Prompt: []int32{1, 2, 3}, MaxTokens: 12, PromptTopN: -1,
		Params: engine.SlotParams{TopP: 1, TypicalP: 1, RepetitionPenalty: 1}})
	require.NoError(t, err)
	for {
		events, err := s.Recv(t.Context(), nil)
		require.NoError(t, err)
		if len(events) == 0 {
			return out
		}
		for _, e := range events {
			if e.Token != nil {
				out = append(out, fmt.Sprintf("%d %x", e.Token.Token, e.Token.Logprob))
			}
		}
	}
}

func TestNormsOf16BitsComputeAsF32(t *testing.T) {
	device, err := native.Open(native.Options{Device: "cpu", Path: cputest.Path(), Threads: 2}, hclog.NewNullLogger())
	require.NoError(t, err)
	dir := t.TempDir()
	m := NewManager(Config{Dir: dir, VerifyInterval: time.Hour}, device, hclog.NewNullLogger())
	defer func() {
		require.NoError(t, m.Close())
		require.NoError(t, device.Close())
	}()
	for _, typ := range []gguf.Type{gguf.F16, gguf.BF16} {
		path, _ := narrow(t, dir, small, typ, typ.String())
		inst, _, err := m.Load(t.Context(), typ.String(), Options{}, nil)
		require.NoError(t, err)
		require.Equal(t, fileDigest(t, path), inst.Digest, "the model's digest is of the file's bytes")
		require.NoError(t, m.Verify(t.Context(), inst.Name))
		wide, _, err := m.Load(t.Context(), typ.String()+"-wide", Options{}, nil)
		require.NoError(t, err)
		require.Equal(t, wide.DeviceBytes, inst.DeviceBytes)
		require.Equal(t, greedy(t, wide), greedy(t, inst), "%v", typ)

		for n, x := range inst.tensors {
			if x.name == "blk.1.ffn_norm.weight" {
				_, err = inst.FlipBit(n, 8*4*63+1) // one that no number of 16 bits has
				require.NoError(t, err)
			}
		}
		require.ErrorIs(t, m.Verify(t.Context(), inst.Name), ErrCorrupt)
	}
}

func TestNormsOfSeveralPiecesAreWidened(t *testing.T) {
	m, _ := manager(t, 1<<30)
	shape := synth.Shape{Name: "broad", Architecture: "llama", Desc: engine.Uniform{
		Layers: 1, Hidden: hashPiece + 4096, Heads: 1, KVHeads: 1, HeadDim: 16, FFN: 32, Vocab: 8, Context: 32,
	}}
	path, _ := narrow(t, m.cfg.Dir, shape, gguf.BF16, "broad")
	inst, _, err := m.Load(t.Context(), "broad", Options{}, nil)
	require.NoError(t, err)
	require.Equal(t, fileDigest(t, path), inst.Digest)
	wide, _, err := m.Load(t.Context(), "broad-wide", Options{}, nil)
	require.NoError(t, err)
	for n, x := range inst.tensors {
		require.Equal(t, wide.tensors[n].digest, x.digest, "%s: the engine holds the same bytes", x.name)
	}
	require.NoError(t, m.Verify(t.Context(), "broad"))
}
