package server

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/internal/cputest"
	"github.com/millrace/millrace/internal/repotest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/textlimit"
)

func TestMain(m *testing.M) {
	template.MaybeChild()
	os.Exit(m.Run())
}

// hang bounds waits for events that must come. It is long, because a machine under load may stall
// for seconds.
const hang = time.Minute

// lifetime bounds the background work of a whole test. Each wait of the test has its own bound.
const lifetime = 8 * hang

// worker is a whole worker in memory. Its timeouts are those of hang; tests of a timeout set their
// own between calls.
type worker struct {
	conn   *grpc.ClientConn
	infer  pb.InferenceServiceClient
	models pb.ModelServiceClient
	health pb.WorkerServiceClient

	server  *Server
	manager *model.Manager
	dir     string
	stop    func() // as a signal does
}

// modelsDir returns a models folder with the shipped model in it.
func modelsDir(t *testing.T) string {
	t.Helper()
	stories := repotest.Path("testdata/models/stories-5m-q8_0.gguf")
	dir := t.TempDir()
	data, err := os.ReadFile(stories)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "stories.gguf"), data, 0o644))
	return dir
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

// start serves a device's models over memory and loads the names given.
func start(t *testing.T, device engine.Device, load ...string) *worker {
	t.Helper()
	return startWith(t, device, func(*setup) {}, load...)
}

// setup is the configuration of a worker.
type setup struct {
	models model.Config
	server Config
	rpc    rpc.ServerConfig
	logger hclog.Logger // of the server
}

// startWith is like start with a changed configuration.
func startWith(t *testing.T, device engine.Device, change func(*setup), load ...string) *worker {
	t.Helper()
	logger := rpctest.Logger(t)
	w := &worker{dir: modelsDir(t)}
	c := setup{
		models: model.Config{Dir: w.dir, VerifyInterval: -1},
		server: Config{WorkerID: "w1", Incarnation: "i1", Version: "test", LoadReports: true},
		rpc: rpc.ServerConfig{
			Domain: rpc.WorkerDomain, DrainTimeout: hang, MaxWaitingBytes: rpc.DefaultMaxReceiveBytes, MaxMethodBytes: textlimit.Methods(),
		},
		logger: logger,
	}
	change(&c)
	w.manager = model.NewManager(c.models, device, logger)
	w.server = New(w.manager, c.server, c.logger)
	w.server.drainReportTimeout = hang
	c.rpc.Options = w.server.Options()
	r := rpc.NewServer(c.rpc, logger)
	require.NoError(t, w.server.Register(r))
	lis := rpctest.Listener(t)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { w.server.Run(ctx, r) })
	stop := rpctest.Serve(t, r, lis)
	w.stop = func() {
		w.server.Stop()
		stop()
		cancel()
		work.Wait()
	}
	t.Cleanup(func() {
		w.stop()
		require.NoError(t, w.manager.Close())
		info, err := device.Info()
		require.NoError(t, err)
		require.Equal(t, [engine.PurposeCount]uint64{}, info.BytesUsed, "the ledger is back to zero")
		require.NoError(t, device.Close())
	})
	for _, name := range load {
		_, _, err := w.manager.Load(t.Context(), name, model.Options{}, nil)
		require.NoError(t, err)
	}
	w.server.Started()
	require.Eventually(t, func() bool {
		s := w.server.latest.Load()
		return s != nil && s.report.GetState() != pb.WorkerState_WORKER_STATE_STARTING && len(s.report.GetModels()) == len(load)
	}, hang, time.Millisecond)
	w.conn = rpctest.Dial(t, lis)
	w.infer, w.models, w.health = pb.NewInferenceServiceClient(w.conn), pb.NewModelServiceClient(w.conn), pb.NewWorkerServiceClient(w.conn)
	return w
}

// outcome is everything that a Generate call returned.
type outcome struct {
	events   []*pb.GenerateResponse
	started  *pb.Started
	prompt   []*pb.TokenDetail
	ids      map[uint32][]uint32
	text     map[uint32]string
	logprobs []float32
	finished map[uint32]*pb.Finished
	err      error
}

func (w *worker) generate(ctx context.Context, t *testing.T, in *pb.GenerateRequest) outcome {
	t.Helper()
	stream, err := w.infer.Generate(ctx, in)
	if err != nil { // the caller's context has ended
		return outcome{err: err}
	}
	return receive(t, stream)
}

// receive reads a call to its end.
func receive(t *testing.T, stream grpc.ServerStreamingClient[pb.GenerateResponse]) outcome {
	t.Helper()
	return collect(t, stream.Recv)
}

// collect returns the outcome of the events that next returns until its error. io.EOF is not an
// error of the call.
func collect(t *testing.T, next func() (*pb.GenerateResponse, error)) outcome {
	t.Helper()
	out := outcome{ids: map[uint32][]uint32{}, text: map[uint32]string{}, finished: map[uint32]*pb.Finished{}}
	for {
		r, err := next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			out.err = err
			return out
		}
		out.events = append(out.events, r)
		switch e := r.GetEvent().(type) {
		case *pb.GenerateResponse_Started:
			require.Nil(t, out.started, "started comes once")
			out.started = e.Started
		case *pb.GenerateResponse_Prompt:
			require.Len(t, out.prompt, int(e.Prompt.GetTokenIndex()))
			out.prompt = append(out.prompt, e.Prompt.GetDetails()...)
		case *pb.GenerateResponse_Tokens:
			o := e.Tokens.GetOutputIndex()
			require.NotNil(t, out.started)
			require.Nil(t, out.finished[o])
			before := len(out.ids[o])
			if resumed := out.started.GetResumedTokens(); resumed != nil {
				before += int(resumed[o])
			}
			require.Equal(t, before, int(e.Tokens.GetTokenIndex()), "a token index is the count of tokens before it")
			out.ids[o] = append(out.ids[o], e.Tokens.GetTokenIds()...)
			out.text[o] += e.Tokens.GetText()
			for _, d := range e.Tokens.GetDetails() {
				out.logprobs = append(out.logprobs, d.GetLogprob())
			}
		case *pb.GenerateResponse_Finished:
			require.Nil(t, out.finished[e.Finished.GetOutputIndex()], "finished comes once")
			out.finished[e.Finished.GetOutputIndex()] = e.Finished
		}
	}
}

// prompted returns a short request for the shipped model.
func prompted(prompt string, maxTokens int32) *pb.GenerateRequest {
	return &pb.GenerateRequest{
		Model: "stories", Input: &pb.GenerateRequest_Prompt{Prompt: prompt},
		Sampling: &pb.Sampling{Seed: ptr(uint64(7))}, Stopping: &pb.Stopping{MaxTokens: ptr(maxTokens), IgnoreEos: ptr(true)},
	}
}

func ptr[T any](v T) *T { return &v }
