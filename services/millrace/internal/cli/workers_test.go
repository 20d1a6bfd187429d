package cli_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

type watching = grpc.ServerStreamingServer[pb.WatchFleetResponse]

func fleetOf(running uint32) *pb.WatchFleetResponse {
	return &pb.WatchFleetResponse{Workers: []*pb.FleetWorker{
		{Address: "there:1", Connected: true, Report: &pb.WorkerReport{
			WorkerId: "w1", State: pb.WorkerState_WORKER_STATE_DEGRADED,
			Checks:   []*pb.HealthCheck{{Name: "residency/m", Message: "bits flipped"}, {Name: "device", Ok: true}},
			Device:   &pb.DeviceStatus{Kind: "cpu", Name: "Some Processor", BytesTotal: 10 << 30, BytesFree: 4 << 30},
			Load:     &pb.LoadStatus{Running: running, Waiting: 2, TokensPerSecond: 123.4},
			Progress: &pb.StepProgress{Steps: 1, LastStepAge: durationpb.New(5 * time.Millisecond)},
			Models: []*pb.ModelStatus{{Name: "m", State: pb.ModelState_MODEL_STATE_READY},
				{Name: "n", State: pb.ModelState_MODEL_STATE_FAILED, Problem: "out of service"}},
		}},
		{Address: "there:2", Problem: "connection\x1b[31m refused"},
		{Address: "there:3", Problem: "gone", Age: durationpb.New(3 * time.Second), Report: &pb.WorkerReport{
			WorkerId: "w3", State: pb.WorkerState_WORKER_STATE_READY, Device: &pb.DeviceStatus{Kind: "sim", Name: "sim: nothing"},
			Load: &pb.LoadStatus{Running: 7}, Models: []*pb.ModelStatus{{Name: "m", State: pb.ModelState_MODEL_STATE_READY}},
		}},
	}}
}

const fleetText = "" +
	"WORKER   STATE        DEVICE              MEMORY                              RUNNING  WAITING  TOKENS/S  LAST STEP    MODELS\n" +
	"w1       degraded     cpu Some Processor  [######....] 6.00 GiB of 10.0 GiB  1        2        123       5.00 ms ago  m, n (failed)\n" +
	"there:2  unreachable  -                   -                                   -        -        -         -            -\n" +
	"w3       unreachable  sim: nothing        -                                   -        -        -         -            -\n" +
	"w1: residency/m: bits flipped\n" +
	"w1: model n: out of service\n" +
	"there:2: connection [31m refused\n" +
	"w3: gone (last heard 3.00 s ago)\n"

func squeeze(text string) string {
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestWorkersOnceIsOneTable(t *testing.T) {
	ended := make(chan time.Duration, 1)
	r := serve(t, &fake{watch: func(in *pb.WatchFleetRequest, s watching) error {
		_ = s.Send(fleetOf(1))
		<-s.Context().Done()
		ended <- in.GetInterval().AsDuration()
		return s.Context().Err()
	}})
	require.Equal(t, 0, r.run(t, "workers", "--once", "--interval", "2s"), r.err.String())
	require.Equal(t, squeeze(fleetText), squeeze(r.out.String()))
	require.Equal(t, 2*time.Second, <-ended)
}

func TestWorkersElsewhereThanOnATerminalAreOneTableAChange(t *testing.T) {
	r := serve(t, &fake{watch: func(_ *pb.WatchFleetRequest, s watching) error {
		_ = s.Send(fleetOf(1))
		_ = s.Send(&pb.WatchFleetResponse{})
		return refusal(codes.Unavailable, "STOPPING", "stopping")
	}})
	require.Equal(t, 3, r.run(t, "workers"))
	require.Equal(t, squeeze(fleetText)+"\nno workers: start millrace-scheduler with --workers a,b\n", squeeze(r.out.String()))
	require.NotContains(t, r.out.String(), "\x1b")
	require.Contains(t, r.err.String(), "STOPPING")
}

func TestCtrlCIsTheUsualEndOfWorkers(t *testing.T) {
	r := serve(t, &fake{watch: func(_ *pb.WatchFleetRequest, s watching) error {
		_ = s.Send(fleetOf(1))
		<-s.Context().Done()
		return s.Context().Err()
	}})
	r.interrupt(t, &r.out, "there:2")
	require.Equal(t, 0, r.run(t, "workers"))
	require.Empty(t, r.err.String())
}

func TestWorkersAsJSONPrintsSnapshots(t *testing.T) {
	r := serve(t, &fake{watch: func(_ *pb.WatchFleetRequest, s watching) error {
		_ = s.Send(fleetOf(1))
		return s.Send(fleetOf(2))
	}})
	require.Equal(t, 0, r.run(t, "workers", "--json"))
	lines := strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n")
	require.Len(t, lines, 2)
	for i, line := range lines {
		out := &pb.WatchFleetResponse{}
		require.NoError(t, protojson.Unmarshal([]byte(line), out))
		require.EqualValues(t, i+1, out.GetWorkers()[0].GetReport().GetLoad().GetRunning())
	}
}

func TestWorkersOfASingleWorkerSaysThatASchedulerIsNeeded(t *testing.T) {
	r := serve(t, &fake{})
	require.Equal(t, 5, r.run(t, "workers", "--once"))
	require.Contains(t, r.err.String(), r.target+" is no scheduler")
	require.Contains(t, r.err.String(), "millrace-scheduler --workers "+r.target)
}
