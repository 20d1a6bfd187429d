package relay_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
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

// Contexts of workers. Every prompt has 6 tokens, and the scheduler estimates 6 for that of ask.
const long, short = 60, 18

// open returns a request without max_tokens.
func open() *pb.GenerateRequest {
	return &pb.GenerateRequest{Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: "once"}}
}

// of returns the answer of a worker with a context length.
func of(context int) workertest.Answer {
	a := workertest.Whole("")
	a.Context = context
	return a
}

func TestEqualRequestsGetEqualLengths(t *testing.T) {
	tiny := ask(10) // for its prompt the scheduler estimates 5 tokens
	tiny.Input = &pb.GenerateRequest_Prompt{Prompt: "o"}
	stated := open()
	stated.ContextLength = proto.Uint32(30)
	few := open()
	few.ContextLength = proto.Uint32(10)
	resumed := open()
	resumed.Sampling = &pb.Sampling{Seed: proto.Uint64(7)}
	for _, e := range wholeOf(t, long, resumed)[1:31] {
		if len(resumed.Resume) == 0 {
			resumed.Resume = []*pb.Resume{{}}
		}
		resumed.Resume[0].TokenIds = append(resumed.Resume[0].TokenIds, e.GetTokens().GetTokenIds()...)
	}
	for name, tc := range map[string]struct {
		in         *pb.GenerateRequest
		short, old int  // context of w2; 1 if w2 is of an earlier version
		moves      bool // whether w2 receives requests and refuses them
		serves     bool // whether w2 serves some
	}{
		"no max_tokens":                                  {in: open(), short: short},
		"more than a context holds":                      {in: ask(40), short: short},
		"more than every context holds":                  {in: ask(400), short: short},
		"few":                                            {in: ask(5), short: short, serves: true},
		"a context between":                              {in: stated, short: short},
		"a context that every worker has":                {in: few, short: short, serves: true},
		"resumed by its client":                          {in: resumed, short: short},
		"more tokens than the text suggests":             {in: tiny, short: 15, moves: true},
		"more than the text suggests, at an old version": {in: tiny, short: 15, old: 1, moves: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				brief := of(tc.short)
				brief.Old = tc.old > 0
				r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": of(long), "w2": brief})
				want := wholeOf(t, long, tc.in)
				for range 200 { // more than the budget of retries
					got, err := r.generate(tc.in)
					require.NoError(t, err)
					requireEqual(t, want, got)
				}
				require.Equal(t, tc.moves || tc.serves, r.workers["w2"].Generations.Load() > 0)
				require.Equal(t, !tc.serves, r.workers["w1"].Generations.Load() == 200)
			})
		})
	}
}

func TestEqualRequestsGetEqualRefusals(t *testing.T) {
	beyond := ask(3)
	beyond.Sampling = &pb.Sampling{Seed: proto.Uint64(7)}
	beyond.Resume = []*pb.Resume{{TokenIds: make([]uint32, 4)}}
	stated := open()
	stated.ContextLength = proto.Uint32(5)
	far := open()
	far.ContextLength = proto.Uint32(100)
	for name, tc := range map[string]struct {
		in          *pb.GenerateRequest
		long, short int
		reason      string
	}{
		"a prompt that fits no context":           {open(), 6, 5, reason.PromptTooLong},
		"a prompt beyond the request's context":   {stated, long, short, reason.PromptTooLong},
		"a context that no worker has":            {far, long, short, reason.ContextTooShort},
		"more resumed tokens than a stream has":   {beyond, long, short, reason.ResumeTooLong},
		"a prompt that the shorter context holds": {ask(1), 5, 4, reason.PromptTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": of(tc.long), "w2": of(tc.short)})
				said := ""
				for range 20 {
					_, err := r.generate(tc.in)
					require.Equal(t, tc.reason, rpc.Reason(err), "%v", err)
					require.Equal(t, rpc.WorkerDomain, rpc.Domain(err))
					if said == "" {
						said = err.Error()
					}
					require.Equal(t, said, err.Error())
				}
			})
		})
	}
}

func TestLongPromptMovesToALongerContext(t *testing.T) {
	// A worker with a longer context becomes ready while another refuses the prompt.
	for _, why := range []string{reason.PromptTooLong, reason.ResumeTooLong, reason.ContextTooShort} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": of(5), "w2": of(5)})
			for id, w := range r.workers {
				w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
					if id == "w2" {
						return of(long).Generate(in, stream)
					}
					r.workers["w2"].Change(func(report *pb.WorkerReport) { report.GetModels()[0].ContextLength = long })
					time.Sleep(100 * time.Millisecond)
					return workertest.Refusal(codes.InvalidArgument, why, "said")
				}
			}
			r.drain("w2", true)
			require.Eventually(t, func() bool { return !r.fleet.Snapshot().Route.Workers[1].Serves() }, hang, time.Millisecond)
			in := open()
			stream, err := r.inference.Generate(r.patient(), in)
			require.NoError(t, err)
			r.drain("w2", false)
			got, err := all(stream)
			require.NoError(t, err, why)
			requireEqual(t, wholeOf(t, long, in), got)
		})
	}
}

func TestResumeNeverUsesAShorterContext(t *testing.T) {
	for name, from := range map[string]int{"started": 1, "behind tokens": 5} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				paced := of(long)
				paced.Pause = 5 * time.Millisecond
				r := newRig(t, relay.Options{FailoverWait: 2 * time.Second}, map[string]workertest.Answer{"w1": paced, "w2": of(short)})
				stream, got := r.begin(open(), from)
				require.Equal(t, "w1", got[0].GetStarted().GetWorkerId())
				require.EqualValues(t, long-workertest.PromptTokens, got[0].GetStarted().GetMaxTokens())
				// No other worker holds the stream, so it stays with the draining one.
				r.drain("w1", true)
				for range 3 {
					m, err := stream.Recv()
					require.NoError(t, err)
					got = append(got, m)
				}
				r.processes["w1"].Kill()
				_, err := all(stream)
				require.Equal(t, codes.Unavailable, status.Code(err))
				require.Equal(t, reason.WorkerLost, rpc.Reason(err))
				require.ErrorContains(t, err, "context of 60 tokens")
				require.Zero(t, r.workers["w2"].Generations.Load())
			})
		})
	}
}

func TestDrainMovesStreamsToLongEnoughContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		paced := of(long)
		paced.Pause = 5 * time.Millisecond
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": paced, "w2": of(short), "w3": of(short), "w4": paced})
		stream, got := r.begin(open(), 4)
		r.drain(got[0].GetStarted().GetWorkerId(), true)
		rest, err := all(stream)
		require.NoError(t, err)
		requireEqual(t, wholeOf(t, long, open()), append(got, rest...))
		require.Zero(t, r.workers["w2"].Generations.Load()+r.workers["w3"].Generations.Load())
		require.EqualValues(t, 2, r.workers["w1"].Generations.Load()+r.workers["w4"].Generations.Load(), "it was not moved")
	})
}

func TestFullLongContextIsRetryable(t *testing.T) {
	// The worker that has the context is full, and that of the other one is too short. The caller must
	// get a status that it can retry, and not that its request is wrong.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": of(long), "w2": of(15)})
		r.workers["w1"].OnGenerate = func(*pb.GenerateRequest, grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			return workertest.Refusal(codes.ResourceExhausted, reason.WorkerFull, "full")
		}
		in := ask(10)
		in.Input = &pb.GenerateRequest_Prompt{Prompt: "o"}
		for range 20 {
			_, err := r.generate(in)
			require.Contains(t, []string{reason.WorkerFull, reason.NoWorker}, rpc.Reason(err), "%v", err)
		}
	})
}

func TestRandomContextsChangeNoAnswer(t *testing.T) {
	// With random fleets, requests and breaks, each answer or refusal is that of a worker with the
	// longest context.
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 36))
				longest := 8 + random.IntN(40)
				answers := map[string]workertest.Answer{"w1": of(longest), "w2": of(longest), "w3": of(1 + random.IntN(longest)), "w4": of(1 + random.IntN(longest))}
				r := newRig(t, relay.Options{}, answers)
				breaks := 0
				for id, w := range r.workers {
					w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
						a := answers[id]
						a.Worker = id
						if breaks > 0 && random.IntN(2) == 0 {
							breaks--
							a.Events, a.Err = random.IntN(longest), ways["with the connection's error"]
						}
						return a.Generate(in, stream)
					}
				}
				for range 40 {
					in := open()
					in.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("o", 1+random.IntN(20))}
					in.Sampling = &pb.Sampling{Seed: proto.Uint64(random.Uint64N(1000)), NumSequences: proto.Int32(1 + random.Int32N(3))}
					if random.IntN(3) > 0 {
						in.Stopping = &pb.Stopping{MaxTokens: proto.Int32(1 + random.Int32N(50))}
					}
					if random.IntN(4) == 0 {
						in.ContextLength = proto.Uint32(1 + random.Uint32N(50))
					}
					want, refusal := of(longest).Of(in)
					breaks = random.IntN(3)
					got, err := r.generate(in)
					if refusal != nil {
						require.Equal(t, rpc.Reason(refusal), rpc.Reason(err), "%v: %v", in, err)
						continue
					}
					require.NoError(t, err, "%v", in)
					requireEqual(t, want, got)
				}
				r.idle()
			})
		})
	}
}

func TestLongPromptWaitsForAnUnreadyWorker(t *testing.T) {
	// A prompt that fits only a worker that is NOT_READY for a moment waits and is not refused.
	for name, back := range map[string]bool{"it comes back": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, relay.Options{FailoverWait: 10 * time.Second}, map[string]workertest.Answer{"w1": of(5), "w2": of(long)})
				state := func(s pb.WorkerState) func(*pb.WorkerReport) {
					return func(report *pb.WorkerReport) { report.State = s }
				}
				r.workers["w2"].Change(state(pb.WorkerState_WORKER_STATE_NOT_READY))
				require.Eventually(t, func() bool { return !r.fleet.Snapshot().Route.Workers[1].Serves() }, hang, time.Millisecond)
				if back {
					time.AfterFunc(time.Second, func() { r.workers["w2"].Change(state(pb.WorkerState_WORKER_STATE_READY)) })
				}
				in := ask(3)
				got, err := r.generate(in)
				if !back {
					require.Equal(t, reason.NoWorker, rpc.Reason(err), "%v", err)
					return
				}
				require.NoError(t, err)
				requireEqual(t, wholeOf(t, long, in), got)
			})
		})
	}
}
