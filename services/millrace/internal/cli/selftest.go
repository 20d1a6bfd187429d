package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/render"
)

// errSelftest: a worker gave other bits than the reference.
var errSelftest = errors.New("the worker's training differs from the float64 reference: its device or its engine is faulty")

// selftestShape is one of the tests.
type selftestShape struct{ rows, dimension, codewords int }

var smallTest, largeTest = selftestShape{1000, 64, 32}, selftestShape{10_000, 128, 256}

// ratio is the bytes of codewords in 16 bits and of ids in 32 over those of the rows.
func (s selftestShape) ratio() float64 {
	return float64(2*s.codewords*s.dimension+4*s.rows) / float64(4*s.rows*s.dimension)
}

// selftestResult is what a test gave.
type selftestResult struct {
	Rows             int     `json:"rows"`
	Dimension        int     `json:"dimension"`
	Codewords        int     `json:"codewords"`
	Worker           string  `json:"worker"`
	Seconds          float64 `json:"seconds"` // of the whole call
	DeviceSeconds    float64 `json:"device_seconds"`
	ReferenceSeconds float64 `json:"reference_seconds"`
	Iterations       uint64  `json:"iterations"`
	ReferenceRounds  int64   `json:"reference_iterations"`
	Energy           float64 `json:"energy"`
	EnergyDifference float64 `json:"energy_difference"` // the largest of all rounds
	Ratio            float64 `json:"ratio"`             // with ids of 4 bytes, as the test was first described
	CompressionRatio float64 `json:"compression_ratio"` // with codes of one byte
	SameCodebook     bool    `json:"same_codebook"`
	OK               bool    `json:"ok"`
}

// vectorsSelftest trains where the answer is known.
func (a *app) vectorsSelftest() *cobra.Command {
	large, asJSON := false, false
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Train on three circles and compare every round with a float64 reference",
		Long: "Trains an annealed codebook on three circles, 1 000 rows of 64 with 32 codewords, or with --large 10 000 of 128 with 256,\n" +
			"on the target, and does the same in plain float64 here. Iterations, the energy of every round and the codebook's bytes\n" +
			"must be equal; else the exit code is 1.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			shape := smallTest
			if large {
				shape = largeTest
			}
			client, hangUp, err := a.vectorService()
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.deadline(cmd.Context(), 0)
			defer cancel()
			out, err := a.selftest(ctx, client, shape, asJSON)
			if err != nil {
				return err
			}
			if asJSON {
				err = json.NewEncoder(a.Out).Encode(out)
			} else {
				fmt.Fprint(a.Out, out.text())
			}
			if err == nil && !out.OK {
				err = errSelftest
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&large, "large", false, "the larger test: the reference takes some seconds")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// selftestConfig is annealing with a tenth of the rows trimmed, until the energy rests.
func selftestConfig(s selftestShape) *pb.TrainingConfig {
	return &pb.TrainingConfig{
		Dimension: uint32(s.dimension), Rows: uint64(s.rows), ElementType: pb.ElementType_ELEMENT_TYPE_F32,
		Kind: pb.CodebookKind_CODEBOOK_KIND_FLAT, Codewords: uint32(s.codewords), CodewordType: pb.ElementType_ELEMENT_TYPE_F16,
		Metric: pb.VectorMetric_VECTOR_METRIC_L2, Algorithm: pb.TrainingAlgorithm_TRAINING_ALGORITHM_ANNEALED,
		Init: pb.CodebookInit_CODEBOOK_INIT_FARTHEST, Seed: proto.Uint64(1), MaxIterations: proto.Uint32(100),
		EnergyTolerance: proto.Float64(selftestTolerance), StableIterations: proto.Uint32(2),
		Annealing: &pb.Annealing{
			Temperature: proto.Float64(1), CoolingRate: proto.Float64(0.05), LearningRate: proto.Float64(0.2), Momentum: proto.Float64(0),
			Trim: proto.Float64(0.1),
		},
	}
}

// selftestTolerance ends the small test after 31 iterations and the large one after 43.
const selftestTolerance = 1e-5

// referenceConfig is the same for the reference.
func referenceConfig(cfg *pb.TrainingConfig) engine.TrainerConfig {
	a := cfg.GetAnnealing()
	return engine.TrainerConfig{
		Codebook: engine.CodebookDesc{
			Dimension: int(cfg.GetDimension()), Codewords: int(cfg.GetCodewords()), Subspaces: 1, Type: engine.VectorF16,
		},
		Rows: cfg.GetRows(), Element: engine.VectorF32, Algorithm: engine.Annealed, Init: engine.Farthest, Seed: cfg.GetSeed(),
		MaxIterations: int(cfg.GetMaxIterations()), EnergyTolerance: cfg.GetEnergyTolerance(), MinChanges: -1,
		StableRounds: int(cfg.GetStableIterations()),
		Annealing: engine.Annealing{
			Temperature: a.GetTemperature(), CoolingRate: a.GetCoolingRate(), LearningRate: a.GetLearningRate(), Momentum: a.GetMomentum(),
			Trim: a.GetTrim(),
		},
	}
}

func (a *app) selftest(ctx context.Context, client pb.VectorServiceClient, s selftestShape, quiet bool) (*selftestResult, error) {
	rows := circles(s.rows, s.dimension)
	t := &training{config: selftestConfig(s), rows: rows}
	told := int64(-1)
	t.event = func(event *pb.TrainCodebookResponse) error {
		p := event.GetProgress()
		if !quiet && p != nil && p.Iteration != nil && int64(p.GetIteration()) > told && p.GetIteration()%10 == 0 {
			told = int64(p.GetIteration())
			fmt.Fprintf(a.Err, "iteration %3d  T %.4f  E %.6f  dE %+.2e  changes %d\n", told, p.GetTemperature(), p.GetEnergy(),
				p.GetEnergyDelta(), p.GetChanges())
		}
		return nil
	}
	began := time.Now()
	done, err := t.run(ctx, client)
	if err != nil {
		return nil, err
	}
	out := &selftestResult{
		Rows: s.rows, Dimension: s.dimension, Codewords: s.codewords, Worker: done.worker, Seconds: time.Since(began).Seconds(),
		DeviceSeconds: done.finished.GetTimings().GetDevice().AsDuration().Seconds(),
		Iterations:    done.finished.GetIterations(), Energy: done.finished.GetEnergy(), CompressionRatio: done.finished.GetCompressionRatio(),
		Ratio: s.ratio(),
	}
	if !quiet {
		fmt.Fprintln(a.Err, "the same in float64, here ...")
	}
	return out, a.compare(ctx, out, done, rows, referenceConfig(t.config))
}

// compare trains the reference beside what a worker gave.
func (a *app) compare(ctx context.Context, out *selftestResult, done *trained, rows *memoryRows, cfg engine.TrainerConfig) error {
	began := time.Now()
	reference, err := vq.New(cfg, vq.Decode(engine.VectorF32, rows.bytes), nil)
	if err != nil {
		return err
	}
	show := a.counter("rounds", int(out.Iterations)+1)
	defer show.close()
	for reference.Reason() == engine.Unfinished {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r, err := reference.Round()
		if err != nil {
			return err
		}
		if out.ReferenceRounds = r.Iteration; int(r.Iteration) < len(done.energies) {
			out.EnergyDifference = max(out.EnergyDifference, math.Abs(done.energies[r.Iteration]-r.Energy))
		}
		show.set(int(r.Iteration) + 1)
	}
	out.ReferenceSeconds = time.Since(began).Seconds()
	out.SameCodebook = bytes.Equal(done.codewords, reference.Codewords())
	out.OK = out.SameCodebook && out.EnergyDifference == 0 && int64(out.Iterations) == out.ReferenceRounds &&
		len(done.energies) == int(out.Iterations)+1
	return nil
}

func (r *selftestResult) text() string {
	verdict := "passed"
	if !r.OK {
		verdict = "FAILED"
	}
	return fmt.Sprintf("%d rows of %d, %d codewords: %s\n", r.Rows, r.Dimension, r.Codewords, verdict) +
		fmt.Sprintf("  time        %s, the device worked %s, the reference %s\n", seconds(r.Seconds), seconds(r.DeviceSeconds), seconds(r.ReferenceSeconds)) +
		fmt.Sprintf("  iterations  %d, the reference's %d\n", r.Iterations, r.ReferenceRounds) +
		fmt.Sprintf("  energy      %.6g, at most %g from the reference's in any round\n", r.Energy, r.EnergyDifference) +
		fmt.Sprintf("  codebook    %s\n", map[bool]string{true: "the same bytes", false: "other bytes"}[r.SameCodebook]) +
		fmt.Sprintf("  ratio       %.2f %% with ids of 4 bytes, %.2f %% with codes of 1\n", 100*r.Ratio, 100*r.CompressionRatio) +
		render.Line("  worker      "+r.Worker) + "\n"
}

func seconds(s float64) string { return render.Duration(time.Duration(s * 1e9)) }
