package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// delivered returns the part of a stream that a client has if it broke after k tokens of an output,
// and the bytes of their text.
func delivered(o outcome, output uint32, k int, rest string) *pb.Resume {
	return &pb.Resume{
		OutputIndex: output, TokenIds: o.ids[output][:k], TextBytes: ptr(uint64(len(o.text[output]) - len(rest))),
	}
}

func TestResumedStreamIsTheRestOfTheWhole(t *testing.T) {
	// The stream breaks after every token in turn.
	w := start(t, cpuDevice(t), "stories")
	in := prompted("Once upon a time", 41)
	in.Sampling.RepetitionPenalty, in.Sampling.MinP = ptr(float32(1.2)), ptr(float32(0.02))
	in.Stopping.Stop = []string{"never to be seen"}
	in.Response = &pb.ResponseOptions{OutputLogprobs: ptr(true), OutputCandidates: ptr(int32(2)), EchoPrompt: ptr(true)}
	whole := w.generate(t.Context(), t, in)
	require.NoError(t, whole.err)
	require.Len(t, whole.ids[0], 41)
	for k := range 42 {
		again := proto.Clone(in).(*pb.GenerateRequest)
		again.Resume = []*pb.Resume{{TokenIds: whole.ids[0][:k]}}
		got := w.generate(t.Context(), t, again)
		require.NoError(t, got.err, "after %d", k)
		require.Equal(t, []uint32{uint32(k)}, got.started.GetResumedTokens())
		require.Equal(t, whole.started.GetPromptDigest(), got.started.GetPromptDigest())
		require.Equal(t, whole.ids[0][k:], append([]uint32{}, got.ids[0]...), "after %d", k)
		require.True(t, strings.HasSuffix(whole.text[0], got.text[0]))
		require.Equal(t, bitsOf(whole.logprobs[k:]), bitsOf(got.logprobs), "no logprob of a resumed token, and the same bits of others")
		require.Equal(t, uint32(41), got.finished[0].GetUsage().GetCompletionTokens(), "usage is whole")
		require.Equal(t, pb.FinishReason_FINISH_REASON_LENGTH, got.finished[0].GetReason())
		for _, e := range got.events {
			require.Nil(t, e.GetPrompt(), "nothing of the prompt comes twice")
		}
		// Again with the bytes of text, which must match.
		again.Resume[0] = delivered(whole, 0, k, got.text[0])
		require.NoError(t, w.generate(t.Context(), t, again).err)
		*again.Resume[0].TextBytes++
		refused := w.generate(t.Context(), t, again)
		require.Equal(t, codes.FailedPrecondition, status.Code(refused.err))
		require.Equal(t, reason.ResumeMismatch, rpc.Reason(refused.err))
		require.Empty(t, refused.events)
	}
}

func bitsOf(logprobs []float32) []uint32 { return bits(outcome{logprobs: logprobs}) }

func TestEachOutputResumesWhereItBroke(t *testing.T) {
	w := start(t, cpuDevice(t), "stories")
	in := prompted("The little dog", 20)
	in.Sampling.NumSequences = ptr(int32(4))
	whole := w.generate(t.Context(), t, in)
	require.NoError(t, whole.err)
	in.Resume = []*pb.Resume{
		{OutputIndex: 2, TokenIds: whole.ids[2][:7]},
		{OutputIndex: 0, TokenIds: whole.ids[0], Finished: true},
		{OutputIndex: 3, TokenIds: whole.ids[3], TextBytes: ptr(uint64(len(whole.text[3])))},
	}
	got := w.generate(t.Context(), t, in)
	require.NoError(t, got.err)
	require.Equal(t, []uint32{20, 0, 7, 20}, got.started.GetResumedTokens())
	require.Equal(t, map[uint32][]uint32{1: whole.ids[1], 2: whole.ids[2][7:]}, got.ids)
	require.Equal(t, whole.text[1], got.text[1])
	require.Len(t, got.finished, 3, "a finished output is not finished again")
	require.Nil(t, got.finished[0])
	for _, f := range got.finished {
		require.Equal(t, uint32(20), f.GetUsage().GetCompletionTokens())
	}
}

func TestFinishedStreamResumesWithoutAStep(t *testing.T) {
	// Nothing is computed for a stream whose outputs are all finished.
	submitted := 0
	w := start(t, enginetest.Intercept(cpuDevice(t), enginetest.Hooks{
		Submit: func(*engine.Step) error { submitted++; return nil },
	}), "stories")
	in := prompted("Once upon a time", 30)
	whole := w.generate(t.Context(), t, in)
	require.NoError(t, whole.err)
	ids, before := whole.ids[0], submitted
	for name, tc := range map[string]struct {
		change func(*pb.GenerateRequest)
		want   *pb.Finished
	}{
		"all of max_tokens are there": {func(r *pb.GenerateRequest) { r.Stopping.MaxTokens = ptr(int32(9)) },
			&pb.Finished{Reason: pb.FinishReason_FINISH_REASON_LENGTH}},
		"the last token is a stop token": {func(r *pb.GenerateRequest) { r.Stopping.StopTokenIds = ids[8:9] },
			&pb.Finished{Reason: pb.FinishReason_FINISH_REASON_STOP, Matched: &pb.Finished_StopTokenId{StopTokenId: ids[8]}}},
		"its end was sent, too": {func(r *pb.GenerateRequest) { r.Resume[0].Finished = true }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			require.NotContains(t, ids[:8], ids[8], "choose another seed")
			again := proto.Clone(in).(*pb.GenerateRequest)
			again.Resume = []*pb.Resume{{TokenIds: ids[:9]}}
			tc.change(again)
			got := w.generate(t.Context(), t, again)
			require.NoError(t, got.err)
			require.Equal(t, []uint32{9}, got.started.GetResumedTokens())
			require.Empty(t, got.ids)
			require.Equal(t, before, submitted)
			if tc.want == nil {
				require.Empty(t, got.finished)
				return
			}
			end := got.finished[0]
			require.Equal(t, uint32(9), end.GetUsage().GetCompletionTokens())
			require.Equal(t, tc.want.GetReason(), end.GetReason())
			require.Equal(t, tc.want.GetMatched(), end.GetMatched())
		})
	}
}

func TestBadResumeIsRefusedByItsField(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	for name, tc := range map[string]struct {
		change func(*pb.GenerateRequest)
		field  string
	}{
		"no seed":                        {func(r *pb.GenerateRequest) { r.Sampling.Seed = nil }, "sampling.seed"},
		"no sampling":                    {func(r *pb.GenerateRequest) { r.Sampling = nil }, "sampling.seed"},
		"an output beyond the last":      {func(r *pb.GenerateRequest) { r.Resume[0].OutputIndex = 1 }, "resume[0].output_index"},
		"an output twice":                {func(r *pb.GenerateRequest) { r.Resume = append(r.Resume, &pb.Resume{}) }, "resume[1].output_index"},
		"a token beyond the vocabulary":  {func(r *pb.GenerateRequest) { r.Resume[0].TokenIds[2] = 2048 }, "resume[0].token_ids[2]"},
		"more than max_tokens":           {func(r *pb.GenerateRequest) { r.Stopping.MaxTokens = ptr(int32(2)) }, "resume[0].token_ids[2]"},
		"more than the context holds":    {func(r *pb.GenerateRequest) { r.Resume[0].TokenIds = make([]uint32, 600) }, "resume[0].token_ids[507]"},
		"tokens behind a stop token":     {func(r *pb.GenerateRequest) { r.Stopping.StopTokenIds = []uint32{301} }, "resume[0].token_ids[2]"},
		"a finished one beyond the most": {func(r *pb.GenerateRequest) { r.Resume[0].Finished, r.Stopping.MaxTokens = true, ptr(int32(1)) }, "resume[0].token_ids[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			in := prompted("Once upon a time", 5)
			in.Stopping.MaxTokens = nil
			in.Resume = []*pb.Resume{{TokenIds: []uint32{300, 301, 302}}}
			tc.change(in)
			got := w.generate(t.Context(), t, in)
			require.Equal(t, codes.InvalidArgument, status.Code(got.err), "%v", got.err)
			want := reason.InvalidArgument
			if strings.Contains(name, "more than") || strings.Contains(name, "beyond the most") {
				want = reason.ResumeTooLong
			}
			require.Equal(t, want, rpc.Reason(got.err))
			require.Equal(t, []string{tc.field}, violated(got.err), "%v", got.err)
			require.Empty(t, got.events)
		})
	}
}

func TestResumeMismatchHasBothByteCounts(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	in := prompted("Once upon a time", 5)
	in.Resume = []*pb.Resume{{TokenIds: []uint32{300, 301}, TextBytes: ptr(uint64(999))}}
	got := w.generate(t.Context(), t, in)
	require.Equal(t, reason.ResumeMismatch, rpc.Reason(got.err))
	text, err := w.infer.Detokenize(t.Context(), &pb.DetokenizeRequest{Model: "stories", TokenIds: []uint32{300, 301}})
	require.NoError(t, err)
	require.NotEmpty(t, text.GetText())
	numbers := rpc.Info(got.err).GetMetadata()
	require.Equal(t, "999", numbers["text_bytes"])
	require.Equal(t, "2", numbers["resumed_tokens"])
	require.Equal(t, "0", numbers["output_index"])
	require.NotEqual(t, "0", numbers["expected_text_bytes"])
}

func TestUsageAtDeadlineIncludesResumedTokens(t *testing.T) {
	w, _ := braked(t, "stories")
	for deadline := 2 * time.Second; ; deadline *= 2 {
		require.Less(t, deadline, hang)
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		in := prompted("Once upon a time", 480)
		in.Resume = []*pb.Resume{{TokenIds: []uint32{300, 301, 302}}}
		stalled := rpctest.WatchStalls()
		stream, err := w.infer.Generate(ctx, in)
		got, trailer := outcome{err: err}, []string(nil)
		if err == nil { // it left before its deadline
			got = receive(t, stream)
			trailer = stream.Trailer().Get(rpc.UsageTrailer)
		}
		longest := stalled()
		cancel()
		require.Equal(t, codes.DeadlineExceeded, status.Code(got.err))
		if len(trailer) == 0 { // the machine stood still while it was on its way, or before there was any use
			require.Greater(t, longest, min(deadlineMargin, deadline/20)/lateThreads)
			continue
		}
		require.Equal(t, reason.DeadlineExceeded, rpc.Reason(got.err), "%v", got.err)
		require.Len(t, trailer, 1)
		usage := &pb.Usage{}
		require.NoError(t, proto.Unmarshal([]byte(trailer[0]), usage))
		require.GreaterOrEqual(t, int(usage.GetCompletionTokens()), 3+len(got.ids[0]))
		require.Less(t, usage.GetCompletionTokens(), uint32(480))
		return
	}
}
