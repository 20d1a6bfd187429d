package vectorcli

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
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

// errSelftest: a worker's bits differ from the reference's.
var errSelftest = errors.New("the worker's training differs from the float64 reference: its device or its engine is faulty")

// selftestShape is the size of a test.
type selftestShape struct{ rows, dimension, codewords int }

var smallTest, largeTest = selftestShape{1000, 64, 32}, selftestShape{10_000, 128, 256}

// ratio returns the bytes of codewords in 16 bits and ids in 32, divided by those of the rows.
func (s selftestShape) ratio() float64 {
	return float64(2*s.codewords*s.dimension+4*s.rows) / float64(4*s.rows*s.dimension)
}

// selftestResult has the plain training's figures, and those of one with momentum, merges and
// splits.
type selftestResult struct {
	Rows             int     `json:"rows"`
	Dimension        int     `json:"dimension"`
	Codewords        int     `json:"codewords"`
	Ratio            float64 `json:"ratio"`             // with ids of 4 bytes, as in the test's first description
	CompressionRatio float64 `json:"compression_ratio"` // with codes of one byte
	selftestTraining
	Maintained *selftestTraining `json:"maintained"`
	OK         bool              `json:"ok"` // of both
}

// selftestTraining is one training of a test, compared with the reference.
type selftestTraining struct {
	Worker           string          `json:"worker"`
	Seconds          float64         `json:"seconds"` // of the whole call
	DeviceSeconds    float64         `json:"device_seconds"`
	ReferenceSeconds float64         `json:"reference_seconds"`
	Speedup          float64         `json:"speedup"`          // the reference's time over the device's
	Beside           *selftestBeside `json:"beside,omitempty"` // on another worker
	Iterations       uint64          `json:"iterations"`
	ReferenceRounds  int64           `json:"reference_iterations"`
	Merged           int64           `json:"merged"` // codewords, of all updates
	Split            int64           `json:"split"`
	Energy           float64         `json:"energy"`
	EnergyDifference float64         `json:"energy_difference"` // the largest of all rounds
	SameCodebook     bool            `json:"same_codebook"`
	ok               bool
}

// selftestBeside is the same training on the worker of --beside.
type selftestBeside struct {
	Worker        string  `json:"worker"`
	DeviceSeconds float64 `json:"device_seconds"`
	Speedup       float64 `json:"speedup"` // its device's time over the target's
	SameCodebook  bool    `json:"same_codebook"`
}

// selftest trains on data whose result is known.
func (a *app) selftest() *cobra.Command {
	large, asJSON, beside := false, false, ""
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Train on three circles and compare every round with a float64 reference",
		Long: "Trains an annealed codebook on three circles, 1 000 rows of 64 with 32 codewords, or with --large 10 000 of 128 with 256,\n" +
			"on the target, and does the same in plain float64 here; then once more with momentum, merges and splits. Iterations, the\n" +
			"energy of every round and the codebook's bytes must be equal; else the exit code is 1. The speed-up is the reference's time\n" +
			"over that of the target's device. With --beside another worker, such as one on the CPU, trains the same, and the\n" +
			"speed-up over its device is printed too.",
		Example: "  millrace vectors selftest --large --target gpu-0:7071 --beside cpu-0:7071",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			shape := smallTest
			if large {
				shape = largeTest
			}
			clients, hangUp, err := a.selftestClients(beside)
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.Deadline(cmd.Context(), 0)
			defer cancel()
			out, err := a.runSelftest(ctx, clients, shape, asJSON)
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
	cmd.Flags().StringVar(&beside, "beside", "", "worker that trains the same, to print the speed-up over its device: host:port or unix:PATH")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// selftestClients connects to the target and, if it is named, to the worker of --beside.
func (a *app) selftestClients(beside string) ([]pb.VectorServiceClient, func(), error) {
	client, hangUp, err := a.client("")
	if err != nil || beside == "" {
		return []pb.VectorServiceClient{client}, hangUp, err
	}
	other, hangUpOther, err := a.client(beside)
	if err != nil {
		hangUp()
		return nil, nil, fmt.Errorf("--beside: %w", err)
	}
	return []pb.VectorServiceClient{client, other}, func() { hangUp(); hangUpOther() }, nil
}

// selftestConfig anneals with a tenth of the rows trimmed, until the energy is stable.
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

// maintainedConfig adds momentum, merges and splits; some of each happen within its iterations.
func maintainedConfig(s selftestShape) *pb.TrainingConfig {
	cfg := selftestConfig(s)
	cfg.MaxIterations = proto.Uint32(40)
	if s == largeTest {
		cfg.MaxIterations = proto.Uint32(12)
	}
	cfg.Annealing.Momentum, cfg.Annealing.MaintenanceInterval = proto.Float64(0.5), proto.Uint32(5)
	cfg.Annealing.MergeDistance, cfg.Annealing.SplitLoad = proto.Float64(32/float64(s.codewords)), proto.Float64(1.5)
	return cfg
}

// selftestTolerance ends the small test after 31 iterations and the large one after 43.
const selftestTolerance = 1e-5

// referenceConfig is the same config for the reference.
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
			Trim: a.GetTrim(), MaintenanceInterval: int(a.GetMaintenanceInterval()), MergeDistance: a.GetMergeDistance(), SplitLoad: a.GetSplitLoad(),
		},
	}
}

func (a *app) runSelftest(ctx context.Context, clients []pb.VectorServiceClient, s selftestShape, quiet bool) (*selftestResult, error) {
	out := &selftestResult{Rows: s.rows, Dimension: s.dimension, Codewords: s.codewords, Ratio: s.ratio()}
	rows := circles(s.rows, s.dimension)
	plain, err := a.selftrain(ctx, clients, rows, selftestConfig(s), quiet)
	if err != nil {
		return nil, err
	}
	if !quiet {
		fmt.Fprintln(a.Err, "with momentum, merges and splits ...")
	}
	maintained, err := a.selftrain(ctx, clients, rows, maintainedConfig(s), quiet)
	if err != nil {
		return nil, err
	}
	out.selftestTraining, out.Maintained, out.CompressionRatio = plain.selftestTraining, &maintained.selftestTraining, plain.compression
	out.OK = plain.ok && maintained.ok && maintained.Merged > 0 && maintained.Split > 0
	return out, nil
}

// selftrained is a training of the test before its figures are computed.
type selftrained struct {
	selftestTraining
	compression float64
}

// selftrain trains on the target, on the worker of --beside if there is one, and with the
// reference.
func (a *app) selftrain(ctx context.Context, clients []pb.VectorServiceClient, rows *memoryRows, cfg *pb.TrainingConfig, quiet bool) (*selftrained, error) {
	t := &training{config: proto.CloneOf(cfg), rows: rows}
	shown := int64(-1)
	t.event = func(event *pb.TrainCodebookResponse) error {
		p := event.GetProgress()
		if !quiet && p != nil && p.Iteration != nil && int64(p.GetIteration()) > shown && p.GetIteration()%10 == 0 {
			shown = int64(p.GetIteration())
			fmt.Fprintf(a.Err, "iteration %3d  T %.4f  E %.6f  dE %+.2e  changes %d\n", shown, p.GetTemperature(), p.GetEnergy(),
				p.GetEnergyDelta(), p.GetChanges())
		}
		return nil
	}
	began := time.Now()
	done, err := t.run(ctx, clients[0])
	if err != nil {
		return nil, err
	}
	out := &selftrained{compression: done.finished.GetCompressionRatio(), selftestTraining: selftestTraining{
		Worker: done.worker, Seconds: time.Since(began).Seconds(), DeviceSeconds: done.deviceSeconds(),
		Iterations: done.finished.GetIterations(), Energy: done.finished.GetEnergy(),
	}}
	same := true
	for _, client := range clients[1:] {
		other, err := (&training{config: proto.CloneOf(cfg), rows: rows}).run(ctx, client)
		if err != nil {
			return nil, fmt.Errorf("--beside: %w", err)
		}
		out.Beside = &selftestBeside{
			Worker: other.worker, DeviceSeconds: other.deviceSeconds(), SameCodebook: bytes.Equal(done.codewords, other.codewords),
		}
		out.Beside.Speedup = speedup(out.Beside.DeviceSeconds, out.DeviceSeconds)
		same = out.Beside.SameCodebook
	}
	if !quiet {
		fmt.Fprintln(a.Err, "the same in float64, here ...")
	}
	err = a.compare(ctx, &out.selftestTraining, done, rows, referenceConfig(cfg))
	out.ok = out.ok && same
	return out, err
}

func (d *trained) deviceSeconds() float64 {
	return d.finished.GetTimings().GetDevice().AsDuration().Seconds()
}

// speedup returns 0 if a device did not report its time.
func speedup(slow, fast float64) float64 {
	if fast <= 0 {
		return 0
	}
	return slow / fast
}

// compare runs the reference and compares it with the result of a worker.
func (a *app) compare(ctx context.Context, out *selftestTraining, done *trained, rows *memoryRows, cfg engine.TrainerConfig) error {
	began := time.Now()
	reference, err := vq.New(cfg, vq.Decode(engine.VectorF32, rows.bytes), nil)
	if err != nil {
		return err
	}
	show := tty.NewCounter(a.Err, "rounds", int(out.Iterations)+1)
	defer show.Close()
	for reference.Reason() == engine.Unfinished {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r, err := reference.Round()
		if err != nil {
			return err
		}
		out.Merged += r.Merged
		out.Split += r.Split
		if out.ReferenceRounds = r.Iteration; int(r.Iteration) < len(done.energies) {
			out.EnergyDifference = max(out.EnergyDifference, math.Abs(done.energies[r.Iteration]-r.Energy))
		}
		show.Set(int(r.Iteration) + 1)
	}
	out.ReferenceSeconds = time.Since(began).Seconds()
	out.Speedup = speedup(out.ReferenceSeconds, out.DeviceSeconds)
	out.SameCodebook = bytes.Equal(done.codewords, reference.Codewords())
	out.ok = out.SameCodebook && out.EnergyDifference == 0 && int64(out.Iterations) == out.ReferenceRounds &&
		len(done.energies) == int(out.Iterations)+1
	return nil
}

func (r *selftestResult) text() string {
	return fmt.Sprintf("%d rows of %d, %d codewords: %s\n", r.Rows, r.Dimension, r.Codewords, verdict(r.ok)) +
		r.lines() +
		fmt.Sprintf("  ratio       %.2f %% with ids of 4 bytes, %.2f %% with codes of 1\n", 100*r.Ratio, 100*r.CompressionRatio) +
		fmt.Sprintf("with momentum, %d merges and %d splits: %s\n", r.Maintained.Merged, r.Maintained.Split,
			verdict(r.Maintained.ok && r.Maintained.Merged > 0 && r.Maintained.Split > 0)) +
		r.Maintained.lines() +
		render.Line("worker      "+r.Worker) + "\n"
}

func verdict(ok bool) string {
	if ok {
		return "passed"
	}
	return "FAILED"
}

func (t *selftestTraining) lines() string {
	bytes := map[bool]string{true: "the same bytes", false: "other bytes"}
	text := fmt.Sprintf("  time        %s, the device worked %s, the reference %s\n", seconds(t.Seconds), seconds(t.DeviceSeconds), seconds(t.ReferenceSeconds)) +
		fmt.Sprintf("  speed-up    %.1f over the reference, one thread of float64 here\n", t.Speedup)
	if b := t.Beside; b != nil {
		text += render.Line(fmt.Sprintf("  beside      %.1f over the device of %s, which worked %s: %s", b.Speedup, b.Worker, seconds(b.DeviceSeconds), bytes[b.SameCodebook])) + "\n"
	}
	return text + fmt.Sprintf("  iterations  %d, the reference's %d\n", t.Iterations, t.ReferenceRounds) +
		fmt.Sprintf("  energy      %.6g, at most %g from the reference's in any round\n", t.Energy, t.EnergyDifference) +
		fmt.Sprintf("  codebook    %s\n", bytes[t.SameCodebook])
}

func seconds(s float64) string { return render.Duration(time.Duration(s * 1e9)) }
