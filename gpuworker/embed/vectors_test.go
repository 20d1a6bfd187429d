package embed

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

func TestShapeOfAVector(t *testing.T) {
	for name, tc := range map[string]struct {
		shape Shape
		want  []float32
	}{
		"as it is":             {Shape{}, []float32{3, 4, 12}},
		"normalised":           {Shape{Normalize: true}, []float32{3.0 / 13, 4.0 / 13, 12.0 / 13}},
		"cut, then normalised": {Shape{Normalize: true, Dimensions: 2}, []float32{3.0 / 5, 4.0 / 5}},
		"cut":                  {Shape{Dimensions: 1}, []float32{3}},
	} {
		require.Equal(t, tc.want, tc.shape.finish([]float32{3, 4, 12}), name)
	}
	dense := []arch.Dense{{In: 3, Out: 2, Rows: []float32{1, 0, 1, 0, 2, 0}}, {In: 2, Out: 3, Rows: []float32{1, 1, 0, 1, 3, 0}}}
	require.Equal(t, []float32{23, 8, 45}, Shape{Dense: dense}.finish([]float32{3, 4, 12}), "one layer after another")
	require.Equal(t, []float32{23}, Shape{Dense: dense, Dimensions: 1}.finish([]float32{3, 4, 12}), "cut after them")
	require.Equal(t, []float32{0, 0}, Shape{Normalize: true}.finish([]float32{0, 0}), "zeros have no direction")
	require.Equal(t, []float32{1, 0}, Shape{Normalize: true}.finish([]float32{3e38, 0}), "the square of a large number is no infinity")
}

func TestProbabilityOfTwoLogits(t *testing.T) {
	require.Equal(t, float32(0.5), probability(-3, -3))
	require.InDelta(t, math.Exp(-1)/(math.Exp(-1)+math.Exp(-4)), probability(-1, -4), 1e-7)
	require.Equal(t, float32(1), probability(0, -1000))
	require.Equal(t, float32(0), probability(-1000, 0))
}

// hidden is a runner whose hidden rows are the position and the token.
type hidden struct {
	engine.Runner
	results []*engine.StepResult
	gate    chan struct{} // if not nil, steps end when it is closed
}

func (h *hidden) Submit(s *engine.Step) error {
	r, flat, at := &engine.StepResult{}, []int32{}, []int32{}
	for i := range s.Segments {
		for k, token := range s.Segments[i].Tokens {
			flat, at = append(flat, token), append(at, s.Segments[i].FirstPosition+int32(k))
		}
	}
	for _, i := range s.Hidden {
		r.Hidden = append(r.Hidden, float32(at[i]), float32(flat[i]))
	}
	h.results = append(h.results, r)
	return nil
}

func (h *hidden) Wait(timeout time.Duration) (*engine.StepResult, error) {
	if h.gate != nil {
		select {
		case <-h.gate:
		case <-time.After(timeout):
			return nil, engine.ErrTimeout
		}
	}
	r := h.results[0]
	h.results = h.results[1:]
	return r, nil
}

func loopOf(t *testing.T, h *hidden, waiting int) *batch.Loop {
	t.Helper()
	l := batch.New(batch.Config{Context: 64, MaxWaiting: waiting, Runner: engine.RunnerConfig{
		KVBlocks: 200, BlockSize: 16, MaxSequences: 8, MaxBatchedTokens: 64, MaxSampleRows: 8, MaxScoreRows: 8, MaxHiddenRows: 16,
	}}, h, hclog.NewNullLogger())
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = l.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return l
}

func TestVectorsOfManyTexts(t *testing.T) {
	// 100 texts through a loop in which 3 may wait: each has its own vector, and its place.
	l := loopOf(t, &hidden{}, 3)
	prompts := make([][]int32, 100)
	for i := range prompts {
		prompts[i] = []int32{int32(i), int32(i), int32(2*i + 3)}
	}
	vectors, err := Vectors(t.Context(), l, prompts, Shape{Pool: batch.PoolMean}, Job{})
	require.NoError(t, err)
	for i, v := range vectors {
		require.Equal(t, []float32{1, float32((4*float64(i) + 3) / 3)}, v, "text %d", i)
	}
}

func TestVectorsEndWithTheirContext(t *testing.T) {
	h := &hidden{gate: make(chan struct{})}
	l := loopOf(t, h, 0)
	gone := errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	go cancel(gone)
	_, err := Vectors(ctx, l, [][]int32{{1, 2}, {3}}, Shape{Pool: batch.PoolLast}, Job{})
	require.ErrorIs(t, err, gone)
	close(h.gate)
	require.Eventually(t, l.Idle, time.Minute, time.Millisecond)
}

func TestVectorsNameTheTextThatFails(t *testing.T) {
	l := loopOf(t, &hidden{}, 0)
	_, err := Vectors(t.Context(), l, [][]int32{{1}, make([]int32, 65)}, Shape{Pool: batch.PoolLast}, Job{})
	require.ErrorIs(t, err, batch.ErrTooLong)
	require.ErrorContains(t, err, "text 1: ")
}
