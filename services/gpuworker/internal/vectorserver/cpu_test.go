package vectorserver

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// The CPU engine and the reference engine of sim give the same bytes, however rows are cut into
// messages.
func TestEveryEngineGivesTheSameCodebooksAndCodes(t *testing.T) {
	rpctest.NoLeaks(t)
	cpu, sim := start(t, cpuDevice(t)), simWorker(t)
	rows := vectorRows(300, 6)
	for name, change := range map[string]func(*pb.TrainingConfig){
		"flat":    func(c *pb.TrainingConfig) { c.Codewords = 17 },
		"sampled": func(c *pb.TrainingConfig) { c.MaxRowsPerCodeword = ptr(uint64(20)) },
		"product": func(c *pb.TrainingConfig) {
			c.Kind, c.Subspaces = pb.CodebookKind_CODEBOOK_KIND_PRODUCT, ptr(uint32(3))
		},
		"cosine": func(c *pb.TrainingConfig) {
			c.Metric, c.CodewordType = pb.VectorMetric_VECTOR_METRIC_COSINE, pb.ElementType_ELEMENT_TYPE_F32
		},
		"annealed": func(c *pb.TrainingConfig) {
			c.Algorithm, c.CodewordType = pb.TrainingAlgorithm_TRAINING_ALGORITHM_ANNEALED, pb.ElementType_ELEMENT_TYPE_BF16
			c.Annealing = &pb.Annealing{Momentum: ptr(0.2), Trim: ptr(0.1), MaintenanceInterval: ptr(uint32(3)), SplitLoad: ptr(1.5)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := training(func(c *pb.TrainingConfig) {
				c.Dimension, c.Rows, c.SaveAs, c.CheckpointInterval = 6, 300, &name, ptr(uint32(5))
				change(c)
			})
			got := cpu.train(t.Context(), t, config, rowsOf(rows[:24]), rowsOf(rows[24:240]), rowsOf(rows[240:]))
			require.NoError(t, got.err)
			want := sim.train(t.Context(), t, config, rowsOf(rows))
			require.NoError(t, want.err)
			require.Equal(t, want.codebook, got.codebook)
			require.Equal(t, want.checkpoints, got.checkpoints)
			require.Equal(t, want.finished.GetCodebookDigest(), got.finished.GetCodebookDigest())
			require.Equal(t, want.finished.GetEnergy(), got.finished.GetEnergy())
			in := &pb.EncodeRequest{Codebook: name, ElementType: pb.ElementType_ELEMENT_TYPE_F32, Rows: rows, ReturnDistances: ptr(true)}
			a, err := cpu.vectors.Encode(t.Context(), in)
			require.NoError(t, err)
			b, err := sim.vectors.Encode(t.Context(), in)
			require.NoError(t, err)
			require.Equal(t, b.GetCodes(), a.GetCodes())
			require.Equal(t, b.GetDistances(), a.GetDistances())
			for updates, state := range want.checkpoints {
				resumed := training(func(c *pb.TrainingConfig) {
					c.Dimension, c.Rows, c.ResumeBytes = 6, 300, ptr(uint64(len(state)))
					change(c)
				})
				on := cpu.train(t.Context(), t, resumed, prologueOf(state), rowsOf(rows))
				require.NoError(t, on.err, "from %d", updates)
				require.Equal(t, want.codebook, on.codebook, "from %d", updates)
			}
		})
	}
}

func TestTrainingWhileTokensRunOnCPU(t *testing.T) {
	// A training and a generation on one CPU do not change each other's results.
	w := start(t, cpuDevice(t), "stories")
	rows := vectorRows(2000, 16)
	config := training(func(c *pb.TrainingConfig) { c.Dimension, c.Rows, c.Codewords = 16, 2000, 64 })
	wantTokens := w.generate(t, "Once", 60)
	wantBook := w.train(t.Context(), t, config, rowsOf(rows))
	require.NoError(t, wantBook.err)
	stream := w.begin(t.Context(), t, config)
	require.NoError(t, stream.Send(rowsOf(rows)))
	ended := make(chan result, 1)
	go func() { ended <- hearBehindAccepted(t, stream) }()
	for range 3 {
		require.Equal(t, wantTokens, w.generate(t, "Once", 60))
	}
	got := <-ended
	require.NoError(t, got.err)
	require.Equal(t, wantBook.codebook, got.codebook)
}

func TestCPURefusesATrainingTooLarge(t *testing.T) {
	// A training too large for the CPU is refused with the numbers.
	w := start(t, cpuDevice(t))
	got := w.train(t.Context(), t, training(func(c *pb.TrainingConfig) { c.Dimension, c.Rows = 65536, 1<<32-1 }))
	require.Equal(t, codes.ResourceExhausted, status.Code(got.err), "%v", got.err)
	require.Equal(t, reason.DoesNotFit, rpc.Reason(got.err), "%v", got.err)
	require.Equal(t, "0", rpc.Info(got.err).GetMetadata()["free_spool_bytes"])
	require.NotEmpty(t, rpc.Info(got.err).GetMetadata()["needed_bytes"])
	require.Nil(t, got.accepted)
}
