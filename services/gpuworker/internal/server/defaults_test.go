package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

var recommendations = map[string]any{
	"general.sampling.temp": float32(0.6), "general.sampling.top_k": int32(20), "general.sampling.top_p": float32(0.95),
	"general.sampling.penalty_repeat": float32(1.5), "general.sampling.penalty_last_n": int32(8), "general.sampling.mirostat": int32(0),
}

// recommended returns a worker whose model recommends defaults, and its response to a request that
// sets a seed and what change sets.
func recommended(t *testing.T, follows bool, change func(*pb.Sampling)) (*worker, outcome) {
	t.Helper()
	w := startFollowing(t, cpuDevice(t), follows)
	w.edit(t, "advised", recommendations)
	in := prompted("Once upon a time", 32)
	in.Model, in.Sampling = "advised", &pb.Sampling{Seed: ptr(uint64(7))}
	change(in.Sampling)
	o := w.generate(t.Context(), t, in)
	require.NoError(t, o.err)
	return w, o
}

func TestDefaultsOfAFileAreUsedByFlag(t *testing.T) {
	nothing := func(*pb.Sampling) {}
	all := func(s *pb.Sampling) {
		s.Temperature, s.TopK, s.TopP = ptr(float32(0.6)), ptr(int32(20)), ptr(float32(0.95))
		s.RepetitionPenalty, s.PenaltyWindow = ptr(float32(1.5)), ptr(int32(8))
	}
	w, plain := recommended(t, false, nothing)
	shown := w.listed(t, "advised")
	require.InDelta(t, 0.6, shown.GetCapabilities().GetSampling().GetTemperature(), 1e-6)
	require.Nil(t, shown.GetCapabilities().GetSampling().MinP)
	require.False(t, shown.GetLoaded().GetSamplingDefaults())
	_, stated := recommended(t, false, all)
	require.NotEqual(t, plain.ids, stated.ids, "without the flag a file only advises")

	w, followed := recommended(t, true, nothing)
	require.True(t, w.listed(t, "advised").GetLoaded().GetSamplingDefaults())
	require.Equal(t, stated.ids, followed.ids, "unset knobs have the file's values")
	require.NotEqual(t, plain.started.GetClassId(), followed.started.GetClassId(), "no stream moves between the two")
	_, overridden := recommended(t, true, func(s *pb.Sampling) {
		s.Temperature, s.TopK, s.TopP, s.RepetitionPenalty = ptr(float32(1)), ptr(int32(0)), ptr(float32(1)), ptr(float32(1))
	})
	require.Equal(t, plain.ids, overridden.ids, "a knob that is set counts, also if it has the contract's default")
}

func TestFileWithoutDefaultsKeepsItsClass(t *testing.T) {
	class := func(follows bool) string {
		w := startFollowing(t, cpuDevice(t), follows)
		inst, _, err := w.manager.Load(t.Context(), "stories", model.Options{}, nil)
		require.NoError(t, err)
		return inst.ClassID
	}
	require.Equal(t, class(false), class(true))
}

// startFollowing is like start, of a worker that follows the recommendations of files or does not.
func startFollowing(t *testing.T, device engine.Device, follows bool) *worker {
	t.Helper()
	return startWith(t, device, func(c *setup) { c.models.SamplingDefaults = follows })
}
