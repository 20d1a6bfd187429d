package enginetest

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// testSlices checks which calls a trainer accepts in which state.
func testSlices(t *testing.T, dev engine.Vectors, _ VectorOptions) {
	job := smallJob(func(c *engine.TrainerConfig) { c.Init = engine.Given })
	tr, err := dev.NewTrainer(job.Config)
	require.NoError(t, err)
	_, err = tr.Wait(0)
	require.ErrorIs(t, err, engine.ErrPrecondition, "nothing is in flight")
	require.NoError(t, tr.Write(0, job.Rows))
	require.ErrorIs(t, tr.Submit(job.Slice), engine.ErrPrecondition, "codewords are missing")
	require.ErrorIs(t, tr.Give(job.Given[1:]), engine.ErrInvalid)
	require.ErrorIs(t, tr.Give(with(job.Given, engine.VectorF32, 2, math.NaN())), engine.ErrInvalid)
	require.NoError(t, tr.Give(job.Given))
	for _, bad := range [][]byte{nil, []byte("MRVSTAT"), make([]byte, 40+48)} {
		require.ErrorIs(t, tr.Restore(bad), engine.ErrInvalid)
	}
	require.ErrorIs(t, tr.Submit(engine.Slice{}), engine.ErrInvalid, "a slice without a round")
	_, err = tr.State()
	require.ErrorIs(t, err, engine.ErrPrecondition, "no codeword is seeded")

	require.NoError(t, tr.Submit(job.Slice))
	require.NoError(t, tr.Submit(job.Slice))
	require.ErrorIs(t, tr.Submit(job.Slice), engine.ErrPrecondition, "two are in flight")
	_, err = tr.IDs()
	require.ErrorIs(t, err, engine.ErrPrecondition, "slices are in flight")
	require.ErrorIs(t, tr.Give(job.Given), engine.ErrPrecondition, "the training has begun")
	require.ErrorIs(t, tr.Restore(nil), engine.ErrPrecondition)
	var out Outcome
	for range 2 {
		require.NoError(t, job.wait(tr, &out))
	}
	for out.Reason == engine.Unfinished {
		require.NoError(t, tr.Submit(job.Slice))
		require.NoError(t, job.wait(tr, &out))
	}
	require.ErrorIs(t, tr.Submit(job.Slice), engine.ErrPrecondition, "the training is done")
	require.Len(t, out.Rounds, 5)
	require.NoError(t, tr.Close())
	require.ErrorIs(t, tr.Close(), engine.ErrPrecondition)
	require.ErrorIs(t, tr.Write(0, nil), engine.ErrPrecondition)

	// A trainer may be closed at any time: without rows, with some, and with slices in flight.
	for stage := range 4 {
		job := smallJob(func(c *engine.TrainerConfig) { c.Rows, c.MaxIterations = 5000, 1000 })
		tr, err := dev.NewTrainer(job.Config)
		require.NoError(t, err)
		if stage > 0 {
			require.NoError(t, tr.Write(0, job.Rows))
		}
		for range stage - 1 {
			require.NoError(t, tr.Submit(engine.Slice{Rounds: 3, Budget: 5 * time.Millisecond}))
		}
		require.NoError(t, tr.Close())
	}
}
