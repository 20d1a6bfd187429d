package relay

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
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/proc/proctest"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// fakeKey is set while this test binary acts as worker, scheduler or nginx. The value "1" makes
// every stream of several tokens lose one.
const fakeKey = "MILLRACE_BENCH_TEST_FAKE"

func TestMain(m *testing.M) { proctest.MainOr(m, fakeKey, program) }

// listenAddress returns the address of --listen, or that in the configuration of nginx that -c
// names.
func listenAddress(args []string) (string, error) {
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
	address, err := listenAddress(args)
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

// fake acts as every program: every model is loaded, and streams are complete unless lose is set.
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
		Name: proc.FleetModel, State: pb.ModelState_MODEL_STATE_READY, Capabilities: &pb.ModelCapabilities{Vocabulary: 9},
	}}}, nil
}

func (f *fake) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	n := in.GetStopping().GetMaxTokens()
	if f.lose == "1" && n > 1 {
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

// runFakes runs a small measurement over fake programs.
func runFakes(t *testing.T, lose, nginx string, rates ...float64) (*Report, error) {
	t.Helper()
	rpctest.NoLeaks(t)
	t.Setenv(fakeKey, lose)
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	c := Config{
		Scheduler: self, Worker: self, Nginx: nginx, Connections: 2,
		Streams: 4, Rates: rates, Rounds: 2, Duration: 100 * time.Millisecond, Pairs: 5, Burst: 30, BurstTokens: 6, Prompt: 3,
	}
	if nginx != "" {
		c.Nginx = self
	}
	report, err := Run(t.Context(), c, func(string, ...any) {})
	left, globErr := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, globErr)
	require.Empty(t, left, "the folder of the run is gone")
	return report, err
}

func TestRunStartsMeasuresAndStopsPrograms(t *testing.T) {
	report, err := runFakes(t, "0", "self", 400, 800)
	require.NoError(t, err)
	require.Len(t, report.Rates, 2)
	for _, stage := range report.Rates {
		for i, name := range []string{workerName, nginxName, schedulerName} {
			require.Equal(t, name, stage.Targets[i].Name)
			require.EqualValues(t, 5, stage.Targets[i].Idle.Count)
			require.InDelta(t, 1, stage.Targets[i].MessagesPerToken.Median, 1e-9)
			require.Positive(t, stage.Targets[i].TokensPerSecond.Min)
		}
	}
	require.EqualValues(t, 30, report.Burst.OK)
	require.EqualValues(t, 180, report.Burst.Tokens)
	require.Positive(t, report.SchedulerRSS)
	require.Empty(t, report.NoNginx)
}

func TestRunWithoutNginxMeasuresTheOthers(t *testing.T) {
	report, err := runFakes(t, "0", "", 400)
	require.NoError(t, err)
	require.Len(t, report.Rates[0].Targets, 2)
	require.Contains(t, report.NoNginx, "nginx is off")
}

func TestRunFailsIfTokensAreLost(t *testing.T) {
	report, err := runFakes(t, "1", "", 400)
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "36 of 40 tokens")
	require.NotNil(t, report)
}

func TestRunReportsAProgramThatEnds(t *testing.T) {
	rpctest.NoLeaks(t)
	c := config()
	c.Worker, c.Scheduler = "/bin/false", "/bin/false"
	_, err := Run(t.Context(), c, func(string, ...any) {})
	require.ErrorContains(t, err, "worker 0: program ended too early")
}
