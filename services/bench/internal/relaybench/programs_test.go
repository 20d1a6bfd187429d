package relaybench

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// fakeKey is set while this test binary stands in for worker and scheduler: "1" makes every stream lose a token.
const fakeKey = "MILLRACE_BENCH_TEST_FAKE"

func TestMain(m *testing.M) {
	if lose, fake := os.LookupEnv(fakeKey); fake {
		if err := program(os.Args[1:], lose == "1"); err != nil {
			hclog.Default().Error("fake program", "error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program serves at the address behind --listen until SIGTERM.
func program(args []string, lose bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	lis, err := rpc.Listen(ctx, args[slices.Index(args, "--listen")+1])
	if err != nil {
		return err
	}
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain, DrainTimeout: time.Second}, hclog.NewNullLogger())
	s := &fake{lose: lose}
	pb.RegisterInferenceServiceServer(server, s)
	pb.RegisterModelServiceServer(server, s)
	return server.Serve(ctx, lis)
}

// fake is both programs: every model is loaded, every stream has its tokens, but the first where it is to lose one.
type fake struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer
	lose bool
}

func (f *fake) LoadModel(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
	return stream.Send(&pb.LoadModelResponse{Event: &pb.LoadModelResponse_Result{Result: &pb.LoadResult{
		MaxSequences: in.GetMaxSequences(), ContextLength: in.GetContextLength(),
	}}})
}

func (f *fake) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	return &pb.ListModelsResponse{Models: []*pb.ModelInfo{{
		Name: modelName, State: pb.ModelState_MODEL_STATE_READY, Capabilities: &pb.ModelCapabilities{Vocabulary: 9},
	}}}, nil
}

func (f *fake) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	n := in.GetStopping().GetMaxTokens()
	if f.lose && n > 1 {
		n--
	}
	for range n {
		event := &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{TokenIds: []uint32{1}}}}
		if err := stream.Send(event); err != nil {
			return err
		}
	}
	return stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{}}})
}

// runFakes is a small run over fake programs.
func runFakes(t *testing.T, lose string) (*Report, error) {
	t.Helper()
	rpctest.NoLeaks(t)
	t.Setenv(fakeKey, lose)
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	c := Config{
		Scheduler: self, Worker: self, Streams: 4, Rate: 400, Duration: 100 * time.Millisecond, Pairs: 5, Burst: 30,
		BurstTokens: 6, Connections: 2, Prompt: 3,
	}
	report, err := Run(t.Context(), c, func(string, ...any) {})
	left, globErr := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, globErr)
	require.Empty(t, left, "the folder of the run is gone")
	return report, err
}

func TestProgramsAreStartedDrivenAndStopped(t *testing.T) {
	report, err := runFakes(t, "0")
	require.NoError(t, err)
	require.EqualValues(t, 4, report.Steady.OK)
	require.EqualValues(t, 40, report.Steady.Tokens)
	require.EqualValues(t, 40, report.Steady.Messages)
	require.EqualValues(t, 30, report.Burst.OK)
	require.EqualValues(t, 180, report.Burst.Tokens)
	require.EqualValues(t, 5, report.Idle.Worker.Count)
	require.EqualValues(t, 5, report.Idle.Scheduler.Count)
	require.GreaterOrEqual(t, report.RelayedTokens, uint64(40))
	require.Positive(t, report.SchedulerRSS)
}

func TestTokensThatAProgramLosesFailTheRun(t *testing.T) {
	report, err := runFakes(t, "1")
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "36 of 40 tokens")
	require.NotNil(t, report)
}

func TestAProgramThatEndsAtOnceIsToldWithItsLog(t *testing.T) {
	rpctest.NoLeaks(t)
	c := config()
	c.Worker, c.Scheduler = "/bin/false", "/bin/false"
	_, err := Run(t.Context(), c, func(string, ...any) {})
	require.ErrorContains(t, err, "worker: program ended too early")
}
