package cli_test

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/millrace/internal/cli"
	"github.com/millrace/millrace/services/millrace/internal/config"
	"github.com/millrace/millrace/services/millrace/internal/tty/ttytest"
)

// hang guards tests that wait for something to be shown.
const hang = 3 * time.Minute

// fake is a server whose methods are fields; a nil one is UNIMPLEMENTED, except that it lists one loaded model "m".
type fake struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer
	generate   func(*pb.GenerateRequest, grpc.ServerStreamingServer[pb.GenerateResponse]) error
	tokenize   func(context.Context, *pb.TokenizeRequest) (*pb.TokenizeResponse, error)
	detokenize func(context.Context, *pb.DetokenizeRequest) (*pb.DetokenizeResponse, error)
	embed      func(context.Context, *pb.EmbedRequest) (*pb.EmbedResponse, error)
	rerank     func(context.Context, *pb.RerankRequest) (*pb.RerankResponse, error)
	load       func(*pb.LoadModelRequest, grpc.ServerStreamingServer[pb.LoadModelResponse]) error
	unload     func(context.Context, *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error)
	models     []*pb.ModelInfo
	watch      func(*pb.WatchFleetRequest, grpc.ServerStreamingServer[pb.WatchFleetResponse]) error
	drain      func(id string, drains bool) error // makes it a scheduler, as watch does
	within     time.Duration                      // of the last drain that had a bound
}

func (f *fake) Generate(in *pb.GenerateRequest, s grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	if f.generate == nil {
		return f.UnimplementedInferenceServiceServer.Generate(in, s)
	}
	return f.generate(in, s)
}

func (f *fake) Tokenize(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	if f.tokenize == nil {
		return f.UnimplementedInferenceServiceServer.Tokenize(ctx, in)
	}
	return f.tokenize(ctx, in)
}

func (f *fake) Detokenize(ctx context.Context, in *pb.DetokenizeRequest) (*pb.DetokenizeResponse, error) {
	if f.detokenize == nil {
		return f.UnimplementedInferenceServiceServer.Detokenize(ctx, in)
	}
	return f.detokenize(ctx, in)
}

func (f *fake) Embed(ctx context.Context, in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
	if f.embed == nil {
		return f.UnimplementedInferenceServiceServer.Embed(ctx, in)
	}
	return f.embed(ctx, in)
}

func (f *fake) Rerank(ctx context.Context, in *pb.RerankRequest) (*pb.RerankResponse, error) {
	if f.rerank == nil {
		return f.UnimplementedInferenceServiceServer.Rerank(ctx, in)
	}
	return f.rerank(ctx, in)
}

func (f *fake) LoadModel(in *pb.LoadModelRequest, s grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
	if f.load == nil {
		return f.UnimplementedModelServiceServer.LoadModel(in, s)
	}
	return f.load(in, s)
}

func (f *fake) UnloadModel(ctx context.Context, in *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
	if f.unload == nil {
		return f.UnimplementedModelServiceServer.UnloadModel(ctx, in)
	}
	return f.unload(ctx, in)
}

func (f *fake) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	return &pb.ListModelsResponse{Models: f.models}, nil
}

// fleet serves FleetService, which single workers do not.
type fleet struct {
	pb.UnimplementedFleetServiceServer
	fake *fake
}

func (f fleet) WatchFleet(in *pb.WatchFleetRequest, s grpc.ServerStreamingServer[pb.WatchFleetResponse]) error {
	return f.fake.watch(in, s)
}

func (f fleet) DrainWorker(_ context.Context, in *pb.DrainWorkerRequest) (*pb.DrainWorkerResponse, error) {
	if in.GetTimeout() != nil {
		f.fake.within = in.GetTimeout().AsDuration()
	}
	return &pb.DrainWorkerResponse{}, f.fake.drain(in.GetWorkerId(), true)
}

func (f fleet) UndrainWorker(_ context.Context, in *pb.UndrainWorkerRequest) (*pb.UndrainWorkerResponse, error) {
	return &pb.UndrainWorkerResponse{}, f.fake.drain(in.GetWorkerId(), false)
}

// model is a loaded model as the server lists it.
func model(name string) *pb.ModelInfo {
	return &pb.ModelInfo{
		Name: name, State: pb.ModelState_MODEL_STATE_READY, FileBytes: 5 << 20, ModelDigest: strings.Repeat("ab", 32),
		WorkerIds: []string{"w1"}, Loaded: &pb.LoadResult{ContextLength: 64},
		Capabilities: &pb.ModelCapabilities{Architecture: "llama", Quantisation: "Q8_0", ContextLength: 512, Parameters: 5_250_000,
			Tokenizer: true, ChatTemplate: true, BosTokenId: proto.Uint32(1000), WeightTypes: []string{"Q8_0", "Q6_K"}, SlidingWindow: 32},
	}
}

// rig is a fake server and what one client gets.
type rig struct {
	target  string
	signals chan os.Signal
	in      io.Reader
	out     buffer
	err     buffer
	release int
	colours bool
}

// serve starts the fake over loopback, since the client dials by itself.
func serve(t *testing.T, f *fake) *rig {
	t.Helper()
	rpctest.NoLeaks(t)
	if f.models == nil {
		f.models = []*pb.ModelInfo{model("m")}
	}
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, rpctest.Logger(t))
	pb.RegisterInferenceServiceServer(server, f)
	pb.RegisterModelServiceServer(server, f)
	if f.watch != nil || f.drain != nil {
		pb.RegisterFleetServiceServer(server, fleet{fake: f})
	}
	lis, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	rpctest.Serve(t, server, lis)
	return &rig{target: lis.Addr().String(), signals: make(chan os.Signal, 4), in: strings.NewReader("")}
}

// run executes one command line and gives its exit code.
func (r *rig) run(t *testing.T, args ...string) int {
	t.Helper()
	return r.on(t, r.in, &r.out, &r.err, args...)
}

// on is run with streams of its own.
func (r *rig) on(t *testing.T, in io.Reader, out, err io.Writer, args ...string) int {
	t.Helper()
	return r.start(in, out, err, args...)(t)
}

// start executes one command line; the function waits for its exit code.
func (r *rig) start(in io.Reader, out, err io.Writer, args ...string) (wait func(*testing.T) int) {
	done := make(chan int, 1)
	go func() {
		done <- cli.Run(context.Background(), &cli.System{
			In: in, Out: out, Err: err, Signals: r.signals, Release: func() { r.release++ }, Config: config.Config{Target: r.target, Plain: !r.colours},
		}, args)
	}()
	return func(t *testing.T) int {
		t.Helper()
		select {
		case code := <-done:
			return code
		case <-time.After(hang):
			require.FailNow(t, "the command does not end", "%v", args)
			return 0
		}
	}
}

// interrupt sends Ctrl-C once the output holds text.
func (r *rig) interrupt(t *testing.T, out *buffer, text string) {
	t.Helper()
	sent := make(chan struct{})
	t.Cleanup(func() { <-sent })
	go func() {
		defer close(sent)
		for end := time.Now().Add(hang); time.Now().Before(end) && !strings.Contains(out.String(), text); {
			time.Sleep(time.Millisecond)
		}
		r.signals <- syscall.SIGINT
	}()
}

type buffer = ttytest.Buffer

// say sends texts as tokens of one continuation, then its end.
func say(s grpc.ServerStreamingServer[pb.GenerateResponse], output uint32, texts ...string) error {
	for i, text := range texts {
		if err := s.Send(tokens(output, uint32(i), text)); err != nil {
			return err
		}
	}
	return s.Send(finished(output))
}

func begun(in *pb.GenerateRequest) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: &pb.Started{
		ModelDigest: strings.Repeat("ab", 32), ClassId: "class", PromptTokens: 3, Seed: max(42, in.GetSampling().GetSeed()), WorkerId: "w1",
	}}}
}

func tokens(output, index uint32, text string) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{
		OutputIndex: output, TokenIndex: index, TokenIds: []uint32{10*(output+1) + index}, Text: text,
	}}}
}

func finished(output uint32) *pb.GenerateResponse {
	return &pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{
		OutputIndex: output, Reason: pb.FinishReason_FINISH_REASON_LENGTH,
	}}}
}

// usage sets the trailer with the counts of tokens so far.
func usage(t *testing.T, s grpc.ServerStream, prompt, completion uint32) {
	t.Helper()
	raw, err := proto.Marshal(&pb.Usage{PromptTokens: prompt, CompletionTokens: completion})
	require.NoError(t, err)
	s.SetTrailer(metadata.Pairs("millrace-usage-bin", string(raw)))
}

func refusal(code codes.Code, reason, message string) error {
	return rpc.Error{Code: code, Domain: rpc.WorkerDomain, Reason: reason, Message: message}.Err()
}
