package relay_test

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// requests are those whose streams differ in kind.
func requests() map[string]*pb.GenerateRequest {
	all := map[string]*pb.GenerateRequest{"plain": ask(5), "nothing but the prompt": ask(0), "seeded": ask(4), "of several outputs": ask(3),
		"all there is": ask(3), "resumed by its client": ask(6), "resumed behind an end": ask(3),
		"as long as the context": {Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: "once"}},
		"least and no most":      {Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: "once"}, Stopping: &pb.Stopping{MinTokens: proto.Int32(500)}}}
	all["nothing but the prompt"].Response = &pb.ResponseOptions{EchoPrompt: proto.Bool(true)}
	all["seeded"].Sampling = &pb.Sampling{Seed: proto.Uint64(99)}
	all["of several outputs"].Sampling = &pb.Sampling{NumSequences: proto.Int32(3)}
	in := all["all there is"]
	in.Sampling = &pb.Sampling{NumSequences: proto.Int32(2)}
	in.Response = &pb.ResponseOptions{EchoPrompt: proto.Bool(true), Progress: proto.Bool(true), PromptLogprobs: proto.Int32(0)}
	resume := func(output uint32, sent int, in *pb.GenerateRequest) *pb.Resume {
		out := &pb.Resume{OutputIndex: output, TextBytes: proto.Uint64(0)}
		events, _ := workertest.Whole("").Of(in)
		for _, e := range events {
			if got := e.GetTokens(); e.GetTokens() != nil && got.GetOutputIndex() == output && len(out.TokenIds) < sent {
				out.TokenIds = append(out.TokenIds, got.GetTokenIds()...)
				*out.TextBytes += uint64(len(got.GetText()))
			}
		}
		return out
	}
	in = all["resumed by its client"]
	in.Sampling = &pb.Sampling{Seed: proto.Uint64(3)}
	in.Resume = []*pb.Resume{resume(0, 2, in)}
	in = all["resumed behind an end"]
	in.Sampling = &pb.Sampling{Seed: proto.Uint64(3), NumSequences: proto.Int32(2)}
	ended := resume(1, 3, in)
	ended.Finished = true
	in.Resume = []*pb.Resume{ended}
	return all
}

// ways are how a worker is lost: each is an end of a stream without a word of our own.
var ways = map[string]error{
	"with the connection's error": status.Error(codes.Unavailable, "error reading from server: EOF"),
	"with an internal error":      status.Error(codes.Internal, "stream terminated by RST_STREAM"),
	"with OK":                     nil,
	"with a stranger's status":    rpc.Fault{Code: codes.NotFound, Domain: "proxy.example", Reason: "NO", Message: "no"}.Err(),
}

// The workers' contexts are equal, or one of them holds the shorter streams alone: an answer must not become shorter by moving.
func TestWhereverAStreamBreaksItsClientGetsTheUndisturbedOne(t *testing.T) {
	fleets := map[string]map[string]workertest.Answer{
		"equal":   {"w1": {Context: long}, "w2": {Context: long}},
		"unequal": {"w1": {Context: long}, "w2": {Context: long}, "w3": {Context: short}, "w4": {Context: short}},
	}
	for contexts, fleet := range fleets {
		for name, in := range requests() {
			for way, err := range ways {
				t.Run(name+" lost "+way+" with "+contexts+" contexts", func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						want := wholeOf(t, long, in)
						var cut atomic.Int64
						r := newRig(t, relay.Options{}, fleet)
						var attempts atomic.Int64
						for id, w := range r.workers {
							w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
								a := workertest.Whole(id)
								a.Context = fleet[id].Context
								if attempts.Add(1) == 1 { // whoever is asked first breaks off
									a.Events, a.Err = int(cut.Load()), err
								}
								return a.Generate(in, stream)
							}
						}
						for k := 0; k < len(want); k++ {
							attempts.Store(0)
							cut.Store(int64(k))
							got, err := r.generate(in)
							require.NoError(t, err, "cut behind %d events", k)
							requireEqual(t, want, got)
							require.EqualValues(t, 2, attempts.Load(), "cut behind %d events", k)
						}
						r.idle()
					})
				})
			}
		}
	}
}

func TestAStreamThatIsBrokenBehindEveryTokenGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		once := workertest.Answer{Events: 2, Err: ways["with the connection's error"]} // `started` and a token, or `finished`
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": once, "w2": once})
		in := ask(20)
		got, err := r.generate(in)
		require.NoError(t, err)
		requireEqual(t, whole(t, in), got)
		require.EqualValues(t, 21, r.workers["w1"].Generations.Load()+r.workers["w2"].Generations.Load())
	})
}

func TestAKilledProcessIsNoticedByItsStreamAndReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := workertest.Whole("")
		slow.Pause = 2 * time.Millisecond
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": slow, "w2": slow})
		in := ask(60)
		stream, err := r.inference.Generate(r.patient(), in)
		require.NoError(t, err)
		var got []*pb.GenerateResponse
		for len(got) < 10 {
			m, err := stream.Recv()
			require.NoError(t, err)
			got = append(got, m)
		}
		r.processes[got[0].GetStarted().GetWorkerId()].Kill()
		rest, err := all(stream)
		require.NoError(t, err)
		requireEqual(t, whole(t, in), append(got, rest...))
	})
}

func TestAFrozenProcessIsNoticedByItsSilenceAndItsLateFramesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := workertest.Whole("")
		slow.Pause = 2 * time.Millisecond
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": slow, "w2": slow})
		in := ask(60)
		stream, err := r.inference.Generate(r.patient(), in)
		require.NoError(t, err)
		var got []*pb.GenerateResponse
		for len(got) < 10 {
			m, err := stream.Recv()
			require.NoError(t, err)
			got = append(got, m)
		}
		frozen := r.processes[got[0].GetStarted().GetWorkerId()]
		frozen.Freeze()
		for len(got) < 30 {
			m, err := stream.Recv()
			require.NoError(t, err)
			got = append(got, m)
		}
		frozen.Thaw() // and sends what it had
		rest, err := all(stream)
		require.NoError(t, err)
		requireEqual(t, whole(t, in), append(got, rest...))
		r.idle()
	})
}

func TestAWorkerThatComesBackGoesOnWithWhatItLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {Events: 3, Err: ways["with OK"]}})
		in := ask(9)
		stream, err := r.inference.Generate(r.patient(), in)
		require.NoError(t, err)
		var got []*pb.GenerateResponse
		for len(got) < 3 {
			m, err := stream.Recv()
			require.NoError(t, err)
			got = append(got, m)
		}
		r.processes["w1"].Kill()
		r.await(0)
		r.start("w1", workertest.Whole("w1"))
		rest, err := all(stream)
		require.NoError(t, err)
		requireEqual(t, whole(t, in), append(got, rest...))
	})
}

func TestAnEndBehindEveryFinishedIsGoodWhateverIsSaid(t *testing.T) {
	in := ask(2)
	events := len(whole(t, in))
	said := map[string]error{"a worker's own word": workertest.Refusal(codes.Internal, reason.StepFailed, "later")}
	for way, err := range ways {
		said[way] = err
	}
	for way, err := range said {
		t.Run(way, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {Events: events, Err: err}})
				got, err := r.generate(in)
				require.NoError(t, err)
				requireEqual(t, whole(t, in), got)
				require.EqualValues(t, 1, r.workers["w1"].Generations.Load())
			})
		})
	}
}

func TestThePlaceOfACallIsFreeWhenItsCallerHasTheLastFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}})
		released := make(chan struct{})
		r.workers["w1"].OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			err := workertest.Whole("w1").Generate(in, stream)
			<-released // the status is late
			return err
		}
		in := ask(3)
		load := r.fleet.Snapshot().Members[0].Load
		stream, got := r.begin(in, len(whole(t, in)))
		free := load.InFlight() == 0
		close(released)
		require.True(t, free)
		requireEqual(t, whole(t, in), got)
		_, err := stream.Recv()
		require.ErrorIs(t, err, io.EOF)
		r.idle()
	})
}

func TestARequestThatNoWorkerSurvivesIsGivenToThree(t *testing.T) {
	for name, tc := range map[string]struct{ events, generations, tokens int }{
		"before the first frame": {0, 3, 0},
		"behind started":         {1, 3, 0},
		"behind two tokens":      {3, 3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answers := map[string]workertest.Answer{}
				var had atomic.Int64
				for i := range 5 {
					answers[fmt.Sprintf("w%d", i)] = workertest.Whole("")
				}
				r := newRig(t, relay.Options{}, answers)
				for id, w := range r.workers {
					w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
						a := workertest.Answer{Worker: id, Events: tc.events, Err: ways["with the connection's error"]}
						if had.Add(1) > 1 && tc.events > 1 {
							a.Events = 1 // those behind the first bring no token
						}
						return a.Generate(in, stream)
					}
				}
				got, err := r.generate(ask(9))
				require.Equal(t, reason.WorkerLost, rpc.Reason(err), "%v", err)
				require.Equal(t, codes.Unavailable, status.Code(err))
				require.Equal(t, fmt.Sprint(tc.tokens), rpc.Info(err).GetMetadata()["tokens_relayed"])
				require.Len(t, got, tc.events)
				want := tc.generations
				if tc.events > 1 {
					want++ // the one that brought tokens was none of the three in vain
				}
				require.EqualValues(t, want, had.Load())
				r.idle()
			})
		})
	}
}

func TestAWorkerThatLiesInItsSecondStartedIsPassedOver(t *testing.T) {
	for name, lie := range map[string]func(*pb.Started){
		"about its model":       func(s *pb.Started) { s.ModelDigest = "another" },
		"about its class":       func(s *pb.Started) { s.ClassId = "another" },
		"about the prompt":      func(s *pb.Started) { s.PromptDigest = "another" },
		"about the seed":        func(s *pb.Started) { s.Seed++ },
		"about what it resumed": func(s *pb.Started) { s.ResumedTokens = []uint32{0} },
		"by saying nothing":     func(s *pb.Started) { s.ResumedTokens = nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}, "w2": {}, "w3": {}})
				var attempts atomic.Int64
				for id, w := range r.workers {
					w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
						a := workertest.Whole(id)
						switch attempts.Add(1) {
						case 1:
							a.Events = 4
						case 2:
							a.Change = func(e *pb.GenerateResponse) {
								if e.GetStarted() != nil {
									lie(e.GetStarted())
								}
							}
						}
						return a.Generate(in, stream)
					}
				}
				in := ask(9)
				got, err := r.generate(in)
				require.NoError(t, err)
				requireEqual(t, whole(t, in), got)
				require.EqualValues(t, 3, attempts.Load())
			})
		})
	}
}

func TestOnAnotherClassAStreamGoesOnAndSaysSoOrIsRefused(t *testing.T) {
	const wait = 300 * time.Millisecond
	for name, tc := range map[string]struct {
		options relay.Options
		expect  *string
		exact   bool
	}{
		"it goes on":                          {options: relay.Options{FailoverWait: wait}, exact: true},
		"the operator refuses":                {options: relay.Options{FailoverWait: wait, RefuseInexact: true}},
		"the client itself expects the class": {options: relay.Options{FailoverWait: wait}, expect: proto.String("class")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second := workertest.Answer{Events: 4, Hold: true}, workertest.Whole("")
				second.Class = "another"
				r := newRig(t, tc.options, map[string]workertest.Answer{"w1": first, "w2": second})
				in := ask(9)
				if in.ExpectClassId = tc.expect; tc.expect == nil { // w1 is to begin
					r.workers["w2"].Change(func(report *pb.WorkerReport) { report.State = pb.WorkerState_WORKER_STATE_NOT_READY })
					require.Eventually(t, func() bool { return !r.fleet.Snapshot().Route.Workers[1].Serves() }, hang, time.Millisecond)
				}
				stream, err := r.inference.Generate(r.patient(), in)
				require.NoError(t, err)
				var got []*pb.GenerateResponse
				for len(got) < 4 {
					m, err := stream.Recv()
					require.NoError(t, err)
					got = append(got, m)
				}
				r.processes["w1"].Kill()
				r.workers["w2"].Change(func(report *pb.WorkerReport) { report.State = pb.WorkerState_WORKER_STATE_READY })
				rest, err := all(stream)
				if !tc.exact {
					require.Equal(t, reason.WorkerLost, rpc.Reason(err), "%v", err)
					require.Empty(t, rest)
					return
				}
				require.NoError(t, err)
				again := rest[0].GetStarted()
				require.NotNil(t, again, "it is told")
				require.NotNil(t, again.Exact)
				require.False(t, again.GetExact())
				require.Equal(t, "another", again.GetClassId())
				requireEqual(t, whole(t, in), append(got, rest[1:]...)) // this fake gives the same tokens on every class
			})
		})
	}
}

func TestAResumeWaitsWithinTheDeadlineAndThenSaysWhatWasUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{FailoverWait: time.Millisecond}, map[string]workertest.Answer{"w1": {}})
		sent := make(chan struct{})
		r.workers["w1"].OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			err := workertest.Answer{Worker: "w1", Events: 3}.Generate(in, stream)
			<-sent
			return err
		}
		ctx, cancel := context.WithTimeout(r.patient(), 5*time.Second)
		defer cancel()
		begun := time.Now()
		stream, err := r.inference.Generate(ctx, ask(9))
		require.NoError(t, err)
		for range 3 {
			_, err := stream.Recv()
			require.NoError(t, err)
		}
		r.processes["w1"].Kill()
		close(sent)
		_, err = all(stream)
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
		require.Equal(t, rpc.SchedulerDomain, rpc.Domain(err), "the call's own deadline is not what ended it: its trailers would be lost")
		require.Greater(t, time.Since(begun), time.Second, "--failover-wait is for calls without a deadline")
		usage := &pb.Usage{}
		require.Len(t, stream.Trailer().Get(rpc.UsageTrailer), 1)
		require.NoError(t, proto.Unmarshal([]byte(stream.Trailer().Get(rpc.UsageTrailer)[0]), usage))
		require.True(t, proto.Equal(&pb.Usage{PromptTokens: workertest.PromptTokens, CompletionTokens: 2}, usage), "%v", usage)
	})
}

func TestACallThatIsCancelledWhileItWaitsForAWorkerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {Events: 3}})
		ctx, cancel := context.WithCancel(r.patient())
		stream, err := r.inference.Generate(ctx, ask(9))
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		r.processes["w1"].Kill()
		r.await(0)
		cancel()
		_, err = all(stream)
		require.Equal(t, codes.Canceled, status.Code(err))
		r.idle() // NoLeaks says that the call has ended
	})
}

func TestARetryThatFindsNoOtherWorkerTakesTheFirstAgainAndGivesItsWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {Err: ways["with the connection's error"]}})
		_, err := r.generate(ask(3))
		require.Equal(t, reason.WorkerLost, rpc.Reason(err), "%v", err)
		require.Equal(t, "w1", rpc.Info(err).GetMetadata()["worker_id"])
		require.EqualValues(t, 3, r.workers["w1"].Generations.Load(), "as often as on others")
	})
}

func TestWhenManyFirstAttemptsFailTheyAreNoLongerTriedAgainAndResumesAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := workertest.Answer{Err: ways["with the connection's error"]}
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": broken, "w2": broken})
		generations := func() int64 { return r.workers["w1"].Generations.Load() + r.workers["w2"].Generations.Load() }
		calls := int64(0)
		for tried := int64(3); tried > 1; calls++ { // until a call is not tried again
			before := generations()
			_, err := r.generate(ask(1))
			require.Equal(t, reason.WorkerLost, rpc.Reason(err))
			require.Less(t, calls, int64(5000))
			tried = generations() - before
		}
		require.Greater(t, calls, int64(450), "one lost worker's calls are tried again")
		cut := true
		for id, w := range r.workers {
			w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
				a := workertest.Whole(id)
				if cut {
					a.Events = 3
				}
				cut = false
				return a.Generate(in, stream)
			}
		}
		in := ask(9)
		got, err := r.generate(in)
		require.NoError(t, err)
		requireEqual(t, whole(t, in), got)
	})
}

func TestOtherMethodsAreTriedAgainUntilTheirFirstFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}, "w2": {}})
		for id, w := range r.workers {
			w.OnTokenize = func(*pb.TokenizeRequest) error {
				if id == "w1" {
					return status.Error(codes.Unavailable, "gone")
				}
				return nil
			}
		}
		for range 10 {
			out, err := r.inference.Tokenize(r.patient(), &pb.TokenizeRequest{Model: "m", Input: &pb.TokenizeRequest_Text{Text: "ab"}})
			require.NoError(t, err)
			require.Len(t, out.GetTokenIds(), 2)
		}
		for _, w := range r.workers {
			w.OnTokenize = func(*pb.TokenizeRequest) error { return status.Error(codes.Unavailable, "gone") }
		}
		_, err := r.inference.Tokenize(r.patient(), &pb.TokenizeRequest{Model: "m"})
		require.Equal(t, reason.WorkerLost, rpc.Reason(err))
	})
}

// A reader that does not read holds its stream back with a frame in the scheduler's hands. The worker is lost then: that frame is
// sent, what the worker had sent behind it is not, and the log knows which is which.
func TestAFrameThatIsReceivedAndNotYetSentIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}, "w2": {}})
		var sent atomic.Int64
		for id, w := range r.workers {
			a := workertest.Whole(id)
			a.Change = func(*pb.GenerateResponse) { sent.Add(1) }
			w.OnGenerate = a.Generate
		}
		in := ask(20_000)
		stream, got := r.begin(in, 3)
		for last := int64(-1); sent.Load() != last; { // until every window between worker and reader is full
			last = sent.Load()
			time.Sleep(200 * time.Millisecond)
		}
		require.Less(t, sent.Load(), int64(20_000), "it is held back")
		r.processes[got[0].GetStarted().GetWorkerId()].Kill()
		rest, err := all(stream)
		require.NoError(t, err)
		requireEqual(t, whole(t, in), append(got, rest...))
		require.Greater(t, sent.Load(), int64(20_002), "what was under way was computed again")
	})
}
