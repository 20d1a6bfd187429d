package cli_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
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
	"WORKER   STATE        DEVICE              MEMORY                RUNNING  WAITING  TOKENS/S  LAST STEP    MODELS         ADDRESS\n" +
	"w1       degraded     cpu Some Processor  6.00 GiB of 10.0 GiB  1        2        123       just now     m, n (failed)  there:1\n" +
	"there:2  unreachable  -                   -                     -        -        -         -            -              there:2\n" +
	"w3       unreachable  sim: nothing        -                     -        -        -         -            -              there:3\n" +
	"w1: residency/m: bits flipped\n" +
	"w1: model n: out of service\n" +
	"there:2: connection [31m refused\n" +
	"w3: gone (last heard 3.0 s ago)\n"

func squeeze(text string) string {
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestWorkersWarnsOfUnevenContexts(t *testing.T) {
	worker := func(id, digest string, state pb.ModelState, context uint32) *pb.FleetWorker {
		return &pb.FleetWorker{Address: id + ":1", Connected: true, Report: &pb.WorkerReport{WorkerId: id,
			State:  pb.WorkerState_WORKER_STATE_READY,
			Models: []*pb.ModelStatus{{Name: "m", ModelDigest: digest, State: state, ContextLength: context}}}}
	}
	const ready = pb.ModelState_MODEL_STATE_READY
	for name, tc := range map[string]struct {
		workers []*pb.FleetWorker
		says    string // "": nothing of contexts
	}{
		"they differ": {[]*pb.FleetWorker{worker("w1", "d", ready, 512), worker("w2", "d", ready, 4096), worker("w3", "d", ready, 512)},
			"model m: contexts differ: 4096 on w2; 512 on w1, w3; requests without max_tokens go to the longest alone"},
		"they are equal":          {[]*pb.FleetWorker{worker("w1", "d", ready, 512), worker("w2", "d", ready, 512)}, ""},
		"of different digests":    {[]*pb.FleetWorker{worker("w1", "d", ready, 512), worker("w2", "e", ready, 4096)}, ""},
		"one does not serve":      {[]*pb.FleetWorker{worker("w1", "d", ready, 512), worker("w2", "d", pb.ModelState_MODEL_STATE_FAILED, 4096)}, ""},
		"one reports no context":  {[]*pb.FleetWorker{worker("w1", "d", ready, 512), worker("w2", "d", ready, 0)}, ""},
		"one is not heard of now": {[]*pb.FleetWorker{worker("w1", "d", ready, 512), {Report: worker("w2", "d", ready, 4096).GetReport()}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, &fake{watch: func(_ *pb.WatchFleetRequest, s watching) error {
				return s.Send(&pb.WatchFleetResponse{Workers: tc.workers})
			}})
			require.Equal(t, 0, r.run(t, "workers", "--once"), r.err.String())
			if tc.says == "" {
				require.NotContains(t, r.out.String(), "contexts differ")
				return
			}
			require.Contains(t, r.out.String(), tc.says)
		})
	}
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

func TestWorkersInPipePrintsOnce(t *testing.T) {
	// Without a terminal the command prints the fleet once and ends.
	for name, args := range map[string][]string{"as a table": {"workers"}, "as JSON": {"workers", "--json"}} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, &fake{watch: func(_ *pb.WatchFleetRequest, s watching) error {
				_ = s.Send(fleetOf(1))
				<-s.Context().Done() // a scheduler ends no stream of its own
				return s.Context().Err()
			}})
			require.Equal(t, 0, r.run(t, args...), r.err.String())
			require.NotEmpty(t, r.out.String())
			require.Empty(t, r.err.String())
		})
	}
}

func TestOnceAndWatchExcludeEachOther(t *testing.T) {
	r := serve(t, &fake{})
	require.Equal(t, 2, r.run(t, "workers", "--once", "--watch"))
	require.Contains(t, r.err.String(), "--once and --watch exclude each other")
}

func TestWorkersWatchInPipePrintsEachChange(t *testing.T) {
	// Without a terminal, --watch prints one table for each change.
	r := serve(t, &fake{watch: func(_ *pb.WatchFleetRequest, s watching) error {
		_ = s.Send(fleetOf(1))
		_ = s.Send(&pb.WatchFleetResponse{})
		return refusal(codes.Unavailable, "STOPPING", "stopping")
	}})
	require.Equal(t, 3, r.run(t, "workers", "--watch"))
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
	require.Equal(t, 0, r.run(t, "workers", "-w"))
	require.Empty(t, r.err.String())
}

func TestWorkersAsJSONPrintsSnapshots(t *testing.T) {
	r := serve(t, &fake{watch: func(_ *pb.WatchFleetRequest, s watching) error {
		_ = s.Send(fleetOf(1))
		return s.Send(fleetOf(2))
	}})
	require.Equal(t, 0, r.run(t, "workers", "--json", "--watch"))
	lines := strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n")
	require.Len(t, lines, 2)
	for i, line := range lines {
		out := &pb.WatchFleetResponse{}
		require.NoError(t, protojson.Unmarshal([]byte(line), out))
		require.EqualValues(t, i+1, out.GetWorkers()[0].GetReport().GetLoad().GetRunning())
	}
}

func TestWorkersOfWorkerNamesScheduler(t *testing.T) {
	// The error says that a worker has no fleet, and how to start a scheduler for it.
	r := serve(t, &fake{})
	require.Equal(t, 5, r.run(t, "workers", "--once"))
	require.Contains(t, r.err.String(), r.target+" is not a scheduler")
	require.Contains(t, r.err.String(), "millrace-scheduler --workers "+r.target)
}

// device is a GPU of which everything is known.
func device() *pb.DeviceStatus {
	return &pb.DeviceStatus{
		Kind: "cuda", Name: "NVIDIA H200", BytesTotal: 140 << 30, BytesFree: 100 << 30,
		TemperatureCelsius: proto.Int32(54), PowerMilliwatts: proto.Int32(312_400), Errors: proto.Uint64(2), CorrectedErrors: proto.Uint64(0),
		PhysicalBytesTotal: proto.Uint64(141 << 30), PhysicalBytesFree: proto.Uint64(80 << 30),
		BytesPooled: 3 << 20, PoolHits: 1234, PoolMisses: 56, FailedFrees: 7, LeakedBuffers: 1,
	}
}

func wideFleet() *pb.WatchFleetResponse {
	worker := func(id string, d *pb.DeviceStatus, models ...*pb.ModelStatus) *pb.FleetWorker {
		return &pb.FleetWorker{Address: id + ":1", Connected: true, Report: &pb.WorkerReport{
			WorkerId: id, State: pb.WorkerState_WORKER_STATE_READY, Device: d, Models: models,
		}}
	}
	blind := &pb.DeviceStatus{Kind: "cuda", Name: "NVIDIA A100", BytesTotal: 80 << 30, BytesFree: 80 << 30, ManagementProblem: "nvmlInit:\x1b driver mismatch"}
	gone := worker("w3", device())
	gone.Connected, gone.Problem = false, "refused"
	return &pb.WatchFleetResponse{Workers: []*pb.FleetWorker{
		worker("w1", device(), &pb.ModelStatus{Name: "m", VerifiedAge: durationpb.New(12 * time.Second), IdleAge: durationpb.New(3 * time.Second),
			IdleUnload: durationpb.New(5 * time.Minute)}, &pb.ModelStatus{Name: "n"},
			&pb.ModelStatus{Name: "o", IdleAge: durationpb.New(0)}, &pb.ModelStatus{Name: "p", IdleAge: durationpb.New(time.Second), Pinned: true}),
		worker("w2", blind), gone, {Address: "there:4", Problem: "not yet"},
	}}
}

const wideText = "" +
	"WORKER TEMP POWER ECC ERRORS CORRECTED DEVICE USED DEVICE FREE LEDGER USED LEDGER FREE POOLED POOL HITS MISSES LEAKED FAILED FREES VERIFIED IDLE\n" +
	"w1 54 C 312 W 2 0 61.0 GiB 80.0 GiB 40.0 GiB 100 GiB 3.00 MiB 1234 56 1 7 m 12 s ago, n never, o never, p never m 3.00 s of 5m0s, o in use, p 1.00 s (pinned)\n" +
	"w2 - - - - - - 0 B 80.0 GiB 0 B 0 0 0 0 - -\n" +
	"w3 - - - - - - - - - - - - - - -\n" +
	"there:4 - - - - - - - - - - - - - - -\n"

func TestWorkersWidePrintsDevices(t *testing.T) {
	// An unknown value of a device is an empty cell, never 0.
	r := serve(t, &fake{watch: func(_ *pb.WatchFleetRequest, s watching) error { return s.Send(wideFleet()) }})
	require.Equal(t, 0, r.run(t, "workers", "--wide"), r.err.String())
	plain, wide, both := strings.Cut(squeeze(r.out.String()), "\n\n")
	require.True(t, both, "a table of its own")
	require.Equal(t, wideText+"w2: device readings: nvmlInit: driver mismatch\nw3: refused\nthere:4: not yet\n", wide)
	r.out = buffer{}
	require.Equal(t, 0, r.run(t, "workers"))
	require.Equal(t, plain+"\nw3: refused\nthere:4: not yet\n", squeeze(r.out.String()), "without --wide nothing is added")
}
