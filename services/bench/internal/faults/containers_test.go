package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// server sends every token of a request, its seed times its index, honours resume, and fails where
// cut says.
type server struct {
	pb.UnimplementedInferenceServiceServer
	worker string
	cut    func(tokens int) error // called before each token
	pause  time.Duration          // between tokens
	calls  atomic.Int32
}

func (s *server) Generate(in *pb.GenerateRequest, out grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	s.calls.Add(1)
	first := &pb.Started{ModelDigest: "model", PromptDigest: "prompt", WorkerId: s.worker}
	from := 0
	if resume := in.GetResume(); len(resume) > 0 {
		from = len(resume[0].GetTokenIds())
		if resume[0].GetTextBytes() != uint64(from) {
			return status.Error(codes.FailedPrecondition, "not this stream")
		}
		first.ResumedTokens = []uint32{uint32(from)}
	}
	if err := out.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: first}}); err != nil {
		return err
	}
	for i := from; i < int(in.GetStopping().GetMaxTokens()); i++ {
		if s.cut != nil {
			if err := s.cut(i); err != nil {
				return err
			}
		}
		id := uint32(in.GetSampling().GetSeed()) * uint32(i)
		if err := out.Send(tokens(0, uint32(i), ".", id)); err != nil {
			return err
		}
		time.Sleep(s.pause)
	}
	return out.Send(finished(0, uint32(in.GetStopping().GetMaxTokens())))
}

// endsAfter fails as a scheduler that is killed after k tokens.
func endsAfter(k int) func(int) error {
	return func(tokens int) error {
		if tokens == k {
			return status.Error(codes.Unavailable, "transport is closing")
		}
		return nil
	}
}

// serve starts servers.
func serve(t *testing.T, servers ...*server) (all []*scheduler) {
	t.Helper()
	rpctest.NoLeaks(t)
	for _, s := range servers {
		lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		on := grpc.NewServer()
		pb.RegisterInferenceServiceServer(on, s)
		go func() { _ = on.Serve(lis) }()
		t.Cleanup(on.Stop)
		c, err := dial(s.worker, lis.Addr().String(), "m")
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.conn.Close() })
		all = append(all, c)
	}
	return all
}

func stories(length int) func(int) *pb.GenerateRequest {
	return func(i int) *pb.GenerateRequest { return story("m", length, i) }
}

func TestClientResumesOnAnotherScheduler(t *testing.T) {
	const length = 5
	healthy := serve(t, &server{worker: "healthy"})
	want := (&client{schedulers: healthy, request: stories(length)}).run(t.Context(), 3, 0)
	require.NoError(t, want.err)
	require.Equal(t, []uint32{0, 3, 6, 9, 12}, want.transcript.outputs[0].ids)
	for k := range length {
		dying := serve(t, &server{worker: "dying", cut: endsAfter(k)})
		c := &client{schedulers: append(dying, healthy...), request: stories(length), resumes: true}
		got := c.run(t.Context(), 3, 0)
		require.NoError(t, got.err)
		require.NoError(t, got.transcript.Same(&want.transcript), "after %d tokens", k)
		require.Len(t, got.moves, 1)
		require.Equal(t, "dying", got.moves[0].from)
		require.Equal(t, k, got.moves[0].arrivals)
		open, _ := c.live.spread()
		require.Zero(t, open, "the stream has ended")

		alone := (&client{schedulers: dying, request: stories(length)}).run(t.Context(), 3, 0)
		require.ErrorContains(t, alone.err, "transport is closing")
	}
}

func TestClientDoesNotRetryARefusal(t *testing.T) {
	refusing := &server{worker: "refusing", cut: func(int) error { return status.Error(codes.ResourceExhausted, "full") }}
	c := &client{schedulers: serve(t, refusing), request: stories(3), resumes: true}
	require.ErrorContains(t, c.run(t.Context(), 1, 0).err, "full")
	require.EqualValues(t, 1, refusing.calls.Load())
}

// noFaults is a driver for tests that inject none.
type noFaults struct{}

func (noFaults) inject(context.Context, Kind, string) (time.Time, error) { return time.Now(), nil }
func (noFaults) restore(context.Context, Kind, string) error             { return nil }
func (noFaults) check() error                                            { return nil }

func TestStageCountsFailedAndDifferentStreams(t *testing.T) {
	f := &fleet{driver: noFaults{}, schedulers: serve(t, &server{worker: "w"})}
	w := workload{streams: 3, requests: 3, request: stories(3), grace: time.Minute}
	undisturbed, truth, err := f.truth(t.Context(), w, f.schedulers)
	require.NoError(t, err)
	require.EqualValues(t, 3, undisturbed.Streams)
	truth[1].outputs[0].ids[1]++
	f.schedulers = serve(t, &server{worker: "w", cut: func(tokens int) error {
		if tokens == 2 {
			return status.Error(codes.Unavailable, "worker lost")
		}
		return nil
	}})
	w.request = func(i int) *pb.GenerateRequest { return story("m", 3-min(i, 1), i) } // request 0 fails
	s, err := f.stage(t.Context(), "workers", w, true, truth, func(c *client, _ *Stage) error {
		for c.live.beganOn("w") < 9 {
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	require.NoError(t, err)
	require.Positive(t, s.Different)
	require.ErrorIs(t, s.err(), ErrBroken)
	require.ErrorContains(t, s.err(), "differ from the undisturbed run")
	require.ErrorContains(t, s.err(), "no fault could be injected")
	require.NotEmpty(t, s.Problems)
}

func TestTruthNeedsEveryStream(t *testing.T) {
	f := &fleet{driver: noFaults{}, schedulers: serve(t, &server{worker: "w", cut: endsAfter(2)})}
	_, _, err := f.truth(t.Context(), workload{streams: 2, requests: 2, request: stories(3), grace: time.Minute}, f.schedulers)
	require.ErrorContains(t, err, "request 0 fails undisturbed: Unavailable")
}

func TestHitChoosesTheBusiestWorker(t *testing.T) {
	c := &client{began: time.Now()}
	open := func(worker string, arrived int) *record {
		r := &record{}
		require.NoError(t, r.add(started(worker), 0))
		for i := range arrived {
			require.NoError(t, r.add(tokens(0, uint32(i), "", 1), 0))
		}
		c.live.update(r)
		return r
	}
	for range 3 {
		open("busy", 2)
		open("late", 3) // no longer at its beginning
		open("new", 0)  // without a token
	}
	ended := open("late", 1)
	open("idle", 1)
	c.live.end(ended)
	r := &containers{cfg: ContainerConfig{Tokens: 2 * beginning, Streams: 24, Workers: 4}}
	r.fleet = fleet{driver: noFaults{}, workers: []string{"idle", "busy", "late", "new"}}
	s := &Stage{}
	busy := c.live.busy(2)
	require.Equal(t, map[string]int{"busy": 3, "idle": 1}, busy)
	f, _, err := r.hit(t.Context(), c, s, Freeze)
	require.NoError(t, err)
	require.Equal(t, "busy", f.Node)
	require.EqualValues(t, 3, f.Busy)
	require.Len(t, s.Faults, 1)
	require.Equal(t, 4, c.live.beganOn("late"))
}

func TestSectionIsRetriedWhileNothingIsInterrupted(t *testing.T) {
	for name, tc := range map[string]struct {
		idle  int // tries that show nothing
		after error
		runs  int
		ok    bool
	}{
		"the first shows it":       {0, nil, 1, true},
		"the last shows it":        {2, nil, 3, true},
		"none shows it":            {3, nil, 3, false},
		"the second fails":         {1, errors.New("differs"), 2, false},
		"a failure is not retried": {0, errors.New("differs"), 1, false},
	} {
		runs := 0
		s := section{"kill", func(*containers, context.Context) (string, error) {
			if runs++; runs <= tc.idle {
				return "", fmt.Errorf("worker-1: %w", errIdle)
			}
			return "", tc.after
		}}
		_, err := s.try(t.Context(), nil)
		require.Equal(t, tc.runs, runs, name)
		require.Equal(t, tc.ok, err == nil, name)
	}
}

func TestStateOfUsesTheBestAddress(t *testing.T) {
	shown := func(address string, connected bool, s pb.WorkerState, models ...string) *pb.FleetWorker {
		w := &pb.FleetWorker{Address: address, Connected: connected, Report: &pb.WorkerReport{WorkerId: "worker-1", State: s}}
		for _, m := range models {
			w.Report.Models = append(w.Report.Models, &pb.ModelStatus{Name: m, State: pb.ModelState_MODEL_STATE_READY})
		}
		return w
	}
	const up, drains = pb.WorkerState_WORKER_STATE_READY, pb.WorkerState_WORKER_STATE_DRAINING
	for name, tc := range map[string]struct {
		shown []*pb.FleetWorker
		want  state
	}{
		"unknown":                       {nil, lost},
		"not connected":                 {[]*pb.FleetWorker{shown("a:1", false, up, "m")}, lost},
		"without the model":             {[]*pb.FleetWorker{shown("a:1", true, up, "n")}, starting},
		"draining":                      {[]*pb.FleetWorker{shown("a:1", true, drains, "m")}, draining},
		"ready":                         {[]*pb.FleetWorker{shown("a:1", true, up, "m")}, ready},
		"lost there and ready here":     {[]*pb.FleetWorker{shown("a:1", false, up, "m"), shown("b:1", true, up, "m")}, ready},
		"another worker at its address": {[]*pb.FleetWorker{{Address: "a:1", Connected: true, Report: &pb.WorkerReport{WorkerId: "worker-2", State: up}}}, lost},
	} {
		require.Equal(t, tc.want, stateOf(tc.shown, "worker-1", "m"), name)
	}
	require.Equal(t, "worker-1", at([]*pb.FleetWorker{shown("1.2.3.4:1", false, up), shown("1.2.3.4:2", true, up)}, "1.2.3.4"))
	require.Empty(t, at([]*pb.FleetWorker{shown("1.2.3.4:1", false, up)}, "1.2.3.4"))
}

func TestParseContainers(t *testing.T) {
	all, err := parseContainers("scheduler-0 1 aa\nworker 1 bb\nworker 12 cc\ngpu-0 1 dd", "worker")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"scheduler-0": "aa", "worker-1": "bb", "worker-12": "cc", "gpu-0": "dd"}, all)
	_, err = parseContainers("worker 1 aa\nworker 1 bb", "worker")
	require.ErrorContains(t, err, "both worker-1")
	_, err = parseContainers("worker aa", "worker")
	require.Error(t, err)
	all, err = parseContainers("sim 1 bb\nsim 2 cc", "sim")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"sim-1": "bb", "sim-2": "cc"}, all)
}

func TestContainerConfigValidate(t *testing.T) {
	ok := ContainerConfig{Schedulers: []string{"a", "b"}, Service: "worker", Workers: 2, Streams: 2, Tokens: 2, Truth: time.Second, Only: []string{"kill", "restart"}}
	require.NoError(t, ok.Validate())
	err := (&ContainerConfig{Only: []string{"flood"}}).Validate()
	for _, want := range []string{"--schedulers", "--service", "--workers", "--max-tokens", "--truth", `no section "flood": want kill, freeze`} {
		require.ErrorContains(t, err, want)
	}
}

func TestContainerReportFailsByOneSection(t *testing.T) {
	r := &ContainerReport{Sections: []Result{{Section: "start", OK: true, Seconds: 3.2, Text: "well"}}}
	require.NoError(t, r.Err())
	require.Equal(t, "ok    start         3 s  well", r.Sections[0].String())
	r.Sections = append(r.Sections, Result{Section: "kill"}, Result{Section: "drain"})
	require.ErrorIs(t, r.Err(), ErrBroken)
	require.ErrorContains(t, r.Err(), "kill, drain")
}

func TestShowsHoldsSchedulersToTheirTime(t *testing.T) {
	s, err := dial("scheduler-0", "127.0.0.1:1", "m")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.conn.Close()) })
	r := &containers{cfg: ContainerConfig{Truth: time.Minute}}
	r.fleet = fleet{model: "m", schedulers: []*scheduler{s}}
	report := &pb.WorkerReport{WorkerId: "worker-1", State: pb.WorkerState_WORKER_STATE_DRAINING, Progress: &pb.StepProgress{StepBound: durationpb.New(time.Hour)}}
	s.update([]*pb.FleetWorker{{Connected: true, Report: report}})
	_, err = r.shows(t.Context(), "worker-1", draining, time.Now(), r.within)
	require.NoError(t, err)
	s.update([]*pb.FleetWorker{})
	took, err := r.shows(t.Context(), "worker-1", lost, time.Now(), r.within)
	require.NoError(t, err)
	require.Zero(t, took, "it was shown before the wait began")
	since := s.states["worker-1"].at.Add(-time.Minute - 400*time.Millisecond)
	_, err = r.shows(t.Context(), "worker-1", lost, since, r.withinSilence)
	require.NoError(t, err, "a worker with long steps has more time")
	_, err = r.shows(t.Context(), "worker-1", lost, since, r.within)
	require.ErrorContains(t, err, "scheduler-0 showed worker-1 as lost after 60.40 s, want within 60.00 s")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.shows(ctx, "worker-1", ready, time.Now(), r.within)
	require.ErrorContains(t, err, "has not shown worker-1 as ready")
}

func TestExtraSilence(t *testing.T) {
	for bound, want := range map[time.Duration]time.Duration{ // a tick is 1.6 s/7
		0: 0, 1500 * time.Millisecond: 0, 1599 * time.Millisecond: 0, 1700 * time.Millisecond: 228571428,
		2 * time.Second: 457142857, 2200 * time.Millisecond: 685714285, time.Hour: 685714285,
	} {
		require.Equal(t, want, extraSilence(bound), "a bound of %v", bound)
	}
}
