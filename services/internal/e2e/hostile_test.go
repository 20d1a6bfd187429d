package e2e

import (
	"context"
	"crypto/rand"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// hostileModels returns a models folder with the shipped model and with files that are not models.
func hostileModels(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	model, err := os.ReadFile(filepath.Join(modelsDir, stories+".gguf"))
	require.NoError(t, err)
	noise := make([]byte, 1<<16)
	_, err = rand.Read(noise)
	require.NoError(t, err)
	for name, data := range map[string][]byte{
		stories: model, "spare": model, "truncated": model[:len(model)*2/3], "header": model[:100], "noise": noise, "empty": nil,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".gguf"), data, 0o644))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder.gguf"), 0o755))
	return dir
}

// raw sends bytes as a Generate request.
func raw(ctx context.Context, on *server, data []byte) error {
	stream, err := on.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, pb.InferenceService_Generate_FullMethodName,
		grpc.ForceCodecV2(rpc.FrameCodec()))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&rpc.Frame{Data: mem.BufferSlice{mem.SliceBuffer(data)}}); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	var answer rpc.Frame
	defer answer.Free()
	return stream.RecvMsg(&answer)
}

// rawAsk returns the bytes of a good request, for tests to corrupt.
func rawAsk(t *testing.T) []byte {
	t.Helper()
	data, err := proto.Marshal(ask(stories, 3))
	require.NoError(t, err)
	return data
}

// sent sends a request after a change.
func sent(change func(*pb.GenerateRequest)) func(context.Context, *testing.T, *server) error {
	return func(ctx context.Context, _ *testing.T, on *server) error {
		in := ask(stories, 3)
		change(in)
		return generate(ctx, on.infer, in).err
	}
}

// loaded requests a model to be loaded.
func loaded(in *pb.LoadModelRequest) func(context.Context, *testing.T, *server) error {
	return func(_ context.Context, t *testing.T, on *server) error {
		t.Helper()
		return load(t, on, in).err
	}
}

func byWorker(code codes.Code, reason string) fault { return fault{code, rpc.WorkerDomain, reason} }
func byScheduler(code codes.Code, reason string) fault {
	return fault{code, rpc.SchedulerDomain, reason}
}

// hostile lists requests that cannot be served, with the answers of a worker and of a scheduler,
// which forwards the worker's answer unless it refuses the request itself.
var hostile = map[string]struct {
	send    func(context.Context, *testing.T, *server) error
	direct  fault
	relayed fault
	field   string // in the violations, if there are any
}{
	"an unknown model": {
		send:    sent(func(in *pb.GenerateRequest) { in.Model = "nobody-has-it" }),
		direct:  byWorker(codes.NotFound, "UNKNOWN_MODEL"),
		relayed: byScheduler(codes.NotFound, "UNKNOWN_MODEL"),
	},
	"a model that is known and not loaded": {
		send:    sent(func(in *pb.GenerateRequest) { in.Model = "spare" }),
		direct:  byWorker(codes.FailedPrecondition, "MODEL_NOT_LOADED"),
		relayed: byScheduler(codes.FailedPrecondition, "MODEL_NOT_LOADED"),
	},
	"a path as the model of a request": {
		send:    sent(func(in *pb.GenerateRequest) { in.Model = "../../etc/passwd" }),
		direct:  byWorker(codes.InvalidArgument, "BAD_MODEL_NAME"),
		relayed: byScheduler(codes.InvalidArgument, "INVALID_ARGUMENT"),
	},
	"a path as the model to load": {
		send:    loaded(&pb.LoadModelRequest{Model: "../../etc/passwd"}),
		direct:  byWorker(codes.InvalidArgument, "BAD_MODEL_NAME"),
		relayed: byScheduler(codes.InvalidArgument, "INVALID_ARGUMENT"),
	},
	"no model": {
		send:    sent(func(in *pb.GenerateRequest) { in.Model = "" }),
		direct:  byWorker(codes.InvalidArgument, "INVALID_ARGUMENT"),
		relayed: byScheduler(codes.InvalidArgument, "INVALID_ARGUMENT"),
		field:   "model",
	},
	"temperature NaN": {
		send:    sent(func(in *pb.GenerateRequest) { in.Sampling.Temperature = ptr(float32(math.NaN())) }),
		direct:  byWorker(codes.InvalidArgument, "INVALID_ARGUMENT"),
		relayed: byWorker(codes.InvalidArgument, "INVALID_ARGUMENT"),
		field:   "sampling.temperature",
	},
	"max_tokens -1": {
		send:    sent(func(in *pb.GenerateRequest) { in.Stopping.MaxTokens = ptr(int32(-1)) }),
		direct:  byWorker(codes.InvalidArgument, "INVALID_ARGUMENT"),
		relayed: byWorker(codes.InvalidArgument, "INVALID_ARGUMENT"),
		field:   "stopping.max_tokens",
	},
	"an empty prompt": {
		send:    sent(func(in *pb.GenerateRequest) { in.Input = &pb.GenerateRequest_Prompt{} }),
		direct:  byWorker(codes.InvalidArgument, "INVALID_ARGUMENT"),
		relayed: byWorker(codes.InvalidArgument, "INVALID_ARGUMENT"),
		field:   "prompt",
	},
	"a prompt beyond the context": {
		send: sent(func(in *pb.GenerateRequest) {
			in.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("once upon a time ", 500)}
		}),
		direct:  byWorker(codes.InvalidArgument, "PROMPT_TOO_LONG"),
		relayed: byWorker(codes.InvalidArgument, "PROMPT_TOO_LONG"),
	},
	"a message of 100 MB": {
		send: sent(func(in *pb.GenerateRequest) {
			in.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("x", 100<<20)}
		}),
		direct:  byWorker(codes.ResourceExhausted, "MESSAGE_TOO_LARGE"),
		relayed: byScheduler(codes.ResourceExhausted, "MESSAGE_TOO_LARGE"),
	},
	"text that is not UTF-8": {
		send: func(ctx context.Context, t *testing.T, on *server) error {
			t.Helper()
			data := protowire.AppendTag(rawAsk(t), 4, protowire.BytesType)
			return raw(ctx, on, protowire.AppendBytes(data, []byte{'a', 0xff, 0xfe}))
		},
		direct:  byWorker(codes.InvalidArgument, "MALFORMED_MESSAGE"),
		relayed: byScheduler(codes.InvalidArgument, "MALFORMED_MESSAGE"),
		field:   "prompt",
	},
	"an unknown field": {
		send: func(ctx context.Context, t *testing.T, on *server) error {
			t.Helper()
			data := protowire.AppendTag(rawAsk(t), 1000, protowire.VarintType)
			return raw(ctx, on, protowire.AppendVarint(data, 1))
		},
		direct:  byWorker(codes.InvalidArgument, "UNKNOWN_FIELD"),
		relayed: byScheduler(codes.InvalidArgument, "UNKNOWN_FIELD"),
	},
	"bytes that are no message": {
		send: func(ctx context.Context, t *testing.T, on *server) error {
			t.Helper()
			return raw(ctx, on, []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 'x'})
		},
		direct:  byWorker(codes.InvalidArgument, "MALFORMED_MESSAGE"),
		relayed: byScheduler(codes.InvalidArgument, "MALFORMED_MESSAGE"),
	},
	"a constraint that is malformed": {
		send: sent(func(in *pb.GenerateRequest) {
			in.Guided, in.Stopping.IgnoreEos = &pb.Guided{Constraint: &pb.Guided_Regex{Regex: "(a+"}}, nil
		}),
		direct:  byWorker(codes.InvalidArgument, "INVALID_GRAMMAR"),
		relayed: byWorker(codes.InvalidArgument, "INVALID_GRAMMAR"),
	},
	"a truncated model": {
		send:    loaded(&pb.LoadModelRequest{Model: "truncated"}),
		direct:  byWorker(codes.FailedPrecondition, "INVALID_MODEL_FILE"),
		relayed: byWorker(codes.FailedPrecondition, "INVALID_MODEL_FILE"),
	},
	"a model cut off in its header": {
		send:    loaded(&pb.LoadModelRequest{Model: "header"}),
		direct:  byWorker(codes.FailedPrecondition, "INVALID_MODEL_FILE"),
		relayed: byWorker(codes.FailedPrecondition, "INVALID_MODEL_FILE"),
	},
	"a random file": {
		send:    loaded(&pb.LoadModelRequest{Model: "noise"}),
		direct:  byWorker(codes.FailedPrecondition, "INVALID_MODEL_FILE"),
		relayed: byWorker(codes.FailedPrecondition, "INVALID_MODEL_FILE"),
	},
	"an empty file": {
		send:    loaded(&pb.LoadModelRequest{Model: "empty"}),
		direct:  byWorker(codes.FailedPrecondition, "INVALID_MODEL_FILE"),
		relayed: byWorker(codes.FailedPrecondition, "INVALID_MODEL_FILE"),
	},
	"a directory": {
		send:    loaded(&pb.LoadModelRequest{Model: "folder"}),
		direct:  byWorker(codes.FailedPrecondition, "INVALID_MODEL_FILE"),
		relayed: byScheduler(codes.NotFound, "UNKNOWN_MODEL"),
	},
	"a model too large with the cache wanted": {
		send:    loaded(&pb.LoadModelRequest{Model: "spare", KvTokens: ptr(uint64(1 << 31))}),
		direct:  byWorker(codes.ResourceExhausted, "MODEL_DOES_NOT_FIT"),
		relayed: byWorker(codes.ResourceExhausted, "MODEL_DOES_NOT_FIT"),
	},
	"a method that there is not": {
		send: func(ctx context.Context, _ *testing.T, on *server) error {
			return on.conn.Invoke(ctx, "/millrace.v1.InferenceService/Abort", &pb.ListModelsRequest{}, &pb.ListModelsResponse{})
		},
		direct:  byWorker(codes.Unimplemented, "NOT_BUILT"),
		relayed: byScheduler(codes.Unimplemented, "NOT_BUILT"),
	},
}

func TestHostileRequestsAreRefused(t *testing.T) {
	// Each gets its precise error, and the servers continue to serve.
	t.Parallel()
	models := hostileModels(t)
	w := startWorkerOf(t, models, "w1", "--device", "cpu", "--load", stories)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, stories, 1)
	for name, h := range hostile {
		t.Run(name, func(t *testing.T) {
			for on, want := range map[*server]fault{w: h.direct, s: h.relayed} {
				err := h.send(within(t), t, on)
				require.Equal(t, want, faultOf(err), "%s: %v", on.name, err)
				if h.field != "" {
					require.NotEmpty(t, rpc.Violations(err), "%s: %v", on.name, err)
					require.Equal(t, h.field, rpc.Violations(err)[0].Field)
				}
				if want.reason == "MODEL_DOES_NOT_FIT" {
					require.NotEmpty(t, rpc.Info(err).GetMetadata()["needed_bytes"], "the numbers come along")
					require.NotEmpty(t, rpc.Info(err).GetMetadata()["free_bytes"])
				}
				require.NotContains(t, status.Convert(err).Message(), models, "callers learn no paths")
				good(t, on, stories)
			}
		})
	}
	for _, on := range []*server{w, s} {
		var list *pb.ListModelsResponse
		require.Eventually(t, func() bool { // a scheduler learns it from its worker's reports
			var err error
			list, err = on.models.ListModels(within(t), &pb.ListModelsRequest{})
			problems := 0
			for _, m := range list.GetModels() {
				if m.GetProblem() != "" {
					problems++
				}
			}
			return err == nil && problems == 4
		}, hang, 10*time.Millisecond, "what cannot be loaded is listed with the reason")
		require.NotContains(t, list.String(), models, "callers learn no paths")
	}
	require.True(t, w.alive() && s.alive())
	w.untilIdle(t)
}

func TestAWorkerThatIsNotThereIsUnavailable(t *testing.T) {
	t.Parallel()
	s := startScheduler(t, []*server{{address: freeAddress(t)}, {address: freeAddress(t)}})
	for range 2 {
		err := generate(within(t), s.infer, ask(stories, 3)).err
		require.Equal(t, noWorker, faultOf(err), "%v", err)
		require.Positive(t, rpc.RetryAfter(err), "the error says when to retry")
		require.Equal(t, "0", rpc.Info(err).GetMetadata()["connected"])
	}
	require.Equal(t, noWorker, faultOf(load(t, s, &pb.LoadModelRequest{Model: stories}).err))
	_, err := s.models.ListModels(within(t), &pb.ListModelsRequest{})
	require.Equal(t, noWorker, faultOf(err))
	_, err = s.models.UnloadModel(within(t), &pb.UnloadModelRequest{Model: stories})
	require.Equal(t, noWorker, faultOf(err))
	_, err = s.infer.Tokenize(within(t), &pb.TokenizeRequest{Model: stories, Input: &pb.TokenizeRequest_Text{Text: "a"}})
	require.Equal(t, noWorker, faultOf(err))
}
