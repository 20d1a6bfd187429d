package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/console"
)

// hang is a hang guard: the tests wait for a far shorter time.
const hang = time.Minute

// scheduler is the server that the console calls.
type scheduler struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer

	generate func(*pb.GenerateRequest, grpc.ServerStreamingServer[pb.GenerateResponse]) error
	unload   func(context.Context, *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error)
}

func (s *scheduler) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	return s.generate(in, stream)
}

func (s *scheduler) UnloadModel(ctx context.Context, in *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
	return s.unload(ctx, in)
}

// serve serves a console over a scheduler on loopback. stop ends it.
func serve(t *testing.T, s *scheduler) (url string, stop func()) {
	t.Helper()
	conn := rpctest.Pair(t, rpc.ServerConfig{Domain: rpc.SchedulerDomain}, func(r grpc.ServiceRegistrar) {
		pb.RegisterInferenceServiceServer(r, s)
		pb.RegisterModelServiceServer(r, s)
	})
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- console.Serve(ctx, lis, console.Config{Conn: conn}, rpctest.Logger(t)) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	return "http://" + lis.Addr().String(), stop
}

// answer is an HTTP response.
type answer struct {
	code  int
	is    string // its content type
	lines *bufio.Scanner
	close func() error
}

// post makes a call.
func post(ctx context.Context, t *testing.T, url, body string, header ...string) *answer {
	t.Helper()
	in, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	in.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		in.Header.Set(header[i], header[i+1])
	}
	out, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(in)
	require.NoError(t, err)
	t.Cleanup(func() { _ = out.Body.Close() }) // some tests close it themselves
	return &answer{out.StatusCode, out.Header.Get("Content-Type"), bufio.NewScanner(out.Body), out.Body.Close}
}

// line is a line of a response.
type line struct {
	Result map[string]any
	Error  map[string]string
}

// next returns the next line.
func (a *answer) next(t *testing.T) (l line) {
	t.Helper()
	require.True(t, a.lines.Scan(), "%v", a.lines.Err())
	require.NoError(t, json.Unmarshal(a.lines.Bytes(), &l))
	return l
}

func TestResponsesAreStreamedThenTheError(t *testing.T) {
	rpctest.NoLeaks(t)
	more := make(chan struct{})
	url, stop := serve(t, &scheduler{generate: func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		for _, text := range []string{"<b>", "a\nline", `"`} {
			if err := stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{
				Tokens: &pb.Tokens{TokenIndex: 1, TokenIds: []uint32{7}, Text: in.GetModel() + text}}}); err != nil {
				return err
			}
			<-more
		}
		return rpc.Error{Code: codes.Unavailable, Domain: rpc.SchedulerDomain, Reason: reason.WorkerLost, Message: "it is gone"}.Err()
	}})
	out := post(t.Context(), t, url+"/api/Generate", `{"model":"m","prompt":"p","sampling":{"seed":"18446744073709551615"}}`)
	require.Equal(t, http.StatusOK, out.code)
	require.Equal(t, "application/x-ndjson", out.is)
	// each arrives before the next one is sent
	for _, text := range []string{"m<b>", "ma\nline", `m"`} {
		require.Equal(t, map[string]any{"tokenIndex": 1.0, "tokenIds": []any{7.0}, "text": text}, out.next(t).Result["tokens"])
		more <- struct{}{}
	}
	require.Equal(t, map[string]string{"code": "UNAVAILABLE", "reason": "WORKER_LOST", "message": "it is gone"}, out.next(t).Error)
	require.False(t, out.lines.Scan())
	require.NoError(t, out.close())
	stop()
}

func TestFailedCallIsAnHTTPError(t *testing.T) {
	for code, want := range map[codes.Code]int{
		codes.InvalidArgument: 400, codes.Unauthenticated: 401, codes.PermissionDenied: 403, codes.NotFound: 404, codes.FailedPrecondition: 409,
		codes.ResourceExhausted: 429, codes.Internal: 500, codes.Unknown: 500, codes.DataLoss: 500, codes.Unimplemented: 501,
		codes.Unavailable: 503, codes.DeadlineExceeded: 504,
	} {
		url, _ := serve(t, &scheduler{unload: func(context.Context, *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
			return nil, status.Error(code, "no")
		}})
		out := post(t.Context(), t, url+"/api/UnloadModel", `{"model":"m"}`)
		require.Equal(t, want, out.code, code)
		require.Equal(t, "no", out.next(t).Error["message"])
	}
}

func TestOnlyTheTokenIsForwarded(t *testing.T) {
	url, _ := serve(t, &scheduler{unload: func(ctx context.Context, in *pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if md.Get("cookie") != nil || md.Get(rpc.RequestIDKey) != nil {
			return nil, status.Error(codes.Internal, "what else a browser sends goes no further")
		}
		return &pb.UnloadModelResponse{WorkerIds: append(md.Get("authorization"), in.GetModel())}, nil
	}})
	out := post(t.Context(), t, url+"/api/UnloadModel", `{"model":"m"}`, "Authorization", "Bearer t", "Cookie", "a=b", rpc.RequestIDKey, "mine")
	require.Equal(t, []any{"Bearer t", "m"}, out.next(t).Result["workerIds"])
	out = post(t.Context(), t, url+"/api/UnloadModel", `{"model":"m"}`)
	require.Equal(t, []any{"m"}, out.next(t).Result["workerIds"])
}

func TestLeavingBrowserCancelsItsCall(t *testing.T) {
	rpctest.NoLeaks(t)
	left := make(chan struct{})
	url, stop := serve(t, &scheduler{generate: func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(&pb.GenerateResponse{}); err != nil {
			return err
		}
		<-stream.Context().Done()
		close(left)
		return stream.Context().Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	out := post(ctx, t, url+"/api/Generate", `{"model":"m","prompt":"p"}`)
	out.next(t)
	cancel()
	select {
	case <-left:
	case <-time.After(hang):
		require.FailNow(t, "the call goes on without its caller")
	}
	require.NoError(t, out.close())
	stop()
}

func TestServeEndsDespiteOpenStreams(t *testing.T) {
	rpctest.NoLeaks(t)
	url, stop := serve(t, &scheduler{generate: func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(&pb.GenerateResponse{}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}})
	out := post(t.Context(), t, url+"/api/Generate", `{"model":"m","prompt":"p"}`)
	out.next(t)
	stop()
	require.False(t, out.lines.Scan(), "%s", out.lines.Bytes())
	require.NoError(t, out.close())
}
