package rpc_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// echo answers a Tokenize with its text. It panics, fails or waits on request.
type echo struct {
	pb.UnimplementedInferenceServiceServer
}

func (echo) Tokenize(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	switch in.GetText() {
	case "panic":
		panic("told to")
	case "full":
		return nil, rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: "FULL", Message: "full",
			RetryAfter: 250 * time.Millisecond}.Err()
	}
	rpc.Annotate(ctx, "note", "annotated")
	return &pb.TokenizeResponse{Rendered: rpc.RequestID(ctx)}, nil
}

func (echo) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	if in.GetPrompt() == "panic" {
		panic("told to")
	}
	if err := stream.Send(&pb.GenerateResponse{}); err != nil {
		return err
	}
	if in.GetPrompt() == "wait" {
		select {
		case <-stream.Context().Done():
		case <-rpc.Draining(stream.Context()):
		}
	}
	if in.GetPrompt() == "hang" {
		<-stream.Context().Done()
	}
	return nil
}

func pair(t *testing.T, cfg rpc.ServerConfig) *grpc.ClientConn {
	t.Helper()
	rpctest.NoLeaks(t)
	return rpctest.Pair(t, cfg, func(r grpc.ServiceRegistrar) { pb.RegisterInferenceServiceServer(r, echo{}) })
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

func text(s string) *pb.TokenizeRequest {
	return &pb.TokenizeRequest{Model: "m", Input: &pb.TokenizeRequest_Text{Text: s}}
}

func prompt(s string) *pb.GenerateRequest {
	return &pb.GenerateRequest{Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: s}}
}

// first reads one event of a generation.
func first(ctx context.Context, c pb.InferenceServiceClient, in *pb.GenerateRequest) (grpc.ServerStreamingClient[pb.GenerateResponse], error) {
	stream, err := c.Generate(ctx, in)
	if err != nil {
		return nil, err
	}
	_, err = stream.Recv()
	return stream, err
}

func TestRequestIDIsAdoptedOrMade(t *testing.T) {
	c := pb.NewInferenceServiceClient(pair(t, rpc.ServerConfig{}))
	out, err := c.Tokenize(metadata.AppendToOutgoingContext(within(t), rpc.RequestIDKey, "mine"), text("a"))
	require.NoError(t, err)
	require.Equal(t, "mine", out.GetRendered())
	for _, bad := range []string{strings.Repeat("x", 129), ""} {
		out, err = c.Tokenize(metadata.AppendToOutgoingContext(within(t), rpc.RequestIDKey, bad), text("a"))
		require.NoError(t, err)
		require.Len(t, out.GetRendered(), 16)
	}
}

func TestPanicEndsOnlyItsOwnCall(t *testing.T) {
	rpctest.NoLeaks(t)
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, rpctest.Logger(t))
	pb.RegisterInferenceServiceServer(server, echo{})
	lis := rpctest.Listener(t)
	rpctest.Serve(t, server, lis)
	c := pb.NewInferenceServiceClient(rpctest.Dial(t, lis))
	other, err := first(within(t), c, prompt("wait"))
	require.NoError(t, err)

	_, err = c.Tokenize(within(t), text("panic"))
	require.Equal(t, codes.Internal, status.Code(err))
	require.Equal(t, reason.Panic, rpc.Reason(err))
	require.NotContains(t, status.Convert(err).Message(), "told to")
	_, err = first(within(t), c, prompt("panic"))
	require.Equal(t, reason.Panic, rpc.Reason(err))
	require.EqualValues(t, 2, server.Panics())

	_, err = c.Tokenize(within(t), text("a"))
	require.NoError(t, err)
	require.NoError(t, other.CloseSend())
}

func TestServerRefusesBadMessages(t *testing.T) {
	// Each refusal names the field, and the server keeps serving.
	conn := pair(t, rpc.ServerConfig{MaxReceiveBytes: 1 << 20})
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1)
	for name, tc := range map[string]struct {
		raw    []byte
		code   codes.Code
		reason string
	}{
		"an unknown field":        {unknown, codes.InvalidArgument, reason.UnknownField},
		"text that is not UTF-8":  {with(nil, 2, []byte{0xff}), codes.InvalidArgument, reason.MalformedMessage},
		"bytes that are no field": {[]byte{0xff}, codes.InvalidArgument, reason.MalformedMessage},
		"the mark of a large one": {[]byte("\x07oversize:99"), codes.InvalidArgument, reason.MalformedMessage},
		"the mark of a bad one":   {[]byte("\x07malformed:"), codes.InvalidArgument, reason.MalformedMessage},
		"a message of 100 MB":     {with(nil, 2, make([]byte, 100<<20)), codes.ResourceExhausted, reason.MessageTooLarge},
	} {
		for _, method := range []string{pb.InferenceService_Tokenize_FullMethodName, pb.InferenceService_Generate_FullMethodName} {
			t.Run(name+" to "+method, func(t *testing.T) {
				in, out := raw(tc.raw), &rpc.Frame{}
				stream, err := conn.NewStream(within(t), &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodecV2(rpc.FrameCodec()))
				require.NoError(t, err)
				_ = stream.SendMsg(in)
				_ = stream.CloseSend()
				err = stream.RecvMsg(out)
				require.Equal(t, tc.code, status.Code(err), "%v", err)
				require.Equal(t, tc.reason, rpc.Reason(err))
				require.Equal(t, rpc.WorkerDomain, rpc.Domain(err))
			})
		}
	}
	_, err := pb.NewInferenceServiceClient(conn).Tokenize(within(t), text("a"))
	require.NoError(t, err)
}

func TestUnknownMethodIsNamed(t *testing.T) {
	conn := pair(t, rpc.ServerConfig{})
	err := conn.Invoke(within(t), "/millrace.v1.InferenceService/Paint", text("a"), &pb.TokenizeResponse{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.Equal(t, reason.NotBuilt, rpc.Reason(err))
	require.Equal(t, "/millrace.v1.InferenceService/Paint", rpc.Info(err).GetMetadata()["method"])
}

// TestUnknownMethodFillsNoLog sends a method name of any length and of any bytes.
func TestUnknownMethodFillsNoLog(t *testing.T) {
	rpctest.NoLeaks(t)
	var log syncBuffer
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Info}))
	lis := rpctest.Listener(t)
	stop := rpctest.Serve(t, server, lis)
	conn := rpctest.Dial(t, lis)
	for _, method := range []string{"/long.Service/" + strings.Repeat("m", 12<<10), "/\xff\x9b.Service/\xfe"} {
		require.Equal(t, codes.Unimplemented, status.Code(conn.Invoke(within(t), method, text("a"), &pb.TokenizeResponse{})))
	}
	stop()
	require.Less(t, len(log.String()), 20<<10)
	require.True(t, utf8.ValidString(log.String()))
	require.Equal(t, 2, strings.Count(log.String(), "finished call"))
}

func TestRetryInfoBecomesPushback(t *testing.T) {
	c := pb.NewInferenceServiceClient(pair(t, rpc.ServerConfig{}))
	var trailer metadata.MD
	_, err := c.Tokenize(within(t), text("full"), grpc.Trailer(&trailer))
	require.Equal(t, "FULL", rpc.Reason(err))
	require.Equal(t, []string{"250"}, trailer.Get("grpc-retry-pushback-ms"))
}

func TestHealthAndBothReflectionsAnswer(t *testing.T) {
	conn := pair(t, rpc.ServerConfig{})
	h := healthpb.NewHealthClient(conn)
	for _, service := range []string{"", "millrace.v1.InferenceService"} {
		require.Eventually(t, func() bool {
			out, err := h.Check(within(t), &healthpb.HealthCheckRequest{Service: service})
			return err == nil && out.GetStatus() == healthpb.HealthCheckResponse_SERVING
		}, hang, time.Millisecond)
	}
	all, err := h.List(within(t), &healthpb.HealthListRequest{})
	require.NoError(t, err)
	require.Contains(t, all.GetStatuses(), "millrace.v1.InferenceService")

	v1, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(within(t))
	require.NoError(t, err)
	require.NoError(t, v1.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}))
	got, err := v1.Recv()
	require.NoError(t, err)
	names := []string{}
	for _, s := range got.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	require.Subset(t, names, []string{"millrace.v1.InferenceService", "grpc.health.v1.Health", "grpc.channelz.v1.Channelz"})

	alpha, err := reflectionv1alpha.NewServerReflectionClient(conn).ServerReflectionInfo(within(t))
	require.NoError(t, err)
	require.NoError(t, alpha.Send(&reflectionv1alpha.ServerReflectionRequest{
		MessageRequest: &reflectionv1alpha.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: "millrace.v1.InferenceService.Generate"}}))
	file, err := alpha.Recv()
	require.NoError(t, err)
	require.NotEmpty(t, file.GetFileDescriptorResponse().GetFileDescriptorProto())
}

func TestServeDrains(t *testing.T) {
	// Stopping sets health to NOT_SERVING and waits for running calls.
	synctest.Test(t, func(t *testing.T) { // no time passes until the watcher is notified
		rpctest.NoLeaks(t)
		server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain, DrainTimeout: time.Minute}, rpctest.Logger(t))
		pb.RegisterInferenceServiceServer(server, echo{})
		lis := rpctest.Listener(t)
		stop := rpctest.Serve(t, server, lis)
		conn := rpctest.Dial(t, lis)
		watch, err := healthpb.NewHealthClient(conn).Watch(within(t), &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		for {
			out, err := watch.Recv()
			require.NoError(t, err)
			if out.GetStatus() == healthpb.HealthCheckResponse_SERVING {
				break
			}
		}
		running, err := first(within(t), pb.NewInferenceServiceClient(conn), prompt("wait"))
		require.NoError(t, err)
		// returns before the drain timeout: the watcher is disconnected and the stream sees
		// Draining
		stop()

		out, err := watch.Recv()
		require.NoError(t, err)
		require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, out.GetStatus())
		_, err = running.Recv()
		require.ErrorContains(t, err, "EOF")
	})
}

func TestServeCutsOffCallsAfterTheDrain(t *testing.T) {
	rpctest.NoLeaks(t)
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain, DrainTimeout: 20 * time.Millisecond}, rpctest.Logger(t))
	pb.RegisterInferenceServiceServer(server, echo{})
	lis := rpctest.Listener(t)
	stop := rpctest.Serve(t, server, lis)
	running, err := first(within(t), pb.NewInferenceServiceClient(rpctest.Dial(t, lis)), prompt("hang"))
	require.NoError(t, err)
	stop()
	_, err = running.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}

func TestEachCallIsOneLine(t *testing.T) {
	rpctest.NoLeaks(t)
	var log syncBuffer
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain},
		hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Info}))
	pb.RegisterInferenceServiceServer(server, echo{})
	lis := rpctest.Listener(t)
	stop := rpctest.Serve(t, server, lis)
	conn := rpctest.Dial(t, lis)
	c := pb.NewInferenceServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(within(t), rpc.RequestIDKey, "mine")
	_, err := c.Tokenize(ctx, text("a"))
	require.NoError(t, err)
	_, err = c.Tokenize(ctx, text("full"))
	require.Error(t, err)
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	stop()
	var lines []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "finished call") {
			lines = append(lines, line)
		}
	}
	require.Len(t, lines, 2, "%s", log.String())
	require.Contains(t, lines[0], "request_id=mine")
	require.Contains(t, lines[0], "note=annotated")
	require.Contains(t, lines[1], "reason=FULL")
	require.Contains(t, lines[1], "[INFO]")
}

// TestCallLineIsBounded has a library error and a panic that quote a request of 16 MB.
func TestCallLineIsBounded(t *testing.T) {
	rpctest.NoLeaks(t)
	var log syncBuffer
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, hclog.New(&hclog.LoggerOptions{Output: &log}))
	pb.RegisterInferenceServiceServer(server, quoting{})
	lis := rpctest.Listener(t)
	stop := rpctest.Serve(t, server, lis)
	c := pb.NewInferenceServiceClient(rpctest.Dial(t, lis))
	long := strings.Repeat("a", 4<<20)
	for _, in := range []*pb.TokenizeRequest{{Model: long}, {Model: long, Input: &pb.TokenizeRequest_Text{Text: "panic"}}} {
		_, err := c.Tokenize(within(t), in)
		require.Equal(t, codes.Internal, status.Code(err))
		require.LessOrEqual(t, len(status.Convert(err).Message()), 2<<10)
	}
	stop()
	require.Less(t, len(log.String()), 16<<10) // a stack is most of it
	require.Contains(t, log.String(), `model="`+strings.Repeat("a", 252)+`…"`)
}

// quoting fails with the whole name of a model.
type quoting struct {
	pb.UnimplementedInferenceServiceServer
}

func (quoting) Tokenize(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	rpc.Annotate(ctx, "model", in.GetModel())
	if in.GetText() == "panic" {
		panic(in.GetModel())
	}
	return nil, status.Error(codes.Internal, in.GetModel())
}

func TestSilentConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // ten seconds of the bubble's clock
		server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, hclog.NewNullLogger())
		lis := rpctest.Listener(t)
		rpctest.Serve(t, server, lis)
		conn, err := lis.DialContext(t.Context())
		require.NoError(t, err)
		begin := time.Now()
		_, err = io.Copy(io.Discard, conn) // to the end of the connection
		require.NoError(t, err)
		require.Equal(t, 10*time.Second, time.Since(begin))
		require.NoError(t, conn.Close())
	})
}
