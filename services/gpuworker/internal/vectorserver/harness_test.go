package vectorserver

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/vectors"
	"github.com/millrace/millrace/internal/cputest"
	"github.com/millrace/millrace/internal/repotest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gpuworker/internal/server"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestMain(m *testing.M) {
	template.MaybeChild()
	os.Exit(m.Run())
}

// hang bounds waits for events that must come; a process that stands still for seconds is late and
// not wrong.
const hang = time.Minute

// worker is a whole worker in memory. It waits for callers as long as hang; tests of that bound set
// server.patience between calls.
type worker struct {
	conn    *grpc.ClientConn
	infer   pb.InferenceServiceClient
	health  pb.WorkerServiceClient
	vectors pb.VectorServiceClient

	server *Server
	books  *vectors.Manager

	codebooks string // the folder
	stop      func() // as a signal does
}

func simDevice(t *testing.T, o sim.Options) engine.Device {
	t.Helper()
	d, err := sim.Open(o, rpctest.Logger(t))
	require.NoError(t, err)
	return d
}

func cpuDevice(t *testing.T) engine.Device {
	t.Helper()
	d, err := native.Open(native.Options{Device: "cpu", Path: cputest.Path()}, rpctest.Logger(t))
	require.NoError(t, err)
	return d
}

// start serves a device's codebooks and models over memory, and loads the models given.
func start(t *testing.T, device engine.Device, load ...string) *worker {
	t.Helper()
	logger := rpctest.Logger(t)
	w := &worker{codebooks: filepath.Join(t.TempDir(), "codebooks")}
	models := model.NewManager(model.Config{Dir: filepath.Dir(repotest.Path("models/stories.gguf")), VerifyInterval: -1}, device, logger)
	w.books = vectors.NewManager(vectors.Config{Dir: w.codebooks, MaxTrainings: 2, Tokens: TokensOf(models)}, device, logger)
	host := server.New(models, server.Config{WorkerID: "w1", Incarnation: "i1", Version: "test", Extension: func(s *server.Server) server.Extension {
		w.server = New(s, Config{Manager: w.books, WorkerID: "w1", Patience: hang})
		return w.server
	}}, logger)
	r := rpc.NewServer(rpc.ServerConfig{
		Domain: rpc.WorkerDomain, DrainTimeout: hang, MaxWaitingBytes: rpc.DefaultMaxReceiveBytes, Options: host.Options(),
	}, logger)
	require.NoError(t, host.Register(r))
	lis := rpctest.Listener(t)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { host.Run(ctx, r) })
	stop := rpctest.Serve(t, r, lis)
	w.stop = func() {
		host.Stop()
		stop()
		cancel()
		work.Wait()
	}
	t.Cleanup(func() {
		w.stop()
		require.NoError(t, w.books.Close())
		require.NoError(t, models.Close())
		info, err := device.Info()
		require.NoError(t, err)
		require.Equal(t, [engine.PurposeCount]uint64{}, info.BytesUsed, "the ledger is back to zero")
		require.NoError(t, device.Close())
	})
	for _, name := range load {
		_, _, err := models.Load(t.Context(), name, model.Options{}, nil)
		require.NoError(t, err)
	}
	host.Started()
	w.conn = rpctest.Dial(t, lis)
	w.infer, w.health = pb.NewInferenceServiceClient(w.conn), pb.NewWorkerServiceClient(w.conn)
	w.vectors = pb.NewVectorServiceClient(w.conn)
	require.Eventually(t, func() bool {
		return w.report(t).GetState() != pb.WorkerState_WORKER_STATE_STARTING
	}, hang, time.Millisecond)
	return w
}

// report returns the worker's newest report.
func (w *worker) report(t *testing.T) *pb.WorkerReport {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	stream, err := w.health.Health(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.HealthRequest{}))
	m, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, m.GetFull())
	return m.GetFull()
}

// generate returns the token ids that follow a prompt.
func (w *worker) generate(t *testing.T, prompt string, maxTokens int32) (ids []uint32) {
	t.Helper()
	stream, err := w.infer.Generate(t.Context(), &pb.GenerateRequest{
		Model: "stories", Input: &pb.GenerateRequest_Prompt{Prompt: prompt},
		Sampling: &pb.Sampling{Seed: ptr(uint64(7))}, Stopping: &pb.Stopping{MaxTokens: ptr(maxTokens), IgnoreEos: ptr(true)},
	})
	require.NoError(t, err)
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			require.Len(t, ids, int(maxTokens))
			return ids
		}
		require.NoError(t, err)
		ids = append(ids, m.GetTokens().GetTokenIds()...)
	}
}

// violated returns the fields that a status complains of.
func violated(err error) (fields []string) {
	for _, v := range rpc.Violations(err) {
		fields = append(fields, v.Field)
	}
	slices.Sort(fields)
	return fields
}

func ptr[T any](v T) *T { return &v }
