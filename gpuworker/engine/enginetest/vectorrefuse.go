package enginetest

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// smallJob is a job of gaussian rows that every test may change.
func smallJob(change func(*engine.TrainerConfig)) *Job {
	cfg := engine.TrainerConfig{
		Codebook: engine.CodebookDesc{Dimension: 4, Codewords: 3, Subspaces: 1}, Rows: 50, MaxIterations: 4,
		EnergyTolerance: -1, MinChanges: -1, StableRounds: 100, Annealing: engine.Annealing{Temperature: 1, LearningRate: 0.5},
	}
	if change != nil {
		change(&cfg)
	}
	job := NewJob(rand.New(rand.NewPCG(7, 7)), cfg, rowShapes[0])
	job.Chunk, job.Slice = 50, engine.Slice{Rounds: 1}
	return job
}

func testRefusedTrainings(t *testing.T, dev engine.Vectors, _ VectorOptions) {
	nan := math.NaN()
	annealed := func(set func(*engine.Annealing)) func(*engine.TrainerConfig) {
		return func(c *engine.TrainerConfig) { c.Algorithm = engine.Annealed; set(&c.Annealing) }
	}
	for said, changes := range map[string][]func(*engine.TrainerConfig){
		"dimension": {
			func(c *engine.TrainerConfig) { c.Codebook.Dimension = 0 },
			func(c *engine.TrainerConfig) { c.Codebook.Dimension = engine.MaxDimension + 1 },
		},
		"codewords": {
			func(c *engine.TrainerConfig) { c.Codebook.Codewords = 0 },
			func(c *engine.TrainerConfig) { c.Codebook.Codewords = engine.MaxCodewords + 1 },
			func(c *engine.TrainerConfig) {
				c.Codebook.Dimension, c.Codebook.Codewords, c.Rows = 65536, 65536, 1<<32-1
			},
			func(c *engine.TrainerConfig) { c.Codebook.Codewords, c.Rows, c.Init = 4097, 5000, engine.Farthest },
		},
		"rows": {
			func(c *engine.TrainerConfig) { c.Rows = 2 },
			func(c *engine.TrainerConfig) { c.Rows = 1 << 32 },
		},
		"subspaces": {
			func(c *engine.TrainerConfig) { c.Codebook.Subspaces = 2 },
			func(c *engine.TrainerConfig) { c.Codebook.Kind, c.Codebook.Subspaces = engine.Product, 3 },
			func(c *engine.TrainerConfig) { c.Codebook.Kind, c.Codebook.Subspaces = engine.Product, 0 },
		},
		"metric": {
			func(c *engine.TrainerConfig) { c.Codebook.Metric = 3 },
			func(c *engine.TrainerConfig) { c.Codebook.Kind, c.Codebook.Metric = engine.Product, engine.Cosine },
			annealed(func(*engine.Annealing) {}),
		},
		"kind":      {func(c *engine.TrainerConfig) { c.Codebook.Kind = 2 }},
		"type":      {func(c *engine.TrainerConfig) { c.Codebook.Type = engine.VectorU8 }, func(c *engine.TrainerConfig) { c.Element = 5 }},
		"algorithm": {func(c *engine.TrainerConfig) { c.Algorithm = 2 }},
		"init": {
			func(c *engine.TrainerConfig) { c.Init = 4 },
			func(c *engine.TrainerConfig) { c.Init, c.Codebook.Metric = engine.KMeansPlusPlus, engine.InnerProduct },
		},
		"iterations": {
			func(c *engine.TrainerConfig) { c.MaxIterations = -1 },
			func(c *engine.TrainerConfig) { c.StableRounds = 0 },
		},
		"changes": {func(c *engine.TrainerConfig) { c.MinChanges = -2 }},
		"tolerance": {
			func(c *engine.TrainerConfig) { c.EnergyTolerance = nan },
			func(c *engine.TrainerConfig) { c.EnergyTolerance = -0.5 },
			func(c *engine.TrainerConfig) { c.EnergyTolerance = math.Inf(1) },
		},
		"temperature": {annealed(func(a *engine.Annealing) { a.Temperature = 0 }), annealed(func(a *engine.Annealing) { a.Temperature = nan })},
		"cooling":     {annealed(func(a *engine.Annealing) { a.CoolingRate = 1 })},
		"learning":    {annealed(func(a *engine.Annealing) { a.LearningRate = 1.01 })},
		"momentum":    {annealed(func(a *engine.Annealing) { a.Momentum = 1 })},
		"trim":        {annealed(func(a *engine.Annealing) { a.Trim = 0.51 })},
		"step":        {annealed(func(a *engine.Annealing) { a.StepLimit = -1 })},
		"maintenance": {annealed(func(a *engine.Annealing) { a.MaintenanceInterval = -1 })},
		"merge":       {annealed(func(a *engine.Annealing) { a.MergeDistance = math.Inf(1) })},
		"split":       {annealed(func(a *engine.Annealing) { a.SplitLoad = 1 })},
	} {
		for i, change := range changes {
			job := smallJob(nil)
			change(&job.Config)
			if said == "metric" && job.Config.Algorithm == engine.Annealed {
				job.Config.Codebook.Metric = engine.Cosine
			}
			_, err := dev.NewTrainer(job.Config)
			require.ErrorIs(t, err, engine.ErrInvalid, "%s %d", said, i)
			require.ErrorContains(t, err, said)
			_, err = dev.TrainerCost(job.Config)
			require.ErrorIs(t, err, engine.ErrInvalid, "%s %d", said, i)
		}
	}
}

func testRefusedRows(t *testing.T, dev engine.Vectors, _ VectorOptions) {
	for _, element := range []engine.Element{engine.VectorF32, engine.VectorF16, engine.VectorBF16} {
		job := smallJob(func(c *engine.TrainerConfig) { c.Element = element })
		tr, err := dev.NewTrainer(job.Config)
		require.NoError(t, err)
		row := len(job.Rows) / 50
		require.NoError(t, tr.Write(0, nil))
		require.NoError(t, tr.Write(0, job.Rows[:20*row]))
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			err := tr.Write(20, with(job.Rows[20*row:], element, 4*17+3, bad))
			require.ErrorIs(t, err, engine.ErrInvalid)
			require.ErrorContains(t, err, "row 37")
		}
		require.ErrorIs(t, tr.Write(19, job.Rows[:row]), engine.ErrInvalid, "written twice")
		require.ErrorIs(t, tr.Write(21, job.Rows[:row]), engine.ErrInvalid, "a row left out")
		require.ErrorIs(t, tr.Write(20, job.Rows[19*row:]), engine.ErrInvalid, "more than declared")
		require.ErrorIs(t, tr.Write(20, job.Rows[:row-1]), engine.ErrInvalid, "a part of a row")
		require.ErrorIs(t, tr.Submit(job.Slice), engine.ErrPrecondition, "rows are missing")
		require.NoError(t, tr.Write(20, job.Rows[20*row:]), "what was refused left nothing behind")
		require.NoError(t, tr.Submit(job.Slice))
		_, err = tr.Wait(sliceTimeout)
		require.NoError(t, err)
		require.ErrorIs(t, tr.Write(50, job.Rows[:row]), engine.ErrPrecondition, "the training has begun")
		_, err = tr.Variances()
		require.ErrorIs(t, err, engine.ErrPrecondition, "the training is not done")
		require.NoError(t, tr.Close())
	}
	job := smallJob(func(c *engine.TrainerConfig) { c.Codebook.Type = engine.VectorF16 })
	job.Rows = with(job.Rows, engine.VectorF32, 9, 65520)
	_, err := job.Train(dev, nil)
	require.ErrorIs(t, err, engine.ErrInvalid, "an F16 codeword cannot hold the rows")
	job.Rows = with(job.Rows, engine.VectorF32, 9, 65519)
	require.NoError(t, job.Check(dev))
}

func testRefusedCodes(t *testing.T, dev engine.Vectors, _ VectorOptions) {
	desc := engine.CodebookDesc{Kind: engine.Product, Dimension: 4, Codewords: 300, Subspaces: 2, Type: engine.VectorBF16}
	codewords := rowsOf(rowShapes[0], rand.New(rand.NewPCG(1, 9)), desc.Type, desc.Type, 300, 4)
	_, err := dev.NewCodebook(desc, codewords[1:])
	require.ErrorIs(t, err, engine.ErrInvalid)
	_, err = dev.NewCodebook(desc, with(codewords, desc.Type, 1199, math.Inf(-1)))
	require.ErrorIs(t, err, engine.ErrInvalid)
	book, err := dev.NewCodebook(desc, codewords)
	require.NoError(t, err)
	_, err = book.Decode([]byte{0, 0, 0, 0, 43, 1, 44, 1})
	require.ErrorIs(t, err, engine.ErrInvalid)
	require.ErrorContains(t, err, "row 1")
	require.ErrorContains(t, err, "300")
	_, err = book.Decode([]byte{0, 0, 0})
	require.ErrorIs(t, err, engine.ErrInvalid)
	rows := rowsOf(rowShapes[0], rand.New(rand.NewPCG(2, 9)), engine.VectorF32, desc.Type, 5, 4)
	for name, e := range map[string]engine.Encoding{
		"a row that is not finite": {Rows: with(rows, engine.VectorF32, 4*3+1, math.NaN()), Neighbours: 1},
		"a part of a row":          {Rows: rows[1:], Neighbours: 1},
		"no neighbour":             {Rows: rows},
		"neighbours of a product":  {Rows: rows, Neighbours: 2},
		"an unknown type":          {Rows: rows, Neighbours: 1, Element: engine.ElementCount},
	} {
		_, err := book.Encode(e)
		require.ErrorIs(t, err, engine.ErrInvalid, name)
		if name == "a row that is not finite" {
			require.ErrorContains(t, err, "row 3")
		}
	}
	require.NoError(t, book.Close())
}
