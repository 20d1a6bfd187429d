package target_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/servertest"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// request asks for a whole answer.
func request() *pb.GenerateRequest {
	return &pb.GenerateRequest{Model: servertest.Model, Input: &pb.GenerateRequest_Prompt{Prompt: "a"}, Sampling: &pb.Sampling{NumSequences: proto.Int32(2)}}
}

// serve serves on a port of loopback until the test ends.
func serve(t *testing.T, s *servertest.Server) (address string) {
	t.Helper()
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, rpctest.Logger(t))
	s.Register(server)
	rpctest.Serve(t, server, lis)
	return lis.Addr().String()
}

// open opens a client of servers.
func open(t *testing.T, targets ...string) *target.Client {
	t.Helper()
	c, err := target.Open(targets, "test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func TestCollectReadsEveryOutput(t *testing.T) {
	c := (&servertest.Server{}).Start(t)
	g, err := c.Generate(t.Context(), request())
	require.NoError(t, err)
	a, err := target.Collect(g, 2)
	require.NoError(t, err)
	for _, o := range a.Outputs {
		require.Equal(t, strings.Join(servertest.Words, ""), o.Text)
		require.Len(t, o.TokenIDs, len(servertest.Words))
		require.Equal(t, pb.FinishReason_FINISH_REASON_STOP, o.Finished.GetReason())
	}
	require.Equal(t, "worker", a.Started.GetWorkerId())
	require.EqualValues(t, servertest.PromptTokens, a.Usage().GetPromptTokens())
	require.EqualValues(t, 2*len(servertest.Words), a.Usage().GetCompletionTokens())
	_, err = g.Next()
	require.ErrorIs(t, err, io.EOF)
}

func TestRefusedCallsGoToAnotherServer(t *testing.T) {
	refusing := &servertest.Server{OnGenerate: func(*pb.GenerateRequest, grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		return servertest.Refusal(codes.Unavailable, reason.Stopping, "stopping")
	}}
	serving := &servertest.Server{}
	c := open(t, serve(t, refusing), serve(t, serving))
	// Calls go round robin as soon as both servers are connected.
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		g, err := c.Generate(t.Context(), request())
		require.NoError(t, err)
		_, err = target.Collect(g, 2)
		require.NoError(t, err)
		if in, _ := refusing.Last(); in != nil {
			break
		}
		require.Less(t, time.Since(begin), time.Minute, "no call reached the server that refuses")
	}
}

func TestStreamThatHasBegunIsNotRepeated(t *testing.T) {
	calls := 0
	c := open(t, serve(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		calls++
		return errors.Join(stream.Send(servertest.Started(in)), servertest.Refusal(codes.Unavailable, reason.WorkerLost, "lost"))
	}}))
	g, err := c.Generate(t.Context(), request())
	require.NoError(t, err)
	_, err = target.Collect(g, 2)
	require.Equal(t, reason.WorkerLost, rpc.Reason(err))
	require.Equal(t, 1, calls)
}

func TestReadyAsksTheServers(t *testing.T) {
	require.NoError(t, open(t, serve(t, &servertest.Server{})).Ready(t.Context()))
	c := open(t, "unix:"+t.TempDir()+"/none")
	require.Error(t, c.Ready(t.Context()))
	require.Error(t, c.Ready(t.Context()), "a result is used again for a moment")
}

func TestPiecesAreAskedOnce(t *testing.T) {
	s := &servertest.Server{}
	c := s.Start(t)
	for range 2 {
		texts, err := c.Pieces(t.Context(), servertest.Model, "digest", []uint32{0, 1, 0})
		require.NoError(t, err)
		require.Equal(t, map[uint32]string{0: servertest.Words[0], 1: servertest.Words[1]}, texts)
	}
	require.EqualValues(t, 2, s.Detokenizations.Load())
	_, err := c.Pieces(t.Context(), servertest.Model, "another", []uint32{0})
	require.NoError(t, err)
	require.EqualValues(t, 3, s.Detokenizations.Load(), "another model has other texts")
	_, err = c.Pieces(t.Context(), servertest.Model, "digest", []uint32{0, 99})
	require.Equal(t, reason.BadTokenID, rpc.Reason(err))
}

func TestCallsCarryWhatARequestHas(t *testing.T) {
	ctx := target.Call{RequestID: "id", Authorization: "Bearer t", RoutingKey: "caf\u00e9"}.Context(context.Background())
	md, _ := metadata.FromOutgoingContext(ctx)
	require.Equal(t, []string{"id"}, md.Get(rpc.RequestIDKey))
	require.Equal(t, []string{"Bearer t"}, md.Get("authorization"))
	require.Equal(t, []string{target.Token("caf\u00e9")}, md.Get(rpc.RoutingKey))
	require.True(t, rpc.ValidRequestID(target.Token(strings.Repeat("x", 1000))))
	require.Equal(t, "plain", target.Token("plain"))
}

func TestStreamContinuesAtAnotherServer(t *testing.T) {
	// The first server goes away after three tokens of each output; the client of the gateway sees no difference.
	var broken atomic.Int32
	breaking := &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if len(in.GetResume()) > 0 {
			return servertest.Answer(in, stream)
		}
		broken.Add(1)
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		for i := range 3 {
			for o := range uint32(2) {
				if err := stream.Send(servertest.Token(in, o, i)); err != nil {
					return err
				}
			}
		}
		return status.Error(codes.Unavailable, "the connection broke")
	}}
	serving := &servertest.Server{}
	c := open(t, serve(t, breaking), serve(t, serving))
	for broken.Load() == 0 { // until the first server has had one
		in := request()
		in.Sampling.Seed = proto.Uint64(5)
		ctx, cancel := context.WithCancel(t.Context())
		g, err := c.Generate(ctx, in)
		require.NoError(t, err)
		a, err := target.Collect(g, 2)
		require.NoError(t, err)
		for _, o := range a.Outputs {
			require.Equal(t, strings.Join(servertest.Words, ""), o.Text)
			require.Len(t, o.TokenIDs, len(servertest.Words))
		}
		cancel()
	}
}

func TestStreamThatLostItsPromptIsNotContinued(t *testing.T) {
	c := open(t, serve(t, &servertest.Server{OnGenerate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(servertest.Started(in)); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "the connection broke")
	}}))
	in := request()
	in.Response = &pb.ResponseOptions{EchoPrompt: proto.Bool(true)}
	g, err := c.Generate(t.Context(), in)
	require.NoError(t, err)
	_, err = target.Collect(g, 2)
	require.Equal(t, codes.Unavailable, status.Code(err), "the next server would send nothing of the prompt")
}
