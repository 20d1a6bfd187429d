package rpc_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// holder answers a Generate whose prompt begins with "keep" when the call ends, and any other when
// it has released the request and the call has ended. It sends one event when it holds, or has
// released, the request.
type holder struct {
	pb.UnimplementedInferenceServiceServer
}

func (holder) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	if !strings.HasPrefix(in.GetPrompt(), "keep") {
		rpc.ReleaseRequest(stream.Context())
	}
	if err := stream.Send(&pb.GenerateResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func TestHeldRequestsAreBounded(t *testing.T) {
	rpctest.NoLeaks(t)
	const size = 300 << 10
	cfg := rpc.ServerConfig{MaxReceiveBytes: 512 << 10, MaxWaitingBytes: 1 << 20}
	conn := rpctest.Pair(t, cfg, func(r grpc.ServiceRegistrar) { pb.RegisterInferenceServiceServer(r, holder{}) })
	c := pb.NewInferenceServiceClient(conn)
	large := prompt("keep" + strings.Repeat("x", size))
	var cancels []func()
	open := func(in *pb.GenerateRequest) error {
		ctx, cancel := contextWithCancel(t)
		cancels = append(cancels, cancel)
		_, err := first(ctx, c, in)
		return err
	}
	for range 3 {
		require.NoError(t, open(large))
	}
	err := open(large)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.Equal(t, reason.TooManyBytesWaiting, rpc.Reason(err))
	require.Positive(t, rpc.RetryAfter(err))
	numbers := rpc.Info(err).GetMetadata()
	require.Equal(t, strconv.Itoa(1<<20), numbers["max_waiting_bytes"])
	for key, least := range map[string]int{"bytes": size, "waiting_bytes": 3 * size} {
		n, err := strconv.Atoi(numbers[key])
		require.NoError(t, err)
		require.GreaterOrEqual(t, n, least, key)
		require.Less(t, n, least+3*100, key)
	}
	require.NoError(t, open(prompt("keep small")), "a small request is always taken")

	cancels[0]()
	require.Eventually(t, func() bool { return open(large) == nil }, hang, retry, "the end of a call makes room")
}

// maker answers a Tokenize when its caller leaves. It reserves as many bytes for the response as
// the text says.
type maker struct {
	pb.UnimplementedInferenceServiceServer
	held chan struct{}
}

func (m maker) Tokenize(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	bytes, _ := strconv.Atoi(in.GetText())
	if err := rpc.ReserveResponse(ctx, int64(bytes), rpc.WorkerDomain); err != nil {
		return nil, err
	}
	m.held <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestReservedResponsesCountAsHeld(t *testing.T) {
	rpctest.NoLeaks(t)
	m := maker{held: make(chan struct{})}
	cfg := rpc.ServerConfig{MaxReceiveBytes: 1 << 20, MaxWaitingBytes: 1 << 20}
	c := pb.NewInferenceServiceClient(rpctest.Pair(t, cfg, func(r grpc.ServiceRegistrar) { pb.RegisterInferenceServiceServer(r, m) }))
	ask := func(bytes int) (answer chan error, leave func()) {
		ctx, cancel := contextWithCancel(t)
		answer = make(chan error, 1)
		go func() {
			_, err := c.Tokenize(ctx, &pb.TokenizeRequest{Input: &pb.TokenizeRequest_Text{Text: strconv.Itoa(bytes)}})
			answer <- err
		}()
		return answer, cancel
	}
	// more than the budget: a server that holds nothing else accepts it
	first, leave := ask(8 << 20)
	<-m.held
	second, _ := ask(100 << 10)
	err := <-second
	require.Equal(t, reason.TooManyBytesWaiting, rpc.Reason(err), "%v", err)
	require.Contains(t, err.Error(), "the response takes 102400 bytes")
	_, leaveSmall := ask(100)
	<-m.held
	leaveSmall()
	leave()
	require.Error(t, <-first)
	require.Eventually(t, func() bool {
		answer, leave := ask(100 << 10)
		defer leave()
		select {
		case <-m.held:
			return true
		case err := <-answer:
			return err == nil
		}
	}, hang, retry, "the end of a call makes room")
}

func TestReleasedRequestIsNotCounted(t *testing.T) {
	rpctest.NoLeaks(t)
	conn := rpctest.Pair(t, rpc.ServerConfig{MaxReceiveBytes: 512 << 10, MaxWaitingBytes: 1}, func(r grpc.ServiceRegistrar) {
		pb.RegisterInferenceServiceServer(r, holder{})
	})
	c := pb.NewInferenceServiceClient(conn)
	for range 20 {
		_, err := first(within(t), c, prompt(strings.Repeat("x", 300<<10)))
		require.NoError(t, err, "the calls before still run and hold nothing")
	}
}
