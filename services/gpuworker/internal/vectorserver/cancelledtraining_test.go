package vectorserver

import (
	"context"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// Wherever a training is when its caller leaves, nothing of it remains: no memory, no spool, no
// goroutine and no part of a file.
func TestAThousandCancelledTrainingsLeaveNothing(t *testing.T) {
	cancelAnywhere(t, simDevice(t, sim.Options{}), 1000)
}

func TestTrainingsOnTheCPUAreCancelledWithoutALeak(t *testing.T) {
	cancelAnywhere(t, cpuDevice(t), 150)
}

// cancelAnywhere starts trainings of all kinds and cancels each after any of its messages or at any
// time, until that many were cancelled in time.
func cancelAnywhere(t *testing.T, device engine.Device, cancelled int) {
	t.Helper()
	rpctest.NoLeaks(t)
	w := start(t, device)
	before, err := device.Info()
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(12, uint64(cancelled)))
	begun := 0
	for ; w.books.Stats().Cancelled < uint64(cancelled); begun++ {
		ctx, cancel := context.WithCancel(t.Context())
		few := uint32(r.IntN(4)) // iterations of one that may end, and be saved, before it is cancelled
		config := training(func(c *pb.TrainingConfig) {
			if few == 0 {
				few = 1000000
			}
			c.MaxIterations, c.StableIterations = &few, ptr(uint32(1000000))
			c.Init = []pb.CodebookInit{pb.CodebookInit_CODEBOOK_INIT_RANDOM, pb.CodebookInit_CODEBOOK_INIT_KMEANS_PLUS_PLUS}[r.IntN(2)]
			if r.IntN(2) == 0 {
				c.CheckpointInterval = ptr(uint32(1))
			}
			switch r.IntN(3) {
			case 0:
				c.Kind, c.Subspaces = pb.CodebookKind_CODEBOOK_KIND_PRODUCT, ptr(uint32(2))
			case 1:
				c.Algorithm = pb.TrainingAlgorithm_TRAINING_ALGORITHM_ANNEALED
			}
			if few < 4 {
				c.SaveAs = ptr("of/" + c.GetKind().String())
			}
		})
		stream := w.begin(ctx, t, config)
		_ = stream.Send(rowsOf(vectorRows([]int{0, 1, 63, 64, 64, 64, 64}[r.IntN(7)], 2))) // its error does not matter
		if r.IntN(2) == 0 {
			time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
		} else if config.GetSaveAs() != "" {
			_ = stream.CloseSend()
			for range r.IntN(8) {
				_, _ = stream.Recv()
			}
		}
		cancel()
		requireSoon(t, func() bool { return w.books.Stats().Trainings == 0 })
		require.Zero(t, w.books.Stats().TrainingBytes, "training %d", begun)
	}
	w.stop() // ends the calls, whose codebooks are saved or not
	st := w.books.Stats()
	require.EqualValues(t, begun, st.Cancelled+st.Failed+st.Finished)
	require.Zero(t, st.RefusedFrees)
	require.NoError(t, filepath.WalkDir(w.codebooks, func(path string, entry fs.DirEntry, err error) error {
		require.True(t, entry.IsDir() || filepath.Ext(path) == ".safetensors" && entry.Name()[0] != '.', "%s is left", path)
		return err
	}))
	for _, b := range w.books.List() {
		require.NoError(t, b.Problem, b.Name)
		if b.DeviceBytes > 0 {
			_, err := w.books.Unload(t.Context(), b.Name)
			require.NoError(t, err)
		}
	}
	after, err := device.Info()
	require.NoError(t, err)
	require.Equal(t, before.BytesUsed, after.BytesUsed)
}

// left is the stream of a caller whose connection has ended, before the call's context knows.
type left struct {
	grpc.ServerStream
	ctx  context.Context
	asks chan *pb.TrainCodebookRequest
}

func (l left) Context() context.Context { return l.ctx }

func (left) Send(*pb.TrainCodebookResponse) error {
	return status.Error(codes.Unavailable, "transport is closing")
}

func (l left) Recv() (*pb.TrainCodebookRequest, error) {
	select {
	case m := <-l.asks:
		return m, nil
	case <-l.ctx.Done():
		return nil, status.FromContextError(l.ctx.Err()).Err()
	}
}

func TestCallerGoneDuringSendCountsAsCancelled(t *testing.T) {
	// A training whose caller has gone while a message was sent counts as cancelled.
	rpctest.NoLeaks(t)
	w := simWorker(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asks := make(chan *pb.TrainCodebookRequest, 2)
	endless := training(func(c *pb.TrainingConfig) {
		c.MaxIterations, c.StableIterations = ptr(uint32(1000000)), ptr(uint32(1000000))
	})
	asks <- &pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Config{Config: endless}}
	asks <- rowsOf(vectorRows(64, 2))
	err := w.server.TrainCodebook(left{ctx: ctx, asks: asks})
	require.Equal(t, codes.Canceled, status.Code(err), "%v", err)
	st := w.books.Stats()
	require.Equal(t, [3]uint64{0, 1, 0}, [3]uint64{st.Finished, st.Cancelled, st.Failed})
}
