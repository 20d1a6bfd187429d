package enginetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// bytesUsed returns the bytes of the ledger.
func bytesUsed(t *testing.T, dev engine.Device) (sum uint64) {
	t.Helper()
	info, err := dev.Info()
	require.NoError(t, err)
	for _, n := range info.BytesUsed {
		sum += n
	}
	return sum
}

// testVectorMemory checks the ledger: a trainer allocates its cost at once, and a trainer that does
// not fit is refused with the numbers.
func testVectorMemory(t *testing.T, dev engine.Device) {
	vectors, ok := dev.(engine.Vectors)
	require.True(t, ok)
	job := smallJob(func(c *engine.TrainerConfig) { c.Rows = 5000 })
	cost, err := vectors.TrainerCost(job.Config)
	require.NoError(t, err)
	require.GreaterOrEqual(t, cost.DeviceBytes, uint64(len(job.Rows)), "the rows are resident")
	require.Zero(t, cost.SpoolBytes)
	tr, err := vectors.NewTrainer(job.Config)
	require.NoError(t, err)
	require.Equal(t, cost.DeviceBytes, bytesUsed(t, dev))
	require.ErrorIs(t, dev.Close(), engine.ErrPrecondition, "a trainer lives")
	require.NoError(t, job.prepare(tr, nil))
	var out Outcome
	for out.Reason == engine.Unfinished {
		require.NoError(t, tr.Submit(job.Slice))
		require.NoError(t, job.wait(tr, &out))
		require.Equal(t, cost.DeviceBytes, bytesUsed(t, dev), "nothing is allocated later")
	}
	codewords, err := tr.Codewords()
	require.NoError(t, err)
	require.NoError(t, tr.Close())
	require.Zero(t, bytesUsed(t, dev))

	book, err := vectors.NewCodebook(job.Config.Codebook, codewords)
	require.NoError(t, err)
	require.GreaterOrEqual(t, bytesUsed(t, dev), job.Config.Codebook.Bytes())
	require.ErrorIs(t, dev.Close(), engine.ErrPrecondition, "a codebook lives")
	require.NoError(t, book.Close())
	require.Zero(t, bytesUsed(t, dev))

	for range 100 { // trainings that are given up
		tr, err := vectors.NewTrainer(job.Config)
		require.NoError(t, err)
		require.NoError(t, tr.Write(0, job.Rows[:len(job.Rows)/50]))
		require.NoError(t, tr.Close())
	}
	require.Zero(t, bytesUsed(t, dev))

	job.Config.Codebook.Dimension, job.Config.Codebook.Codewords, job.Config.Rows = 65536, 2, 1<<32-1
	_, err = vectors.NewTrainer(job.Config)
	require.ErrorIs(t, err, engine.ErrOutOfMemory)
	require.ErrorContains(t, err, "free")
	require.Zero(t, bytesUsed(t, dev))
	require.NoError(t, dev.Close())
}

// testVectorRefusals refuses each allocation of a trainer and of a codebook once, and checks that
// no memory leaks.
func testVectorRefusals(t *testing.T, dev engine.Device) {
	refuser, ok := dev.(engine.Refuser)
	require.True(t, ok)
	vectors, ok := dev.(engine.Vectors)
	require.True(t, ok)
	job := smallJob(nil)
	for what, make := range map[string]func() (interface{ Close() error }, error){
		"trainer": func() (interface{ Close() error }, error) { return vectors.NewTrainer(job.Config) },
		"codebook": func() (interface{ Close() error }, error) {
			return vectors.NewCodebook(job.Config.Codebook, zeros(job))
		},
	} {
		refused := 0
		for ; ; refused++ {
			require.NoError(t, refuser.Refuse(engine.RefuseAlloc, refused, 1))
			made, err := make()
			if err == nil {
				require.NoError(t, refuser.Refuse(engine.RefuseAlloc, 0, 0))
				require.NoError(t, made.Close())
				break
			}
			require.ErrorIs(t, err, engine.ErrOutOfMemory)
			require.Zero(t, bytesUsed(t, dev), "allocation %d of a %s", refused, what)
		}
		require.Positive(t, refused, "a %s takes memory that can be refused", what)
	}
	require.Zero(t, bytesUsed(t, dev))
	require.NoError(t, dev.Close())
}

func zeros(job *Job) []byte { return make([]byte, job.Config.Codebook.Bytes()) }

// testSpooled checks that rows that do not fit into device memory give the same bits.
func testSpooled(t *testing.T, limited func(*testing.T, uint64) engine.Device) {
	for _, change := range []func(*engine.TrainerConfig){
		func(*engine.TrainerConfig) {},
		func(c *engine.TrainerConfig) { c.Codebook.Kind, c.Codebook.Subspaces = engine.Product, 4 },
		func(c *engine.TrainerConfig) { c.Codebook.Metric, c.Init = engine.Cosine, engine.KMeansPlusPlus },
		func(c *engine.TrainerConfig) {
			c.Algorithm, c.Init = engine.Annealed, engine.Farthest
			c.Annealing.Trim, c.Annealing.MaintenanceInterval, c.Annealing.SplitLoad = 0.1, 1, 1.1
		},
	} {
		job := smallJob(func(c *engine.TrainerConfig) {
			c.Rows, c.Codebook.Dimension = 20000, 64
			change(c)
		})
		dev := openVectors(t, func(t *testing.T) engine.Device { t.Helper(); return limited(t, uint64(len(job.Rows)/2)) })
		_, err := dev.NewTrainer(job.Config)
		require.ErrorIs(t, err, engine.ErrOutOfMemory, "without a spool")
		job.Config.SpoolBytes = uint64(len(job.Rows)) - 1
		_, err = dev.NewTrainer(job.Config)
		require.ErrorIs(t, err, engine.ErrOutOfMemory, "with one that is too small")
		job.Config.SpoolBytes = 2 * uint64(len(job.Rows))
		cost, err := dev.TrainerCost(job.Config)
		require.NoError(t, err)
		require.Positive(t, cost.SpoolBytes)
		require.LessOrEqual(t, cost.DeviceBytes, uint64(len(job.Rows)/2))
		job.Slice.Rounds = 4
		require.NoError(t, job.Check(dev), "%v", job)
	}
}
