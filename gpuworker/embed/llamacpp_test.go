package embed

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/internal/cputest"
)

// cosineBound is the least cosine with a vector of llama.cpp. Both sides compute in f32 or better
// and differ by less than a tenth of what it leaves.
const cosineBound = 1 - 1e-8

// weightsOf returns the small model of an architecture, with matrices in F32, and its layers after the
// pooling.
func weightsOf(t *testing.T, name string) (*reference.Weights, []arch.Dense) {
	t.Helper()
	shape, ok := synth.Small(name)
	require.True(t, ok)
	var file bytes.Buffer
	require.NoError(t, synth.Write(&file, shape, synth.Only(gguf.F32), 1))
	f, err := gguf.Parse(file.Bytes())
	require.NoError(t, err)
	m, err := arch.Parse(f)
	require.NoError(t, err)
	w := &reference.Weights{Desc: m.Desc}
	for _, b := range m.Bindings {
		w.Tensors = append(w.Tensors, reference.Tensor{TensorDesc: b.Desc, Bytes: f.Bytes(b.Tensor)})
	}
	return w, m.Dense
}

// cpuLoop runs a loop over the CPU engine, whose steps have at most the given tokens and hidden rows, until the
// test ends.
func cpuLoop(t *testing.T, w *reference.Weights, tokens, hidden int) *batch.Loop {
	t.Helper()
	device, err := native.Open(native.Options{Device: "cpu", Path: cputest.Path()}, hclog.NewNullLogger())
	require.NoError(t, err)
	m, err := device.NewModel(w.Desc)
	require.NoError(t, err)
	for _, tensor := range w.Tensors {
		b, err := device.Alloc(uint64(len(tensor.Bytes)), engine.Staging)
		require.NoError(t, err)
		_, err = b.WriteAt(tensor.Bytes, 0)
		require.NoError(t, err)
		require.NoError(t, m.Bind(tensor.TensorDesc, b))
	}
	require.NoError(t, m.Seal())
	cfg := engine.RunnerConfig{
		KVBlocks: 200, BlockSize: 16, MaxSequences: 8, MaxBatchedTokens: tokens, MaxSampleRows: 8, MaxScoreRows: 8, MaxHiddenRows: hidden,
		KVType: engine.F32,
	}
	runner, err := m.NewRunner(cfg)
	require.NoError(t, err)
	l := batch.New(batch.Config{Context: 512, Runner: cfg, OneClass: true, WholeTexts: w.Desc.WholeTexts()}, runner, hclog.NewNullLogger())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = l.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
		require.NoError(t, runner.Close())
		require.NoError(t, m.Close())
		require.NoError(t, device.Close())
	})
	return l
}

func cosine(a []float32, b []float64) float64 {
	var ab, aa, bb float64
	for i := range b {
		ab += float64(a[i]) * b[i]
		aa += float64(a[i]) * float64(a[i])
		bb += b[i] * b[i]
	}
	return ab / math.Sqrt(aa*bb)
}

func TestVectorsMatchLlamaCpp(t *testing.T) {
	// Vectors and the score of a classifier are those of llama.cpp on the same file, also if hidden
	// rows come in steps of seven.
	var want struct {
		IDs                     []int32
		Mean, First, Last, Rank []float64
	}
	text, err := os.ReadFile("testdata/qwen3.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &want))
	w, _ := weightsOf(t, "qwen3")
	classifier := &arch.Classifier{}
	for i := range 2 * w.Desc.Hidden {
		row := &classifier.Yes
		if i >= w.Desc.Hidden {
			row = &classifier.No
		}
		*row = append(*row, float32(i%13-6)/100)
	}
	for _, hidden := range []int{64, 7} {
		l := cpuLoop(t, w, 64, hidden)
		for pool, vector := range map[batch.Pooling][]float64{batch.PoolMean: want.Mean, batch.PoolFirst: want.First, batch.PoolLast: want.Last} {
			require.Len(t, vector, w.Desc.Hidden)
			got, err := Vectors(t.Context(), l, [][]int32{want.IDs}, Shape{Pool: pool}, Job{})
			require.NoError(t, err)
			require.Greater(t, cosine(got[0], vector), cosineBound, "pooling %d", pool)
			for i := range vector {
				require.InDelta(t, vector[i], got[0][i], 1e-4)
			}
			require.Less(t, cosine(got[0], want.Mean)+cosine(got[0], want.First)+cosine(got[0], want.Last), 2.99, "poolings differ")
		}
		scores, _, err := (&Reranker{classifier: classifier}).Scores(t.Context(), l, []Prompt{{IDs: want.IDs}}, Job{})
		require.NoError(t, err)
		require.InDelta(t, want.Rank[0], scores[0], 1e-6)
	}
}

func TestWholeTextsMatchLlamaCpp(t *testing.T) {
	// Texts shorter and longer than the window, all at once, with the layers after the pooling and
	// without them.
	var want struct {
		IDs     []int32
		Vectors []struct {
			Tokens      int
			Mean, Dense []float64
		}
	}
	text, err := os.ReadFile("../arch/testdata/gemma-embedding.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &want))
	w, dense := weightsOf(t, "gemma-embedding")
	require.Len(t, dense, 2)
	l := cpuLoop(t, w, 128, 128)
	var texts [][]int32
	for _, v := range want.Vectors {
		texts = append(texts, want.IDs[:v.Tokens])
	}
	means, err := Vectors(t.Context(), l, texts, Shape{Pool: batch.PoolMean}, Job{})
	require.NoError(t, err)
	vectors, err := Vectors(t.Context(), l, texts, Shape{Pool: batch.PoolMean, Dense: dense, Normalize: true}, Job{})
	require.NoError(t, err)
	for i, v := range want.Vectors {
		require.Greater(t, cosine(means[i], v.Mean), cosineBound, "%d tokens", v.Tokens)
		require.Greater(t, cosine(vectors[i], v.Dense), cosineBound, "%d tokens, dense", v.Tokens)
		require.Less(t, cosine(vectors[i], v.Mean), 0.9, "the layers change the vector")
		alone, err := Vectors(t.Context(), l, texts[i:i+1], Shape{Pool: batch.PoolMean, Dense: dense, Normalize: true}, Job{})
		require.NoError(t, err)
		require.Equal(t, alone[0], vectors[i])
	}
}
