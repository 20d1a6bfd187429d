package rig

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
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// server tells every token of a request, its seed times its index, honours resume, and breaks off where cut says.
type server struct {
	pb.UnimplementedInferenceServiceServer
	worker string
	cut    func(tokens int) error // before the token behind so many
	calls  atomic.Int32
}

func (s *server) Generate(in *pb.GenerateRequest, out grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	s.calls.Add(1)
	started := &pb.Started{ModelDigest: "model", PromptDigest: "prompt", WorkerId: s.worker}
	from := 0
	if resume := in.GetResume(); len(resume) > 0 {
		if in.GetExpectModelDigest() != "model" || in.GetExpectPromptDigest() != "prompt" || resume[0].GetTextBytes() != uint64(len(resume[0].GetTokenIds())) {
			return status.Error(codes.FailedPrecondition, "not this stream")
		}
		from = len(resume[0].GetTokenIds())
		started.ResumedTokens = []uint32{uint32(from)}
	}
	if err := out.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: started}}); err != nil {
		return err
	}
	for i := from; i < int(in.GetStopping().GetMaxTokens()); i++ {
		if err := s.cut(i); err != nil {
			return err
		}
		id := uint32(in.GetSampling().GetSeed()) * uint32(i)
		if err := out.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{
			Tokens: &pb.Tokens{TokenIndex: uint32(i), TokenIds: []uint32{id}, Text: "."},
		}}); err != nil {
			return err
		}
	}
	return out.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
		Reason: pb.FinishReason_FINISH_REASON_LENGTH,
		Usage:  &pb.Usage{CompletionTokens: uint32(in.GetStopping().GetMaxTokens())},
	}}})
}

func whole(int) error { return nil }

// gone is what a client sees of a scheduler that dies behind k tokens.
func gone(k int) func(int) error {
	return func(tokens int) error {
		if tokens == k {
			return status.Error(codes.Unavailable, "transport is closing")
		}
		return nil
	}
}

// serve makes entries of servers.
func serve(t *testing.T, servers ...*server) []*entry {
	t.Helper()
	rpctest.NoLeaks(t)
	var all []*entry
	for _, s := range servers {
		lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		on := grpc.NewServer()
		pb.RegisterInferenceServiceServer(on, s)
		go func() { _ = on.Serve(lis) }()
		t.Cleanup(on.Stop)
		e, err := dial(s.worker, lis.Addr().String(), "m")
		require.NoError(t, err)
		t.Cleanup(func() { _ = e.conn.Close() })
		all = append(all, e)
	}
	return all
}

func TestAClientThatMovesHasTheWholeAnswerWhereverItsSchedulerDies(t *testing.T) {
	const tokens = 5
	in := ask("m", 3, tokens)
	entries := serve(t, &server{worker: "whole", cut: whole})
	want, err := (&client{entries: entries, board: &board{}}).ask(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, []uint32{0, 3, 6, 9, 12}, want.ids)
	for k := range tokens {
		dies := serve(t, &server{worker: "dies", cut: gone(k)})
		a, err := (&client{entries: append(dies, entries...), moves: true, board: &board{}}).ask(t.Context(), in)
		require.NoError(t, err)
		require.Empty(t, a.differs(&want.answer), "after %d tokens", k)
		require.Equal(t, []string{"dies"}, a.left)
		require.Equal(t, k > 0, a.resumed != nil)

		_, err = (&client{entries: dies, board: &board{}}).ask(t.Context(), in)
		require.ErrorContains(t, err, "through dies after")
		require.ErrorContains(t, err, "transport is closing")
	}
}

func TestAClientThatMovesTakesARefusalForAnAnswer(t *testing.T) {
	refuses := &server{worker: "refuses", cut: func(int) error { return status.Error(codes.ResourceExhausted, "full") }}
	entries := serve(t, refuses)
	_, err := (&client{entries: entries, moves: true, board: &board{}}).ask(t.Context(), ask("m", 1, 3))
	require.ErrorContains(t, err, "ResourceExhausted")
	require.EqualValues(t, 1, refuses.calls.Load())
}

func TestALoadCountsWhatFailsAndWhatDiffers(t *testing.T) {
	fails := &server{worker: "fails", cut: func(tokens int) error {
		if tokens == 2 {
			return status.Error(codes.Unavailable, "worker lost")
		}
		return nil
	}}
	r := &rig{entries: serve(t, fails)}
	good, other := ask("m", 1, 2), ask("m", 2, 2)
	r.stories = []story{{request: good}, {request: other}, {request: ask("m", 3, 3)}}
	for i := range 2 {
		a, err := (&client{entries: r.entries, board: &board{}}).ask(t.Context(), r.stories[i].request)
		require.NoError(t, err)
		r.stories[i].want = a.answer
	}
	r.stories[1].want.ids[1]++
	l := r.begin(t.Context(), false)
	require.NoError(t, l.running(t.Context(), 1, 0))
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.tally.failed) > 0 && len(l.tally.different) > 0
	}, time.Minute, time.Millisecond)
	tally := l.end()
	require.Contains(t, tally.different[0], "seed 2 on fails: 2 tokens, of which the first 1 are right, where 2 were due")
	require.Contains(t, tally.failed[0], "seed 3 through fails after 2 tokens on fails: Unavailable")
	require.ErrorContains(t, tally.err(), "streams failed")
	open, _ := l.board.spread()
	require.Zero(t, open, "nothing is open when all have ended")
}

func TestAStrikeCountsTheStreamsThatItCut(t *testing.T) {
	l := &load{}
	_, err := l.cut(strike{worker: "idle", at: time.Now()})
	require.ErrorIs(t, err, errIdle)
	streams := [5]answer{}
	for i := range 4 {
		l.board.enter(&streams[i], "busy")
	}
	l.board.enter(&streams[4], "idle")
	late := [6]answer{} // more, and no longer at their beginnings
	for i := range late {
		l.board.has(&late[i], 1) // which says nothing of a stream that has not begun
		l.board.enter(&late[i], "late")
		l.board.has(&late[i], 3)
	}
	l.board.has(&streams[3], 2)
	s, err := l.strike(t.Context(), 4, 2, func(id string) (time.Time, error) {
		require.Equal(t, "busy", id)
		l.board.leave(&streams[0], time.Second, true) // had been sent to its end
		l.board.leave(&streams[1], 0, false)
		return time.Now(), nil
	})
	require.NoError(t, err)
	time.Sleep(2 * underWay)
	l.board.leave(&streams[2], 2*time.Second, true) // was continued elsewhere meanwhile
	text, err := l.cut(s)
	require.NoError(t, err)
	require.Equal(t, "busy with 3 streams", text)

	l.board.leave(&streams[4], time.Hour, true) // of another worker
	r := &rig{resume: 500 * time.Millisecond}
	_, err = r.went(s, 1400*time.Millisecond, text, nil)
	require.ErrorContains(t, err, "a stream of busy paused for 2.00 s, want 1.90 s at most")
	text, err = r.went(s, 1500*time.Millisecond, text, nil)
	require.NoError(t, err)
	require.Equal(t, "busy with 3 streams, 2.00 s in those of busy", text)
	_, err = r.went(s, 0, "", errIdle)
	require.Equal(t, errIdle, err, "what went wrong before is told")
}

func TestResumesAreTimedFromTheMiddle(t *testing.T) {
	for _, tokens := range []int{2, 3, 20} {
		a, b := &server{worker: "a", cut: whole}, &server{worker: "b", cut: whole}
		r := &rig{cfg: Config{Tokens: tokens}, entries: serve(t, a, b)}
		for i := range 5 {
			r.stories = append(r.stories, story{request: ask("m", uint64(i), tokens)})
		}
		require.NoError(t, r.resumes(t.Context()))
		require.Positive(t, r.resume)
		require.EqualValues(t, 6, a.calls.Load(), "each story is asked for twice")
		require.EqualValues(t, 4, b.calls.Load())
	}
	refuses := &server{worker: "refuses", cut: gone(3)}
	r := &rig{cfg: Config{Tokens: 8}, entries: serve(t, refuses), stories: []story{{request: ask("m", 7, 8)}}}
	require.ErrorContains(t, r.resumes(t.Context()), "seed 0 through refuses: Unavailable")
}

func TestASectionIsTriedAgainWhereNothingWasAtStake(t *testing.T) {
	for name, tc := range map[string]struct {
		idle  int // tries that show nothing
		after error
		runs  int
		ok    bool
	}{
		"the first shows it":      {0, nil, 1, true},
		"the last shows it":       {2, nil, 3, true},
		"none does":               {3, nil, 3, false},
		"the second breaks":       {1, errors.New("differs"), 2, false},
		"what breaks breaks once": {0, errors.New("differs"), 1, false},
	} {
		runs := 0
		s := section{"kill", func(*rig, context.Context) (string, error) {
			if runs++; runs <= tc.idle {
				return "", fmt.Errorf("worker-1: %w", errIdle)
			}
			return "", tc.after
		}}
		_, err := s.tried(t.Context(), nil)
		require.Equal(t, tc.runs, runs, name)
		require.Equal(t, tc.ok, err == nil, name)
	}
}

func TestDifferencesAreSeenWhereverTheyAre(t *testing.T) {
	full := func() *answer {
		return &answer{ids: []uint32{1, 2}, text: "ab", finished: &pb.Finished{
			Reason: pb.FinishReason_FINISH_REASON_LENGTH, Usage: &pb.Usage{CompletionTokens: 2},
		}}
	}
	require.Empty(t, full().differs(full()))
	for name, change := range map[string]func(*answer){
		"a token":        func(a *answer) { a.ids[1] = 3 },
		"a token less":   func(a *answer) { a.ids = a.ids[:1] },
		"a token more":   func(a *answer) { a.ids = append(a.ids, 3) },
		"no token":       func(a *answer) { a.ids = nil },
		"another text":   func(a *answer) { a.text = "ac" },
		"another end":    func(a *answer) { a.finished.Reason = pb.FinishReason_FINISH_REASON_STOP },
		"no end":         func(a *answer) { a.finished = nil },
		"another number": func(a *answer) { a.finished.Usage.CompletionTokens = 1 },
	} {
		a := full()
		change(a)
		require.NotEmpty(t, a.differs(full()), name)
	}
}

func TestAnAnswerRefusesEventsThatAreNotItsNext(t *testing.T) {
	started := func(s *pb.Started) *pb.GenerateResponse {
		return &pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: s}}
	}
	tokens := func(at uint32) *pb.GenerateResponse {
		return &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{TokenIndex: at, TokenIds: []uint32{7}}}}
	}
	end := &pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{}}}
	var a answer
	require.ErrorContains(t, a.add(started(&pb.Started{Exact: proto.Bool(false)}), 0), "another class")
	require.ErrorContains(t, a.add(started(&pb.Started{}), 2), "2 tokens were given back and 0 taken")
	require.NoError(t, a.add(started(&pb.Started{}), 0))
	require.NoError(t, a.add(tokens(0), 0))
	require.ErrorContains(t, a.add(tokens(0), 0), "token 0 came where token 1 was due")
	require.ErrorContains(t, a.add(tokens(2), 0), "token 2 came where token 1 was due")
	require.NoError(t, a.add(end, 0))
	require.ErrorContains(t, a.add(end, 0), "twice")
}

func TestAWorkerIsWhatItsBestAddressShows(t *testing.T) {
	at := func(address string, connected bool, s pb.WorkerState, models ...string) *pb.FleetWorker {
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
		"not connected":                 {[]*pb.FleetWorker{at("a:1", false, up, "m")}, lost},
		"without the model":             {[]*pb.FleetWorker{at("a:1", true, up, "n")}, starting},
		"draining":                      {[]*pb.FleetWorker{at("a:1", true, drains, "m")}, draining},
		"ready":                         {[]*pb.FleetWorker{at("a:1", true, up, "m")}, ready},
		"gone there and ready here":     {[]*pb.FleetWorker{at("a:1", false, up, "m"), at("b:1", true, up, "m")}, ready},
		"another worker at its address": {[]*pb.FleetWorker{{Address: "a:1", Connected: true, Report: &pb.WorkerReport{WorkerId: "worker-2", State: up}}}, lost},
	} {
		require.Equal(t, tc.want, stateOf(tc.shown, "worker-1", "m"), name)
	}
}

func TestContainersHaveTheIdsOfTheirServers(t *testing.T) {
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

func TestAConfigSaysEverythingThatIsWrong(t *testing.T) {
	ok := Config{Schedulers: []string{"a", "b"}, Service: "worker", Workers: 2, Streams: 2, Tokens: 2, Truth: time.Second, Only: []string{"kill", "restart"}}
	require.NoError(t, ok.Validate())
	err := (&Config{Only: []string{"flood"}}).Validate()
	for _, want := range []string{"--schedulers", "--service", "--workers", "--max-tokens", "--truth", `no section "flood": want kill, freeze`} {
		require.ErrorContains(t, err, want)
	}
}

func TestAReportIsBrokenByOneSection(t *testing.T) {
	r := &Report{Sections: []Result{{Section: "start", OK: true, Seconds: 3.2, Text: "well"}}}
	require.NoError(t, r.Err())
	require.Equal(t, "ok    start         3 s  well", r.Sections[0].String())
	r.Sections = append(r.Sections, Result{Section: "kill"}, Result{Section: "drain"})
	require.ErrorIs(t, r.Err(), ErrBroken)
	require.ErrorContains(t, r.Err(), "kill, drain")
}

func TestASchedulerThatShowsTheTruthTooLateIsToldOf(t *testing.T) {
	e := &entry{name: "scheduler-0", model: "m", states: map[string]shown{}, bounds: map[string]time.Duration{}, changed: make(chan struct{})}
	r := &rig{cfg: Config{Model: "m", Truth: time.Minute}, entries: []*entry{e}}
	e.show([]*pb.FleetWorker{{Connected: true, Report: &pb.WorkerReport{WorkerId: "worker-1", State: pb.WorkerState_WORKER_STATE_DRAINING}}})
	_, err := r.showing(t.Context(), "worker-1", draining, time.Now())
	require.NoError(t, err)
	e.show([]*pb.FleetWorker{})
	took, err := r.showing(t.Context(), "worker-1", lost, time.Now())
	require.NoError(t, err)
	require.Zero(t, took, "it was shown before the wait for it began")
	_, err = r.showing(t.Context(), "worker-1", lost, e.states["worker-1"].since.Add(-time.Hour))
	require.ErrorContains(t, err, "scheduler-0 showed worker-1 as lost after 3600")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.showing(ctx, "worker-1", ready, time.Now())
	require.ErrorContains(t, err, "has not shown worker-1 as ready")
}

func TestASilentWorkerWithLongStepsIsWaitedForALittleLonger(t *testing.T) {
	for bound, want := range map[time.Duration]time.Duration{ // a tick is 1.6 s/7
		0: 0, 1500 * time.Millisecond: 0, 1599 * time.Millisecond: 0, 1700 * time.Millisecond: 228571428,
		2 * time.Second: 457142857, 2200 * time.Millisecond: 685714285, time.Hour: 685714285,
	} {
		require.Equal(t, want, waited(bound), "a bound of %v", bound)
	}
	e := &entry{name: "scheduler-0", model: "m", states: map[string]shown{}, bounds: map[string]time.Duration{}, changed: make(chan struct{})}
	r := &rig{cfg: Config{Model: "m", Truth: time.Minute}, entries: []*entry{e}}
	e.show([]*pb.FleetWorker{{Connected: true, Report: &pb.WorkerReport{
		WorkerId: "worker-1", Progress: &pb.StepProgress{StepBound: durationpb.New(time.Hour)},
	}}})
	e.show([]*pb.FleetWorker{})
	since := e.states["worker-1"].since.Add(-time.Minute - 400*time.Millisecond)
	_, err := r.noticing(t.Context(), "worker-1", since)
	require.NoError(t, err)
	_, err = r.showing(t.Context(), "worker-1", lost, since)
	require.ErrorContains(t, err, "want within 60.00 s")
}
