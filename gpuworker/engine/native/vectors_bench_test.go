package native_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/internal/cputest"
)

// gaussian returns n normally distributed F32 values.
func gaussian(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([]byte, 0, 4*n)
	for range n {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(r.NormFloat64())))
	}
	return out
}

// roof returns the f32 rate of the device in operations a second: the best of some short
// measurements, because other programs may use the machine.
func roof(b *testing.B, dev engine.Device) (best float64) {
	b.Helper()
	for range 6 {
		rate, err := dev.(engine.Meter).Measure(engine.MeasureF32Ops, 50e6)
		require.NoError(b, err)
		best = max(best, rate)
	}
	return best
}

func openBench(b *testing.B) engine.Device {
	b.Helper()
	dev := openCPU(b, cputest.Path(), 0)
	b.Cleanup(func() { require.NoError(b, dev.Close()) })
	return dev
}

// BenchmarkEncode reports vectors/s, and the share of the f32 rate of their 2*k*d operations. The
// rate is measured before and after.
func BenchmarkEncode(b *testing.B) {
	for _, c := range []struct{ d, k, subspaces, rows int }{
		{128, 256, 1, 1 << 18},
		{128, 1024, 1, 1 << 16},
		{128, 4096, 1, 1 << 14},
		{128, 65536, 1, 1 << 10},
		{32, 256, 1, 1 << 18},
		{768, 1024, 1, 1 << 14},
		{128, 256, 16, 1 << 17},
		{128, 256, 32, 1 << 16},
	} {
		b.Run(fmt.Sprintf("d=%d/k=%d/subspaces=%d", c.d, c.k, c.subspaces), func(b *testing.B) {
			dev := openBench(b)
			desc := engine.CodebookDesc{Dimension: c.d, Codewords: c.k, Subspaces: c.subspaces}
			if c.subspaces > 1 {
				desc.Kind = engine.Product
			}
			book, err := dev.(engine.Vectors).NewCodebook(desc, gaussian(c.k*c.d))
			require.NoError(b, err)
			rows := engine.Encoding{Rows: gaussian(c.rows * c.d), Neighbours: 1}
			before := roof(b, dev)
			var codes engine.Codes
			for b.Loop() {
				codes, err = book.Encode(rows)
				require.NoError(b, err)
			}
			rate := float64(c.rows) * float64(b.N) / b.Elapsed().Seconds()
			b.ReportMetric(rate, "vectors/s")
			b.ReportMetric(100*rate*2*float64(c.k)*float64(c.d)/max(before, roof(b, dev)), "%roof")
			b.ReportMetric(100*float64(codes.Recomputed)/float64(c.rows*c.subspaces), "%recomputed")
			require.NoError(b, book.Close())
		})
	}
}

// train makes a trainer, writes its rows, trains and reads the codebook.
func train(b *testing.B, dev engine.Device, cfg engine.TrainerConfig, rows []byte) (rounds int, told engine.Training) {
	b.Helper()
	tr, err := dev.(engine.Vectors).NewTrainer(cfg)
	require.NoError(b, err)
	require.NoError(b, tr.Write(0, rows))
	for told.Phase != engine.Done {
		require.NoError(b, tr.Submit(engine.Slice{Rounds: 1 << 10, Budget: 5e6}))
		told, err = tr.Wait(time.Minute)
		require.NoError(b, err)
		rounds += len(told.Rounds)
	}
	_, err = tr.Codewords()
	require.NoError(b, err)
	require.NoError(b, tr.Close())
	return rounds, told
}

// BenchmarkTrain measures whole trainings, from the new trainer to the codebook.
func BenchmarkTrain(b *testing.B) {
	annealed := engine.Annealing{
		Temperature: 1, CoolingRate: 0.05, LearningRate: 0.2, Trim: 0.1, MaintenanceInterval: 10, MergeDistance: 0.01, SplitLoad: 3,
	}
	flat := engine.CodebookDesc{Dimension: 128, Codewords: 256, Subspaces: 1, Type: engine.VectorF16}
	product := engine.CodebookDesc{Kind: engine.Product, Dimension: 128, Codewords: 256, Subspaces: 16, Type: engine.VectorF16}
	large := flat
	large.Codewords = 2048
	for name, cfg := range map[string]engine.TrainerConfig{
		"large":        {Codebook: flat, Rows: 10000, Algorithm: engine.Annealed, Init: engine.Farthest, MaxIterations: 31, Annealing: annealed},
		"lloyd":        {Codebook: flat, Rows: 200000, Init: engine.Random, MaxIterations: 10},
		"lloyd/k=2048": {Codebook: large, Rows: 100000, Init: engine.Random, MaxIterations: 3},
		"kmeans++":     {Codebook: flat, Rows: 50000, Init: engine.KMeansPlusPlus, MaxIterations: 0},
		"product":      {Codebook: product, Rows: 100000, Init: engine.Random, MaxIterations: 10},
	} {
		cfg.StableRounds, cfg.MinChanges, cfg.EnergyTolerance = 1000, -1, -1
		b.Run(name, func(b *testing.B) {
			dev := openBench(b)
			rows := gaussian(int(cfg.Rows) * cfg.Codebook.Dimension)
			before := roof(b, dev)
			rounds, told := 0, engine.Training{}
			for b.Loop() {
				rounds, told = train(b, dev, cfg, rows)
			}
			seconds := b.Elapsed().Seconds() / float64(b.N)
			ops := float64(rounds) * float64(cfg.Rows) * 2 * float64(cfg.Codebook.Codewords) * float64(cfg.Codebook.Dimension)
			b.ReportMetric(seconds, "s/training")
			b.ReportMetric(float64(rounds), "rounds")
			b.ReportMetric(100*ops/seconds/max(before, roof(b, dev)), "%roof")
			b.ReportMetric(100*float64(told.Recomputed)/float64(told.Computed), "%recomputed")
		})
	}
}
