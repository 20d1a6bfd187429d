package server

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/model"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// The prompt has 4 tokens, and the context of the model 512.
func TestStartedReportsMaxTokens(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	for name, tc := range map[string]struct {
		max, resumed int32 // 0: unset
		context      uint32
		want         uint32
	}{
		"what the context holds":             {0, 0, 0, 508},
		"max_tokens":                         {5, 0, 0, 5},
		"max_tokens beyond the context":      {5000, 0, 0, 508},
		"the request's context":              {0, 0, 24, 20},
		"a longer context":                   {7, 0, 4096, 7},
		"max_tokens and the request's":       {5, 0, 24, 5},
		"a resumed stream counts its tokens": {0, 3, 24, 20},
	} {
		t.Run(name, func(t *testing.T) {
			in := prompted("", 1)
			in.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{1, 400, 401, 402}}}
			in.Stopping = &pb.Stopping{IgnoreEos: ptr(true)}
			if tc.max > 0 {
				in.Stopping.MaxTokens = &tc.max
			}
			if tc.context > 0 {
				in.ContextLength = &tc.context
			}
			if tc.resumed > 0 {
				in.Resume = []*pb.Resume{{TokenIds: []uint32{300, 301, 302}}}
			}
			got := w.generate(t.Context(), t, in)
			require.NoError(t, got.err)
			require.NotNil(t, got.started.MaxTokens)
			require.Equal(t, tc.want, got.started.GetMaxTokens())
			require.Len(t, got.ids[0], int(tc.want)-int(tc.resumed))
		})
	}
}

func TestBadGenerateRequestsAreRefused(t *testing.T) {
	// Each bad field is named in the status, and the worker serves on.
	w := start(t, simDevice(t, sim.Options{}), "stories")
	long := make([]uint32, 513)
	for name, tc := range map[string]struct {
		change func(*pb.GenerateRequest)
		code   codes.Code
		reason string
		field  string
	}{
		"temperature NaN": {func(r *pb.GenerateRequest) { r.Sampling.Temperature = ptr(float32(math.NaN())) },
			codes.InvalidArgument, reason.InvalidArgument, "sampling.temperature"},
		"max_tokens -1": {func(r *pb.GenerateRequest) { r.Stopping.MaxTokens = ptr(int32(-1)) },
			codes.InvalidArgument, reason.InvalidArgument, "stopping.max_tokens"},
		"max_tokens 0 with nothing to report": {func(r *pb.GenerateRequest) { r.Stopping.MaxTokens = ptr(int32(0)) },
			codes.InvalidArgument, reason.InvalidArgument, "stopping.max_tokens"},
		"an empty prompt": {func(r *pb.GenerateRequest) { r.Input = &pb.GenerateRequest_Prompt{} },
			codes.InvalidArgument, reason.InvalidArgument, "prompt"},
		"no input": {func(r *pb.GenerateRequest) { r.Input = nil }, codes.InvalidArgument, reason.InvalidArgument, "input"},
		"a token id beyond the vocabulary": {func(r *pb.GenerateRequest) {
			r.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{1, 2048}}}
		}, codes.InvalidArgument, reason.InvalidArgument, "token_ids.ids[1]"},
		"a prompt beyond the context": {func(r *pb.GenerateRequest) {
			r.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: long}}
		}, codes.InvalidArgument, reason.PromptTooLong, ""},
		"a prompt that fills the context": {func(r *pb.GenerateRequest) {
			r.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: long[:512]}}
		}, codes.InvalidArgument, reason.PromptTooLong, ""},
		"a text whose tokens could never fit": {func(r *pb.GenerateRequest) {
			r.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("a ", 5<<20)}
		}, codes.InvalidArgument, reason.PromptTooLong, ""},
		"a stream beyond the context": {func(r *pb.GenerateRequest) {
			r.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: long}}
			r.ContextLength = ptr(uint32(600))
		}, codes.FailedPrecondition, reason.ContextTooShort, ""},
		"a context of 0": {func(r *pb.GenerateRequest) { r.ContextLength = ptr(uint32(0)) },
			codes.InvalidArgument, reason.InvalidArgument, "context_length"},
		"a context beyond every number of tokens": {func(r *pb.GenerateRequest) { r.ContextLength = ptr(uint32(1 << 31)) },
			codes.InvalidArgument, reason.InvalidArgument, "context_length"},
		"an unknown model": {func(r *pb.GenerateRequest) { r.Model = "nobody" }, codes.NotFound, reason.UnknownModel, ""},
		"a model name that climbs out": {func(r *pb.GenerateRequest) { r.Model = "../../etc/passwd" },
			codes.InvalidArgument, reason.BadModelName, ""},
		"a stop string where there is no text": {func(r *pb.GenerateRequest) {
			r.Stopping.Stop, r.Response = []string{"a"}, &pb.ResponseOptions{TokenIdsOnly: ptr(true)}
		}, codes.InvalidArgument, reason.InvalidArgument, "stopping.stop"},
		"a chat without a template": {chatting(&pb.Chat{Messages: []*pb.ChatMessage{{Role: "user", Content: "x"}}}),
			codes.FailedPrecondition, reason.NoChatTemplate, ""},
		"a chat without messages": {chatting(&pb.Chat{}), codes.InvalidArgument, reason.InvalidArgument, "chat.messages"},
	} {
		t.Run(name, func(t *testing.T) {
			in := prompted("Once upon a time", 5)
			tc.change(in)
			got := w.generate(t.Context(), t, in)
			require.Equal(t, tc.code, status.Code(got.err), "%v", got.err)
			require.Equal(t, tc.reason, rpc.Reason(got.err))
			if tc.reason != "" {
				require.Equal(t, rpc.WorkerDomain, rpc.Domain(got.err))
			}
			if tc.field != "" {
				require.Equal(t, []string{tc.field}, violated(got.err))
			}
			require.Empty(t, got.events)
			good := w.generate(t.Context(), t, prompted("Once upon a time", 5))
			require.NoError(t, good.err)
			require.Len(t, good.ids[0], 5)
		})
	}
}

func TestManyViolationsGiveAShortStatus(t *testing.T) {
	// Tens of thousands of wrong values are refused at once.
	w := start(t, simDevice(t, sim.Options{}), "stories")
	in := prompted("Once upon a time", 5)
	in.Input = &pb.GenerateRequest_Chat{Chat: &pb.Chat{}}
	for range 60_000 {
		in.GetChat().Messages = append(in.GetChat().Messages, &pb.ChatMessage{Content: "x"})
	}
	got := w.generate(t.Context(), t, in)
	require.Equal(t, codes.InvalidArgument, status.Code(got.err), "%.200v", got.err)
	require.Len(t, violated(got.err), maxViolations+1)
	require.Less(t, len(status.Convert(got.err).Message()), 4<<10)
}

func TestBadLoadsAreRefusedPrecisely(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{Memory: 8 << 20}))
	good, err := os.ReadFile(filepath.Join(w.dir, "stories.gguf"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "truncated.gguf"), good[:1<<20], 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "random.gguf"), []byte(strings.Repeat("noise", 1000)), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(w.dir, "directory.gguf"), 0o755))
	for name, tc := range map[string]struct {
		in     *pb.LoadModelRequest
		code   codes.Code
		reason string
	}{
		"a truncated model":   {&pb.LoadModelRequest{Model: "truncated"}, codes.FailedPrecondition, reason.InvalidModelFile},
		"a random file":       {&pb.LoadModelRequest{Model: "random"}, codes.FailedPrecondition, reason.InvalidModelFile},
		"a directory":         {&pb.LoadModelRequest{Model: "directory"}, codes.FailedPrecondition, reason.InvalidModelFile},
		"a climbing name":     {&pb.LoadModelRequest{Model: "../../etc/passwd"}, codes.InvalidArgument, reason.BadModelName},
		"an unknown model":    {&pb.LoadModelRequest{Model: "nobody"}, codes.NotFound, reason.UnknownModel},
		"no name":             {&pb.LoadModelRequest{}, codes.InvalidArgument, reason.InvalidArgument},
		"a model too large":   {&pb.LoadModelRequest{Model: "stories", KvTokens: ptr(uint64(1 << 20))}, codes.ResourceExhausted, reason.ModelDoesNotFit},
		"a cache of nothing":  {&pb.LoadModelRequest{Model: "stories", KvTokens: ptr(uint64(0))}, codes.InvalidArgument, reason.InvalidArgument},
		"copies on one":       {&pb.LoadModelRequest{Model: "stories", Replicas: ptr(uint32(2))}, codes.InvalidArgument, reason.InvalidArgument},
		"a type that is none": {&pb.LoadModelRequest{Model: "stories", KvType: ptr(pb.KvType(9))}, codes.InvalidArgument, reason.InvalidArgument},
		"a digest that is none": {&pb.LoadModelRequest{Model: "stories", ExpectModelDigest: ptr("abc")},
			codes.InvalidArgument, reason.InvalidArgument},
		"another digest": {&pb.LoadModelRequest{Model: "stories", ExpectModelDigest: ptr(strings.Repeat("0", 64))},
			codes.FailedPrecondition, reason.DigestMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := w.models.LoadModel(t.Context(), tc.in)
			require.NoError(t, err)
			for err == nil {
				_, err = stream.Recv()
			}
			require.Equal(t, tc.code, status.Code(err), "%v", err)
			require.Equal(t, tc.reason, rpc.Reason(err), "%v", err)
			if tc.reason == reason.ModelDoesNotFit {
				require.NotEmpty(t, rpc.Info(err).GetMetadata()["needed_bytes"])
				require.NotEmpty(t, rpc.Info(err).GetMetadata()["free_bytes"])
			}
		})
	}
	_, err = w.models.UnloadModel(t.Context(), &pb.UnloadModelRequest{Model: "stories"})
	require.Equal(t, codes.NotFound, status.Code(err))
}

func TestEightBitCacheIsRefusedOnACPU(t *testing.T) {
	w := start(t, cpuDevice(t))
	stream, err := w.models.LoadModel(t.Context(), &pb.LoadModelRequest{Model: "stories", KvType: pb.KvType_KV_TYPE_F8.Enum()})
	for err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, codes.Unimplemented, status.Code(err), "%v", err)
	require.Equal(t, reason.NotOnThisDevice, rpc.Reason(err))
}

// lateThreads is the number of threads that a trailer passes through. A busy machine may delay
// each.
const lateThreads = 4

func TestCallAtItsDeadlineHasItsUsage(t *testing.T) {
	// The steps are slow, so that sending messages does not use up the machine.
	w := start(t, simDevice(t, sim.Options{StepTime: 100 * time.Millisecond}), "stories")
	const calls = 200
	for arrived, round := 0, 0; arrived < calls; round++ {
		require.Less(t, round, 10, "%d of %d trailers arrived", arrived, calls)
		stalled := rpctest.WatchStalls()
		now := usagesAtDeadlines(t, w, calls)
		longest := stalled()
		arrived += now
		if now == calls {
			break
		}
		// A trailer passes through several threads. If one of them was late by a part of the
		// margin, the others may have been late too, and no code could have met those deadlines.
		require.Greater(t, longest, deadlineMargin/lateThreads, "%d of %d trailers arrived", now, calls)
		t.Logf("%d of %d trailers arrived, and the machine stood still for %v", now, calls, longest)
	}
	require.Eventually(t, func() bool { return w.manager.Loaded()[0].Steps.Running == 0 }, hang, time.Millisecond)
	steps := w.manager.Loaded()[0].Steps
	require.Equal(t, steps.TotalBlocks, steps.FreeBlocks)
	require.Zero(t, steps.StepsAfterCancel)
}

// usagesAtDeadlines makes calls that reach their deadlines, and counts the trailers with a usage.
func usagesAtDeadlines(t *testing.T, w *worker, calls int) (arrived int) {
	t.Helper()
	type end struct {
		code  codes.Code
		usage bool
	}
	ends := make(chan end, calls)
	for i := range calls {
		// One after another: the worker's deadline starts when the call arrives, the client's when
		// it is sent.
		time.Sleep(5 * time.Millisecond)
		go func() {
			// Deadlines of five seconds and more, ten milliseconds apart.
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second+time.Duration(i)*10*time.Millisecond)
			defer cancel()
			stream, err := w.infer.Generate(ctx, prompted("Once upon a time", 480))
			if err != nil { // it could not leave before its deadline
				ends <- end{code: status.Code(err)}
				return
			}
			for err == nil {
				_, err = stream.Recv()
			}
			ends <- end{status.Code(err), len(stream.Trailer().Get(rpc.UsageTrailer)) == 1}
		}()
	}
	for range calls {
		e := <-ends
		require.Equal(t, codes.DeadlineExceeded, e.code)
		if e.usage {
			arrived++
		}
	}
	return arrived
}

func TestDisconnectedClientFreesItsBlocks(t *testing.T) {
	rpctest.NoLeaks(t)
	w := start(t, simDevice(t, sim.Options{DecodeTime: time.Millisecond}), "stories")
	for range 20 {
		ctx, vanish := context.WithCancel(t.Context())
		stream, err := w.infer.Generate(ctx, prompted("Once upon a time", 480))
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		vanish()
	}
	require.Eventually(t, func() bool {
		s := w.manager.Loaded()[0].Steps
		return s.Running == 0 && s.Waiting == 0 && s.FreeBlocks == s.TotalBlocks
	}, hang, time.Millisecond)
	require.Zero(t, w.manager.Loaded()[0].Steps.StepsAfterCancel)
}

func TestSlowConsumersLevelOff(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}))
	const clients = 50 // package e2e takes 500, in processes of their own
	// Every call has a slot. With fewer, calls would be preempted until the buffers of each are
	// full.
	_, _, err := w.manager.Load(t.Context(), "stories", model.Options{MaxSequences: 64, KVTokens: 1 << 16}, nil)
	require.NoError(t, err)
	for range clients {
		in := prompted("Once upon a time", 480)
		in.Response = &pb.ResponseOptions{OutputCandidates: ptr(int32(64))}
		_, err := w.infer.Generate(t.Context(), in)
		require.NoError(t, err)
	}
	last := uint64(math.MaxUint64)
	require.Eventually(t, func() bool {
		now := w.manager.Loaded()[0].Steps.GeneratedTokens
		defer func() { last = now }()
		return now > 0 && now == last
	}, hang, time.Second, "tokens are generated on and on for clients that do not read")
	require.Less(t, last, uint64(clients*480))
}

func TestModelWithNaNsIsAnInvalidFile(t *testing.T) {
	w := start(t, cpuDevice(t))
	f, err := gguf.Open(filepath.Join(w.dir, "stories.gguf"))
	require.NoError(t, err)
	norm, ok := f.Tensor("output_norm.weight")
	require.True(t, ok)
	require.NoError(t, f.Close())
	data, err := os.ReadFile(filepath.Join(w.dir, "stories.gguf"))
	require.NoError(t, err)
	binary.LittleEndian.PutUint32(data[norm.Offset:], math.Float32bits(float32(math.NaN())))
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "nan.gguf"), data, 0o644))
	stream, err := w.models.LoadModel(t.Context(), &pb.LoadModelRequest{Model: "nan"})
	for err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.Equal(t, reason.InvalidModelFile, rpc.Reason(err))
}

func TestTextsBeyondTheProcessorsWait(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}), "stories")
	free := w.fillSlots(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	got := w.generate(ctx, t, prompted("Once upon a time", 5))
	require.Equal(t, codes.DeadlineExceeded, status.Code(got.err))
	free()
	require.NoError(t, w.generate(t.Context(), t, prompted("Once upon a time", 5)).err)
}
