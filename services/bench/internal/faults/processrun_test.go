package faults

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/proc/proctest"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// fakeKey is set while this test binary acts as worker or scheduler; its value is the defect of the
// scheduler.
const fakeKey = "MILLRACE_CHAOS_TEST_FAKE"

func TestMain(m *testing.M) { proctest.MainOr(m, fakeKey, program) }

// program serves at the address of --listen until SIGTERM, as a scheduler if it gets --workers.
func program(args []string, wrong string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	lis, err := rpc.Listen(ctx, args[slices.Index(args, "--listen")+1])
	if err != nil {
		return err
	}
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain, DrainTimeout: time.Second}, hclog.NewNullLogger())
	s := &fake{wrong: wrong}
	if at := slices.Index(args, "--workers"); at >= 0 {
		s.workers = len(strings.Split(args[at+1], ","))
	}
	pb.RegisterInferenceServiceServer(server, s)
	pb.RegisterModelServiceServer(server, s)
	pb.RegisterFleetServiceServer(server, s)
	return server.Serve(ctx, lis)
}

// Undisturbed requests at each fake scheduler, and tokens of a stream.
const (
	fakeUndisturbed = 6
	fakeTokens      = 45
)

// fake is both programs. Its schedulers make the tokens themselves, in the names of the workers in
// turn, so that streams continue whatever happens to the workers.
type fake struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer
	pb.UnimplementedFleetServiceServer
	wrong   string
	workers int
	calls   atomic.Int64
}

func (f *fake) report(i int) *pb.WorkerReport {
	return &pb.WorkerReport{
		WorkerId: fmt.Sprint("worker-", i), State: pb.WorkerState_WORKER_STATE_READY, Load: &pb.LoadStatus{Running: 3},
		Models: []*pb.ModelStatus{{Name: "m", State: pb.ModelState_MODEL_STATE_READY}},
	}
}

func (f *fake) WatchFleet(_ *pb.WatchFleetRequest, stream grpc.ServerStreamingServer[pb.WatchFleetResponse]) error {
	out := &pb.WatchFleetResponse{}
	for i := range f.workers {
		out.Workers = append(out.Workers, &pb.FleetWorker{Connected: true, Report: f.report(i)})
	}
	if err := stream.Send(out); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (f *fake) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	return &pb.ListModelsResponse{Models: []*pb.ModelInfo{{
		Name: "m", State: pb.ModelState_MODEL_STATE_READY, Capabilities: &pb.ModelCapabilities{Vocabulary: 9},
		Loaded: &pb.LoadResult{ContextLength: 512, MaxSequences: 64},
	}}}, nil
}

func (f *fake) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	wrong, call := "", f.calls.Add(1)
	if call > fakeUndisturbed {
		wrong = f.wrong
	}
	begin := 0
	for _, r := range in.GetResume() {
		begin += len(r.GetTokenIds())
	}
	first := &pb.Started{Seed: in.GetSampling().GetSeed(), WorkerId: fmt.Sprint("worker-", call%int64(f.workers))}
	if begin > 0 {
		first.ResumedTokens = []uint32{uint32(begin)}
	}
	if err := stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: first}}); err != nil {
		return err
	}
	for i := begin; i < fakeTokens; i++ {
		out := &pb.Tokens{TokenIndex: uint32(i), TokenIds: []uint32{uint32(in.GetSampling().GetSeed()>>20) + uint32(i)}}
		if i == fakeTokens/2 {
			switch wrong {
			case "fails":
				return status.Error(codes.Unavailable, "the worker was lost")
			case "loses":
				continue
			case "repeats":
				out.TokenIndex--
			case "differs":
				out.TokenIds[0]++
			case "ends":
				return nil
			case "hangs":
				<-stream.Context().Done()
				return stream.Context().Err()
			case "pauses":
				if begin == 0 {
					time.Sleep(1500 * time.Millisecond)
				}
			}
		}
		if err := stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: out}}); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{}}})
}

// config has every kind once in its first three faults and ends after six of them, on a slow
// machine too.
func config() ProcessConfig {
	return ProcessConfig{
		Models: "models", Model: "m", Devices: []string{"sim", "cpu"}, Workers: 3, MaxSequences: 64, Streams: 12, Requests: 2 * fakeUndisturbed,
		Prompt: 9, Answer: 9, Duration: 30 * time.Second, AtMost: 6, Every: 100 * time.Millisecond, Kinds: Kinds,
		Restart: 20 * time.Millisecond, Restore: 400 * time.Millisecond, SchedulerKills: 2, Grace: 2 * time.Minute, Seed: 1,
	}
}

// runFakes runs fake programs.
func runFakes(t *testing.T, wrong string, c ProcessConfig) (*Report, error) {
	t.Helper()
	rpctest.NoLeaks(t)
	self, err := os.Executable()
	require.NoError(t, err)
	t.Setenv(fakeKey, wrong)
	dir, err := os.MkdirTemp("", "c") //nolint:usetesting // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	t.Setenv("TMPDIR", dir)
	c.Scheduler, c.Worker = self, self
	report, err := RunProcesses(t.Context(), c, func(string, ...any) {})
	left, readErr := os.ReadDir(dir)
	require.NoError(t, readErr)
	require.Empty(t, left, "the folder of the run is gone")
	return report, err
}

// allow sets maxPause for a test.
func allow(t *testing.T, pause time.Duration) {
	t.Helper()
	was := maxPause
	t.Cleanup(func() { maxPause = was })
	maxPause = map[Kind]time.Duration{Kill: pause, Freeze: pause, Partition: pause}
}

func TestProcessesPass(t *testing.T) {
	allow(t, time.Minute) // the machine may stand still
	report, err := runFakes(t, "", config())
	require.NoError(t, err)
	require.EqualValues(t, 2*fakeUndisturbed, report.Undisturbed.Streams)
	require.Len(t, report.Stages, 2)
	workers, schedulers := report.Stages[0], report.Stages[1]
	require.Len(t, workers.Gaps, 3, "every kind of fault was injected")
	require.Positive(t, workers.Resumes)
	require.Len(t, schedulers.Faults, 2)
	require.Positive(t, schedulers.Resumes)
	require.Equal(t, workers.Streams*fakeTokens, workers.Tokens)
	var text strings.Builder
	report.Print(&text)
	require.Contains(t, text.String(), "3 workers on sim and cpu")
	require.Contains(t, text.String(), "cut of workers")
}

func TestProcessesFailByEveryDefect(t *testing.T) {
	for wrong, want := range map[string]string{
		"fails": "streams failed", "loses": "streams lack tokens", "repeats": "streams have something twice",
		"differs": "streams differ", "ends": "streams lack tokens", "hangs": "streams failed", "pauses": "streams paused too long at a kill",
	} {
		t.Run(wrong, func(t *testing.T) {
			c := config()
			c.SchedulerKills, c.Kinds = 0, []Kind{Kill}
			if wrong == "hangs" {
				c.Grace = time.Second
			}
			if wrong == "pauses" { // less than the pause
				allow(t, 100*time.Millisecond)
			}
			report, err := runFakes(t, wrong, c)
			require.ErrorIs(t, err, ErrBroken)
			require.ErrorContains(t, err, want)
			require.NotEmpty(t, report.Stages[0].Problems)
		})
	}
}

func TestProcessesFailIfNothingIsProven(t *testing.T) {
	c := config()
	c.SchedulerKills, c.Duration, c.Every = 0, 300*time.Millisecond, time.Hour
	_, err := runFakes(t, "", c)
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorContains(t, err, "no fault could be injected")

	c = config()
	c.SchedulerKills, c.AtMost, c.Kinds, c.Restore = 0, 1, []Kind{Freeze}, 0
	allow(t, time.Minute)
	err = nil
	for tries := 0; err == nil; tries++ {
		require.Less(t, tries, 20, "a worker that is thawed at once is not frozen for long so often")
		var report *Report
		report, err = runFakes(t, "", c)
		// If the machine stood still while the worker was frozen, streams continued.
		if err == nil {
			f := report.Stages[0].Faults[0]
			require.Greater(t, f.Over-f.At, inFlight)
		}
	}
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorContains(t, err, "nothing is proven")
}

func TestProcessesReportProgramsThatEnd(t *testing.T) {
	rpctest.NoLeaks(t)
	c := config()
	c.Worker, c.Scheduler = "/bin/false", "/bin/false"
	_, err := RunProcesses(t.Context(), c, func(string, ...any) {})
	require.ErrorContains(t, err, "program ended too early")
}

func TestProcessConfigValidate(t *testing.T) {
	require.NoError(t, ptr(config()).Validate())
	for name, tc := range map[string]struct {
		change func(*ProcessConfig)
		want   string
	}{
		"one worker":          {func(c *ProcessConfig) { c.Workers = 1 }, "--workers 1: want 2 to 64"},
		"no stream":           {func(c *ProcessConfig) { c.Streams = 0 }, "--streams 0"},
		"no model":            {func(c *ProcessConfig) { c.Model = "" }, "--model is empty"},
		"no kind":             {func(c *ProcessConfig) { c.Kinds = nil }, "--faults is empty"},
		"nothing to do":       {func(c *ProcessConfig) { c.Duration, c.SchedulerKills = 0, 0 }, "there would be no fault"},
		"faults without time": {func(c *ProcessConfig) { c.Every = 0 }, "--every 0s"},
		"a negative time":     {func(c *ProcessConfig) { c.Restore = -1 }, "--restore -1ns"},
		"no answer":           {func(c *ProcessConfig) { c.Answer = 0 }, "--max-tokens 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := config()
			tc.change(&c)
			require.ErrorContains(t, c.Validate(), tc.want)
		})
	}
	_, err := ParseKinds([]string{"kill", "burn"})
	require.ErrorContains(t, err, `fault "burn": want [kill freeze cut]`)
	kinds, err := ParseKinds([]string{"cut", "kill", "cut"})
	require.NoError(t, err)
	require.Equal(t, []Kind{Partition, Kill}, kinds)
}
