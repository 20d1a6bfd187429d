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

// ways are the ways in which a worker is lost: ends of a stream without a status of our own
// domains.
var ways = map[string]error{
	"with the connection's error": status.Error(codes.Unavailable, "error reading from server: EOF"),
	"with an internal error":      status.Error(codes.Internal, "stream terminated by RST_STREAM"),
	"with OK":                     nil,
	"with a stranger's status":    rpc.Error{Code: codes.NotFound, Domain: "proxy.example", Reason: "NO", Message: "no"}.Err(),
}

func TestFailoverIsExactAtEveryEvent(t *testing.T) {
	// A stream is cut after each of its events, in each way, and resumed: the caller gets the
	// events of the undisturbed stream. With unequal contexts, the answer must not become shorter
	// by moving.
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
								if attempts.Add(1) == 1 { // the worker that is chosen first breaks off
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

func TestResumeAfterEveryToken(t *testing.T) {
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

func TestKilledWorkerIsReplaced(t *testing.T) {
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

func TestFrozenWorkerIsReplacedAndItsFramesDropped(t *testing.T) {
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
		frozen.Thaw() // and sends the frames that it had
		rest, err := all(stream)
		require.NoError(t, err)
		requireEqual(t, whole(t, in), append(got, rest...))
		r.idle()
	})
}

func TestRestartedWorkerResumesItsStream(t *testing.T) {
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

func TestAnyStatusAfterFinishedIsOK(t *testing.T) {
	// A stream with all its `finished` events is complete, whatever status follows.
	in := ask(2)
	events := len(whole(t, in))
	said := map[string]error{"a worker's own status": workertest.Refusal(codes.Internal, reason.StepFailed, "later")}
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

func TestSlotIsFreeBeforeTheLastFrameLeaves(t *testing.T) {
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

func TestFatalRequestReachesThreeWorkers(t *testing.T) {
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
							a.Events = 1 // attempts after the first send no token
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
					want++ // the attempt that sent tokens does not count as one of the three
				}
				require.EqualValues(t, want, had.Load())
				r.idle()
			})
		})
	}
}

func TestContradictingStartedIsSkipped(t *testing.T) {
	for name, lie := range map[string]func(*pb.Started){
		"about its model":       func(s *pb.Started) { s.ModelDigest = "another" },
		"about its class":       func(s *pb.Started) { s.ClassId = "another" },
		"about the prompt":      func(s *pb.Started) { s.PromptDigest = "another" },
		"about the seed":        func(s *pb.Started) { s.Seed++ },
		"about what it resumed": func(s *pb.Started) { s.ResumedTokens = []uint32{0} },
		"by omission":           func(s *pb.Started) { s.ResumedTokens = nil },
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

func TestInexactFailoverIsReportedOrRefused(t *testing.T) {
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
				started := rest[0].GetStarted()
				require.NotNil(t, started, "a second `started` reports the other class")
				require.NotNil(t, started.Exact)
				require.False(t, started.GetExact())
				require.Equal(t, "another", started.GetClassId())
				requireEqual(t, whole(t, in), append(got, rest[1:]...)) // this fake gives the same tokens on every class
			})
		})
	}
}

func TestResumeEndsBeforeTheDeadlineWithUsage(t *testing.T) {
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
		require.Equal(t, rpc.SchedulerDomain, rpc.Domain(err), "the scheduler ended it before the deadline, which would have lost the trailers")
		require.Greater(t, time.Since(begun), time.Second, "--failover-wait is for calls without a deadline")
		usage := &pb.Usage{}
		require.Len(t, stream.Trailer().Get(rpc.UsageTrailer), 1)
		require.NoError(t, proto.Unmarshal([]byte(stream.Trailer().Get(rpc.UsageTrailer)[0]), usage))
		require.True(t, proto.Equal(&pb.Usage{PromptTokens: workertest.PromptTokens, CompletionTokens: 2}, usage), "%v", usage)
	})
}

func TestCancelEndsTheSearchForAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {Events: 3, Hold: true}})
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
		r.idle() // NoLeaks checks that the call has ended
	})
}

func TestRetryUsesTheOnlyWorkerAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {Err: ways["with the connection's error"]}})
		_, err := r.generate(ask(3))
		require.Equal(t, reason.WorkerLost, rpc.Reason(err), "%v", err)
		require.Equal(t, "w1", rpc.Info(err).GetMetadata()["worker_id"])
		require.EqualValues(t, 3, r.workers["w1"].Generations.Load(), "three attempts, as with other workers")
	})
}

func TestRetryBudgetDoesNotLimitResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := workertest.Answer{Err: ways["with the connection's error"]}
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": broken, "w2": broken})
		generations := func() int64 { return r.workers["w1"].Generations.Load() + r.workers["w2"].Generations.Load() }
		calls := int64(0)
		for tried := int64(3); tried > 1; calls++ { // until a call is not retried
			before := generations()
			_, err := r.generate(ask(1))
			require.Equal(t, reason.WorkerLost, rpc.Reason(err))
			require.Less(t, calls, int64(5000))
			tried = generations() - before
		}
		require.Greater(t, calls, int64(450), "the budget suffices for the calls of one lost worker")
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

func TestUnaryMethodsAreRetried(t *testing.T) {
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

func TestFrameInFlightIsSentOnce(t *testing.T) {
	// A slow consumer blocks the relay while it sends a frame, and the worker is lost then. That frame
	// is delivered, frames after it are not, and the resume request must reflect that.
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
		require.Less(t, sent.Load(), int64(20_000), "backpressure reaches the worker")
		r.processes[got[0].GetStarted().GetWorkerId()].Kill()
		rest, err := all(stream)
		require.NoError(t, err)
		requireEqual(t, whole(t, in), append(got, rest...))
		require.Greater(t, sent.Load(), int64(20_002), "tokens that were in flight are computed again")
	})
}
