package e2e

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// brokenOff reads a call until it has at least k tokens, and cancels it.
func brokenOff(t *testing.T, on *server, in *pb.GenerateRequest, k int) outcome {
	t.Helper()
	ctx, leave := context.WithCancel(within(t))
	defer leave()
	stream, err := on.infer.Generate(ctx, in)
	require.NoError(t, err)
	c := &call{stream: stream}
	for len(c.ids) < k {
		require.NoError(t, c.read())
	}
	return c.outcome
}

// resumed sends a request with the events of an earlier stream in resume, and reads it to its end.
func resumed(t *testing.T, on *server, in *pb.GenerateRequest, before *pb.Resume) outcome {
	t.Helper()
	in = proto.Clone(in).(*pb.GenerateRequest)
	in.Resume = []*pb.Resume{before}
	stream, err := on.infer.Generate(within(t), in)
	require.NoError(t, err)
	return (&call{stream: stream}).end()
}

func TestClientResumesToTheByte(t *testing.T) {
	// A client that cancels and resumes gets exactly the rest of its stream.
	t.Parallel()
	workers := []*server{
		startWorker(t, "w1", "--device", "cpu", "--load", stories), startWorker(t, "w2", "--device", "cpu", "--load", stories),
	}
	s := startScheduler(t, workers)
	s.untilServed(t, stories, 2)
	in := ask(stories, 41)
	in.Sampling = &pb.Sampling{Seed: ptr(uint64(11)), MinP: ptr(float32(0.05)), RepetitionPenalty: ptr(float32(1.1))}
	in.Stopping.Stop = []string{"never to be seen"}
	in.Response = &pb.ResponseOptions{OutputLogprobs: ptr(true), OutputCandidates: ptr(int32(2)), EchoPrompt: ptr(true)}
	in.Priority, in.FairnessId = ptr(int32(2)), ptr("tenant") // change no token
	in.Cache = &pb.CacheOptions{Salt: ptr("salt"), BypassPrefixCache: ptr(true)}
	whole := generate(within(t), s.infer, in)
	require.NoError(t, whole.err)
	require.Len(t, whole.ids, 41)
	perToken := len(whole.logprobs) / len(whole.ids)
	for k := 1; k <= 40; k++ {
		before := brokenOff(t, s, in, k)
		got := len(before.ids)
		// Each server can end a stream that another began.
		for name, on := range map[string]*server{"scheduler": s, "first worker": workers[0], "second worker": workers[1]} {
			rest := resumed(t, on, in, &pb.Resume{TokenIds: before.ids, TextBytes: ptr(uint64(len(before.text)))})
			require.NoError(t, rest.err, "%s after %d", name, got)
			require.Equal(t, whole.ids, append(before.ids[:got:got], rest.ids...), "%s after %d", name, got)
			require.Equal(t, whole.text, before.text+rest.text, "%s after %d", name, got)
			require.Equal(t, whole.logprobs[got*perToken:], append([]uint32{}, rest.logprobs...), "%s after %d: bits", name, got)
			require.EqualValues(t, 41, rest.finished.GetUsage().GetCompletionTokens())
			require.Equal(t, []uint32{uint32(got)}, rest.started.GetResumedTokens())
		}
		// After exactly k tokens, whatever the messages were.
		exact := resumed(t, s, in, &pb.Resume{TokenIds: whole.ids[:k]})
		require.NoError(t, exact.err)
		require.Equal(t, whole.ids[k:], exact.ids)
		bytes := uint64(len(whole.text) - len(exact.text))
		require.Equal(t, whole.text[bytes:], exact.text)
		require.NoError(t, resumed(t, s, in, &pb.Resume{TokenIds: whole.ids[:k], TextBytes: &bytes}).err)
		bytes++
		require.Equal(t, fault{codes.FailedPrecondition, rpc.WorkerDomain, reason.ResumeMismatch},
			faultOf(resumed(t, s, in, &pb.Resume{TokenIds: whole.ids[:k], TextBytes: &bytes}).err))
	}
	over := resumed(t, s, in, &pb.Resume{TokenIds: whole.ids, TextBytes: ptr(uint64(len(whole.text)))})
	require.NoError(t, over.err)
	require.Empty(t, over.ids)
	require.Equal(t, pb.FinishReason_FINISH_REASON_LENGTH, over.finished.GetReason())
}

func TestResumeAfterSomeContinuationsEnded(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", "--device", "cpu", "--load", stories)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, stories, 1)
	in := ask(stories, 8)
	in.Sampling = &pb.Sampling{Seed: ptr(uint64(3)), NumSequences: ptr(int32(3))}
	for _, on := range []*server{w, s} {
		for ended := 0; ended <= 3; ended++ {
			in.Resume = nil
			for i := range ended {
				in.Resume = append(in.Resume, &pb.Resume{OutputIndex: uint32(i), TokenIds: []uint32{300}, Finished: true})
			}
			stream, err := on.infer.Generate(within(t), in)
			require.NoError(t, err)
			var finished []uint32
			for {
				event, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err, "%d ended before", ended)
				if f := event.GetFinished(); f != nil {
					finished = append(finished, f.GetOutputIndex())
				}
			}
			require.ElementsMatch(t, []uint32{0, 1, 2}[ended:], finished)
		}
	}
}

// The tokens of a long answer that a client resumes are computed again, so they count as prompt
// tokens.
func TestResumedTokensCountAsPrompt(t *testing.T) {
	t.Parallel()
	const tokens, brought = 400, 399
	k := keep(t, 1, func(f *keyFile) { f.add("web", nil, auth.Generate) })
	whole := generate(within(t), k.by(t, "web"), ask(long, tokens))
	require.NoError(t, whole.err)
	in := ask(long, tokens)
	in.Resume = []*pb.Resume{{TokenIds: whole.ids[:brought]}}
	rest := generate(within(t), k.by(t, "web"), in)
	require.NoError(t, rest.err)
	require.Equal(t, whole.ids[brought:], rest.ids)
	_, body := page(t, k.metricsAddress, "/metrics")
	require.InDelta(t, 2*whole.started.GetPromptTokens()+2*tokens, monitortest.Series(t, body)["millrace_key_tokens_total key=web"], 0)

	k.ofWorkers.add("short", func(k *auth.Key) { k.Limits.TokensPerMinute = 40 }, auth.Generate)
	k.ofWorkers.write(t)
	direct := pb.NewInferenceServiceClient(dial(t, k.workers[0].address, k.ofWorkers.as(t, "short")))
	require.Eventually(t, func() bool { return generate(within(t), direct, in).err == nil }, hang, 10*time.Millisecond)
	require.Equal(t, byWorker(codes.ResourceExhausted, "TOO_MANY_TOKENS"), faultOf(generate(within(t), direct, ask(long, 1)).err),
		"the resumed tokens are nine minutes' quota")
}
