package relaybench

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
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

// fakeKey is set while this test binary stands in for worker, scheduler and nginx: "1" makes every stream lose a token but
// its first, "all" the first too.
const fakeKey = "MILLRACE_BENCH_TEST_FAKE"

func TestMain(m *testing.M) {
	if lose, fake := os.LookupEnv(fakeKey); fake {
		if err := program(os.Args[1:], lose); err != nil {
			hclog.Default().Error("fake program", "error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// listens is where the program of a command line serves: behind --listen, or as the configuration of nginx behind -c says.
func listens(args []string) (string, error) {
	if i := slices.Index(args, "--listen"); i >= 0 {
		return args[i+1], nil
	}
	text, err := os.ReadFile(args[slices.Index(args, "-c")+1])
	if err != nil {
		return "", err
	}
	return regexp.MustCompile(`listen (\S+) http2;`).FindStringSubmatch(string(text))[1], nil
}

// program serves until SIGTERM.
func program(args []string, lose string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	address, err := listens(args)
	if err != nil {
		return err
	}
	lis, err := rpc.Listen(ctx, address)
	if err != nil {
		return err
	}
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain, DrainTimeout: time.Second}, hclog.NewNullLogger())
	s := &fake{lose: lose}
	pb.RegisterInferenceServiceServer(server, s)
	pb.RegisterModelServiceServer(server, s)
	return server.Serve(ctx, lis)
}

// fake is every program: every model is loaded, every stream has its tokens but for one where it is to lose that.
type fake struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer
	lose string
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
	if f.lose == "1" && n > 1 || f.lose == "all" && n > 0 {
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
func runFakes(t *testing.T, lose, nginx string, rates ...float64) (*Report, error) {
	t.Helper()
	rpctest.NoLeaks(t)
	t.Setenv(fakeKey, lose)
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	c := Config{
		Programs: Programs{Scheduler: self, Worker: self, Nginx: nginx, Connections: 2},
		Streams:  4, Rates: rates, Rounds: 2, Duration: 100 * time.Millisecond, Pairs: 5, Burst: 30, BurstTokens: 6, Prompt: 3,
	}
	if nginx != "" {
		c.Nginx = self
	}
	report, err := Cost(t.Context(), c, func(string, ...any) {})
	left, globErr := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, globErr)
	require.Empty(t, left, "the folder of the run is gone")
	return report, err
}

func TestProgramsAreStartedDrivenAndStopped(t *testing.T) {
	report, err := runFakes(t, "0", "self", 400, 800)
	require.NoError(t, err)
	require.Len(t, report.Rates, 2)
	for _, stage := range report.Rates {
		for i, name := range []string{direct, nginxName, schedulerName} {
			require.Equal(t, name, stage.Ways[i].Name)
			require.EqualValues(t, 5, stage.Ways[i].Idle.Count)
			require.InDelta(t, 1, stage.Ways[i].MessagesPerToken.Median, 1e-9)
			require.Positive(t, stage.Ways[i].TokensPerSecond.Min)
		}
	}
	require.EqualValues(t, 30, report.Burst.OK)
	require.EqualValues(t, 180, report.Burst.Tokens)
	require.Positive(t, report.SchedulerRSS)
	require.Empty(t, report.NoNginx)
}

func TestWithoutNginxTheOtherWaysAreMeasured(t *testing.T) {
	report, err := runFakes(t, "0", "", 400)
	require.NoError(t, err)
	require.Len(t, report.Rates[0].Ways, 2)
	require.Contains(t, report.NoNginx, "not asked for")
}

func TestTokensThatAProgramLosesFailTheRun(t *testing.T) {
	report, err := runFakes(t, "1", "", 400)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "36 of 40 tokens")
	require.NotNil(t, report)
}

func TestAProgramThatEndsAtOnceIsToldWithItsLog(t *testing.T) {
	rpctest.NoLeaks(t)
	c := config()
	c.Worker, c.Scheduler = "/bin/false", "/bin/false"
	_, err := Cost(t.Context(), c, func(string, ...any) {})
	require.ErrorContains(t, err, "worker: program ended too early")
}
