package vq

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// config is Lloyd on rows of F32 with given codewords.
func config(rows, dimension, codewords int) engine.TrainerConfig {
	return engine.TrainerConfig{
		Codebook: engine.CodebookDesc{Dimension: dimension, Codewords: codewords, Subspaces: 1},
		Rows:     uint64(rows), Init: engine.Given, MaxIterations: 10, EnergyTolerance: -1, MinChanges: -1, StableRounds: 1,
	}
}

// train runs a training to its end.
func train(t *testing.T, cfg engine.TrainerConfig, rows, given []float64) (*Training, []engine.Round) {
	t.Helper()
	tr, err := New(cfg, rows, given)
	require.NoError(t, err)
	return tr, finish(t, tr)
}

func finish(t *testing.T, tr *Training) (rounds []engine.Round) {
	t.Helper()
	for tr.Reason() == engine.Unfinished {
		r, err := tr.Round()
		require.NoError(t, err)
		rounds = append(rounds, r)
	}
	_, err := tr.Round()
	require.ErrorIs(t, err, engine.ErrPrecondition)
	return rounds
}

func TestLloydByHand(t *testing.T) {
	// Rows 0, 2, 10, 14 on a line and codewords at 0 and 4: ids 0 0 1 1 (2 is a tie and goes to the
	// lower id), means 1 and 12.
	tr, rounds := train(t, config(4, 1, 2), []float64{0, 2, 10, 14}, []float64{0, 4})
	require.Equal(t, []engine.Round{
		{Iteration: 0, Energy: (0 + 4 + 36 + 100) / 4.0, Changes: 4, Imbalance: 1},
		{Iteration: 1, Energy: (1 + 1 + 4 + 4) / 4.0, Changes: 0, Imbalance: 1},
	}, rounds)
	require.Equal(t, engine.Converged, tr.Reason())
	require.Equal(t, []float64{1, 12}, Decode(engine.VectorF32, tr.Codewords()))
	require.Equal(t, []uint32{0, 0, 1, 1}, tr.IDs())
	require.Equal(t, []uint64{2, 2}, tr.Loads())
	require.Equal(t, []float64{1, 4}, tr.Variances())
}

func TestVariancesAreMeanDistances(t *testing.T) {
	// No update: codewords stay where they were given. Squared distances are 1 and 9 from the
	// first, 4 from the second.
	cfg := config(3, 1, 3)
	cfg.MaxIterations = 0
	rows, given := []float64{-1, 3, 12}, []float64{0, 10, 1000}
	tr, err := New(cfg, rows, given)
	require.NoError(t, err)
	require.Nil(t, tr.Variances(), "the training has not ended")
	finish(t, tr)
	require.Equal(t, []float64{5, 4, 0}, tr.Variances(), "a codeword without rows has 0")

	// By subspaces: the columns of a row are (0, 7), (2, 3) with codewords at 0 and 4, and at 6 and
	// 1.
	cfg = config(2, 2, 2)
	cfg.MaxIterations, cfg.Codebook.Kind, cfg.Codebook.Subspaces = 0, engine.Product, 2
	tr, _ = train(t, cfg, []float64{0, 7, 2, 3}, []float64{0, 4, 6, 1})
	require.Equal(t, []uint64{2, 0, 1, 1}, tr.Loads(), "2 is a tie")
	require.Equal(t, []float64{2, 0, 1, 4}, tr.Variances())

	// By cosine: 1 less the cosine of the angle.
	cfg = config(2, 2, 1)
	cfg.MaxIterations, cfg.Codebook.Metric = 0, engine.Cosine
	tr, _ = train(t, cfg, []float64{5, 0, 0, 3}, []float64{1, 0})
	require.Equal(t, []float64{0.5}, tr.Variances())
}

func TestAnEmptyCodewordTakesTheFarthestRow(t *testing.T) {
	// Codeword 1 has no row; of rows 0, 1, 9, 9 the first 9 is the farthest from codeword 0.
	cfg := config(4, 1, 2)
	cfg.MaxIterations = 1
	tr, rounds := train(t, cfg, []float64{0, 1, 9, 9}, []float64{1, 100})
	require.EqualValues(t, 1, rounds[0].Empty)
	require.EqualValues(t, 0, rounds[1].Empty)
	require.Equal(t, []float64{4.75, 9}, Decode(engine.VectorF32, tr.Codewords()))
	require.Equal(t, engine.ReachedMaxIterations, tr.Reason())
}

func TestRowsThatAreAllEqualSucceed(t *testing.T) {
	for _, init := range []engine.Init{engine.Random, engine.KMeansPlusPlus, engine.Farthest} {
		for _, metric := range []engine.Metric{engine.L2, engine.Cosine} {
			cfg := config(5, 2, 3)
			cfg.Init, cfg.Codebook.Metric = init, metric
			tr, rounds := train(t, cfg, []float64{3, 4, 3, 4, 3, 4, 3, 4, 3, 4}, nil)
			require.EqualValues(t, 2, rounds[len(rounds)-1].Empty)
			require.InDelta(t, 0, rounds[len(rounds)-1].Energy, 1e-7)
			require.Equal(t, engine.Converged, tr.Reason())
			require.Equal(t, []uint32{0, 0, 0, 0, 0}, tr.IDs())
		}
	}
}

func TestAsManyCodewordsAsRowsLeaveNoEnergy(t *testing.T) {
	for _, init := range []engine.Init{engine.Random, engine.KMeansPlusPlus, engine.Farthest} {
		cfg := config(6, 1, 6)
		cfg.Init = init
		_, rounds := train(t, cfg, []float64{0x1p-149, -7, 3, 0x1p100, 5, 8}, nil)
		require.Zero(t, rounds[0].Energy, init)
		require.Zero(t, rounds[0].Empty, init)
	}
}

func TestFarthestByHand(t *testing.T) {
	cfg := config(5, 1, 3)
	cfg.Init = engine.Farthest
	first := int(below(draw(cfg.Seed, 0, 0, drawFar, 0), 5))
	rows := []float64{1, 1, 1, 1, 1}
	rows[(first+1)%5], rows[(first+2)%5] = 4, -5 // -5 is farther from 1, and then 4 from both
	tr, err := New(cfg, rows, nil)
	require.NoError(t, err)
	require.Equal(t, []float64{1, -5, 4}, tr.spaces[0].c)
}

func TestPlusPlusDrawsBySquaredDistance(t *testing.T) {
	// From row 0 at 0, the rows at 1 and 3 are drawn as 1 to 9.
	cfg := config(3, 1, 2)
	cfg.Init = engine.KMeansPlusPlus
	far, all := 0, 0
	for cfg.Seed = 0; cfg.Seed < 6000; cfg.Seed++ {
		tr, err := New(cfg, []float64{0, 1, 3}, nil)
		require.NoError(t, err)
		if c := tr.spaces[0].c; c[0] == 0 {
			all++
			if c[1] == 3 {
				far++
			}
		}
	}
	require.InDelta(t, 0.9, float64(far)/float64(all), 0.02)
	row, before := pass([]float64{1, 0, 2, 0}, 3)
	require.Equal(t, 2, row, "a target at the sum takes the last row with a weight")
	require.Equal(t, 1.0, before)
}

func TestLloydNeverRaisesTheEnergyOfF32(t *testing.T) {
	rows := gaussian(300, 5, 1)
	for _, shift := range []float64{0, 1e6} {
		moved := make([]float64, len(rows))
		for i := range rows {
			moved[i] = Round(engine.VectorF32, rows[i]+shift)
		}
		cfg := config(300, 5, 7)
		cfg.Init, cfg.MaxIterations = engine.Random, 50
		tr, rounds := train(t, cfg, moved, nil)
		require.Equal(t, engine.Converged, tr.Reason())
		for i := 1; i < len(rounds); i++ {
			require.LessOrEqual(t, rounds[i].Energy, rounds[i-1].Energy*(1+1e-6))
		}
		require.Less(t, rounds[len(rounds)-1].Energy, 0.9*rounds[0].Energy)
	}
}

func TestAProductIsItsSubspaces(t *testing.T) {
	const n, k = 60, 4
	rows := gaussian(n, 6, 3)
	cfg := config(n, 6, k)
	cfg.Codebook.Kind, cfg.Codebook.Subspaces, cfg.Init, cfg.MaxIterations = engine.Product, 3, engine.Given, 3
	cfg.MinChanges, cfg.StableRounds = -1, 100
	given := gaussian(k, 6, 4)
	whole, rounds := train(t, cfg, rows, given)
	energy := 0.0
	for s := range 3 {
		part := config(n, 2, k)
		part.MaxIterations, part.StableRounds = 3, 100
		var own []float64
		for i := range n {
			own = append(own, rows[i*6+2*s:i*6+2*s+2]...)
		}
		alone, r := train(t, part, own, given[s*2*k:(s+1)*2*k])
		require.Equal(t, alone.spaces[0].c, whole.spaces[s].c)
		energy += r[3].Energy
	}
	require.InDelta(t, energy, rounds[3].Energy, 1e-12)
}

func TestCosineKeepsDirectionsOfLengthOne(t *testing.T) {
	cfg := config(4, 2, 2)
	cfg.Codebook.Metric = engine.Cosine
	tr, rounds := train(t, cfg, []float64{100, 0, 1e-3, 0, 0, 5, 0, 0}, []float64{1, 0, 0, 1})
	require.Equal(t, []uint32{0, 0, 1, 0}, tr.IDs(), "a row of zeros has the lowest id")
	require.Equal(t, []float64{1, 0, 0, 1}, tr.spaces[0].c)
	require.Equal(t, 0.25, rounds[0].Energy, "a row of zeros is at distance 1")
}

func TestTrainingFromStateEndsInTheSameBits(t *testing.T) {
	rows := gaussian(200, 4, 9)
	for name, change := range map[string]func(*engine.TrainerConfig){
		"lloyd":   func(*engine.TrainerConfig) {},
		"product": func(c *engine.TrainerConfig) { c.Codebook.Kind, c.Codebook.Subspaces = engine.Product, 2 },
		"annealed": func(c *engine.TrainerConfig) {
			c.Algorithm, c.Annealing = engine.Annealed, annealing()
			c.StableRounds = 50
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(200, 4, 5)
			cfg.Init, cfg.MaxIterations, cfg.StableRounds, cfg.Codebook.Type = engine.KMeansPlusPlus, 12, 3, engine.VectorF16
			change(&cfg)
			whole, want := train(t, cfg, rows, nil)
			for stop := 0; stop <= len(want); stop++ {
				tr, err := New(cfg, rows, nil)
				require.NoError(t, err)
				for range stop {
					_, err := tr.Round()
					require.NoError(t, err)
				}
				again, err := Resume(cfg, rows, tr.State())
				require.NoError(t, err)
				require.Equal(t, want[min(stop, len(want)-1):], finish(t, again))
				require.Equal(t, whole.State(), again.State())
				require.Equal(t, whole.Codewords(), again.Codewords())
			}
			for _, bad := range [][]byte{nil, whole.State()[1:], append(whole.State(), 0), make([]byte, len(whole.State()))} {
				_, err := Resume(cfg, rows, bad)
				require.ErrorIs(t, err, engine.ErrInvalid)
			}
		})
	}
}

func annealing() engine.Annealing {
	return engine.Annealing{Temperature: 1, CoolingRate: 0.05, LearningRate: 0.5, Momentum: 0.3, Trim: 0.1, StepLimit: 2,
		MaintenanceInterval: 2, MergeDistance: 0.3, SplitLoad: 1.5}
}

func TestAnnealingByHand(t *testing.T) {
	// Rows 0 1 2 3 10 near codeword 1: trimming a fifth leaves out 10, the mean of the others is
	// 1.5, half way there is 1.25.
	cfg := config(5, 1, 1)
	cfg.Algorithm, cfg.MaxIterations = engine.Annealed, 2
	cfg.Annealing = engine.Annealing{Temperature: 0.5, CoolingRate: 0.5, LearningRate: 1, Momentum: 0.5, Trim: 0.2}
	tr, rounds := train(t, cfg, []float64{0, 1, 2, 3, 10}, []float64{1})
	require.Equal(t, 0.5, rounds[0].Temperature)
	require.Equal(t, 0.25, rounds[1].Temperature)
	// The second step: half of the first one, 0.125, and a quarter of 1.5 - 1.25.
	require.Equal(t, []float64{1.25 + 0.125 + 0.0625}, tr.spaces[0].p)
	cfg.Annealing.StepLimit = 0.125
	cfg.MaxIterations = 1
	tr, _ = train(t, cfg, []float64{0, 1, 2, 3, 10}, []float64{1})
	require.Equal(t, []float64{1.125}, tr.spaces[0].p)
}

func TestMaintenanceMergesAndSplitsCodewords(t *testing.T) {
	// Codewords 0 and 0.5 are near each other with 1 and 2 rows; codeword 10 has six rows of nine,
	// more than 1.5 of its share of 3.
	cfg := config(9, 1, 3)
	cfg.Algorithm, cfg.MaxIterations = engine.Annealed, 1
	cfg.Annealing = engine.Annealing{Temperature: 1, LearningRate: 1, MaintenanceInterval: 1, MergeDistance: 1, SplitLoad: 1.5}
	rows := []float64{0, 0.5, 0.5, 9, 9, 9, 12, 12, 9}
	tr, rounds := train(t, cfg, rows, []float64{0, 0.5, 10})
	require.EqualValues(t, 1, rounds[0].Merged)
	require.EqualValues(t, 1, rounds[0].Split)
	require.Equal(t, []float64{1 / 3.0, 12, 10}, tr.spaces[0].p, "the last of the two rows at 12 is the donor's farthest")
	require.Equal(t, Round(engine.VectorF32, 1/3.0), tr.spaces[0].c[0])
}

func TestBadTrainingsAreRefusedByName(t *testing.T) {
	rows := []float64{1, 2, 3, 4}
	for want, change := range map[string]func(*engine.TrainerConfig, []float64){
		"row 1 has NaN":         func(_ *engine.TrainerConfig, x []float64) { x[3] = math.NaN() },
		"dimension is 0":        func(c *engine.TrainerConfig, _ []float64) { c.Codebook.Dimension = 0 },
		"rows are 2":            func(c *engine.TrainerConfig, _ []float64) { c.Codebook.Codewords = 3 },
		"a divisor":             func(c *engine.TrainerConfig, _ []float64) { c.Codebook.Kind, c.Codebook.Subspaces = engine.Product, 3 },
		"column 1 holds 70000":  func(c *engine.TrainerConfig, x []float64) { x[1], c.Codebook.Type = 70000, engine.VectorF16 },
		"energy tolerance is N": func(c *engine.TrainerConfig, _ []float64) { c.EnergyTolerance = math.NaN() },
		"2 given values, want":  func(c *engine.TrainerConfig, _ []float64) { c.Codebook.Codewords = 2 },
	} {
		t.Run(want, func(t *testing.T) {
			cfg, x := config(2, 2, 1), append([]float64(nil), rows...)
			change(&cfg, x)
			_, err := New(cfg, x, []float64{1, 1})
			require.ErrorIs(t, err, engine.ErrInvalid)
			require.ErrorContains(t, err, want)
		})
	}
}

// gaussian are values that F32 holds.
func gaussian(n, d int, seed uint64) []float64 {
	r := rand.New(rand.NewPCG(seed, 5))
	out := make([]float64, n*d)
	for i := range out {
		out[i] = float64(float32(r.NormFloat64()))
	}
	return out
}
