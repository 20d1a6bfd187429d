package rpc_test

import (
	"context"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// talker answers with as many bytes as the text says.
type talker struct {
	pb.UnimplementedInferenceServiceServer
	// sendsOn receives a function that sends the response of a Generate that panics.
	sendsOn func(send func())
}

func (talker) Tokenize(_ context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	n, err := strconv.Atoi(in.GetText())
	return &pb.TokenizeResponse{Rendered: strings.Repeat("x", n)}, err
}

// Generate sends max_tokens messages of the given size. With sendsOn it leaves that to another
// goroutine and panics.
func (s talker) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	n, err := strconv.Atoi(in.GetPrompt())
	if err != nil {
		return err
	}
	out := &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{Text: strings.Repeat("x", n)}}}
	if s.sendsOn != nil {
		s.sendsOn(func() { _ = stream.Send(out) })
		panic("told to")
	}
	for range max(1, in.GetStopping().GetMaxTokens()) {
		if err := rpc.RawStream(stream).SendMsg(out); err != nil {
			return err
		}
	}
	return nil
}

// ends records how calls end.
type ends struct {
	mu  sync.Mutex
	all []ended // guarded by mu
}

type ended struct {
	err error
	at  time.Time
}

func (*ends) Began(rpc.Method) {}

func (e *ends) Ended(_ rpc.Method, err error, _ time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ended{err, time.Now()})
}

func (e *ends) take() []ended {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all
}

// deaf is a connection that stops reading on request.
type deaf struct {
	net.Conn
	once   sync.Once
	stop   chan struct{} // closed: it reads no more
	closed chan struct{}
}

func (d *deaf) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	select {
	case <-d.stop:
		<-d.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (d *deaf) Close() error {
	d.once.Do(func() { close(d.closed) })
	return d.Conn.Close()
}

// sender is a server of large responses and a connection to it.
type sender struct {
	*rpc.Server
	conn *grpc.ClientConn
	ends *ends
	deaf *deaf
}

func newSender(t *testing.T, cfg rpc.ServerConfig, service talker) *sender {
	t.Helper()
	return newSenderOver(t, 64<<10, cfg, service)
}

// newSenderOver is newSender over a connection with a buffer of the given size.
func newSenderOver(t *testing.T, buffer int, cfg rpc.ServerConfig, service talker) *sender {
	t.Helper()
	s := &sender{ends: &ends{}}
	cfg.Domain, cfg.Observer = rpc.WorkerDomain, s.ends
	s.Server = rpc.NewServer(cfg, hclog.NewNullLogger())
	pb.RegisterInferenceServiceServer(s, service)
	lis := bufconn.Listen(buffer)
	t.Cleanup(func() { _ = lis.Close() })
	rpctest.Serve(t, s.Server, lis)
	s.conn = rpctest.Dial(t, lis, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := lis.DialContext(ctx)
		s.deaf = &deaf{Conn: conn, stop: make(chan struct{}), closed: make(chan struct{})}
		return s.deaf, err
	}))
	return s
}

// unread begins a call and reads nothing of its response.
func (s *sender) unread(ctx context.Context, t *testing.T, method string, bytes int) grpc.ClientStream {
	t.Helper()
	var in any = text(strconv.Itoa(bytes))
	if method == generating {
		in = &pb.GenerateRequest{
			Input:    &pb.GenerateRequest_Prompt{Prompt: strconv.Itoa(bytes)},
			Stopping: &pb.Stopping{MaxTokens: proto.Int32(1 << 20)},
		}
	}
	stream, err := s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(in))
	require.NoError(t, stream.CloseSend())
	return stream
}

const tokenizing, generating = pb.InferenceService_Tokenize_FullMethodName, pb.InferenceService_Generate_FullMethodName

// heap returns the live bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC() // empties the pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestUnreadAnswersStayWithinTheBudget has thirty responses of 4 MiB that are not read. As many as
// fit the budget are in memory, and half as many wait. A small response passes.
func TestUnreadAnswersStayWithinTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each, budget = 4 << 20, 32 << 20
		s := newSender(t, rpc.ServerConfig{MaxSendingBytes: budget}, talker{})
		before := heap()
		for range 30 {
			s.unread(t.Context(), t, tokenizing, each)
		}
		synctest.Wait()
		refused := s.ends.take()
		for _, e := range refused {
			require.Equal(t, reason.TooManyBytesSending, rpc.Reason(e.err), "%v", e.err)
			require.Positive(t, rpc.RetryAfter(e.err))
		}
		running := 30 - len(refused)
		require.Positive(t, running)
		require.LessOrEqual(t, running*each, budget+budget/2)
		require.EqualValues(t, budget, s.MaxSendingBytes())
		require.LessOrEqual(t, s.SendingBytes(), int64(budget))
		require.Equal(t, running-int(s.SendingBytes())/each, s.WaitingToSend())
		require.Less(t, heap()-before, int64(budget+budget/2+8<<20))
		out, err := pb.NewInferenceServiceClient(s.conn).Tokenize(t.Context(), text("50000"))
		require.NoError(t, err, "what a stream sends has room of its own")
		require.Len(t, out.GetRendered(), 50000)
		time.Sleep(2 * rpc.DefaultSendStall)
		synctest.Wait()
		require.Len(t, s.ends.take(), 31)
		require.Zero(t, s.SendingBytes())
		require.Zero(t, s.WaitingToSend())
	})
}

func TestStalledAnswerEndsItsCall(t *testing.T) {
	for name, tc := range map[string]struct {
		method string
		bytes  int
		code   codes.Code // that the caller gets when it reads at last
	}{
		"a unary answer":                {tokenizing, 1 << 20, codes.Internal},
		"a large message of a stream":   {generating, 1 << 20, codes.Internal},
		"messages that fit the window":  {generating, 40 << 10, codes.Internal},
		"a message above the small one": {tokenizing, 100 << 10, codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSender(t, rpc.ServerConfig{SendStall: 7 * time.Second}, talker{})
				begun := time.Now()
				stream := s.unread(t.Context(), t, tc.method, tc.bytes)
				time.Sleep(6 * time.Second)
				synctest.Wait()
				require.Empty(t, s.ends.take(), "a call lasts until its answer is written")
				require.Positive(t, s.SendingBytes())
				time.Sleep(5 * time.Second)
				synctest.Wait()
				require.Len(t, s.ends.take(), 1)
				end := s.ends.take()[0]
				require.Equal(t, 7*time.Second, end.at.Sub(begun))
				require.Equal(t, codes.ResourceExhausted, status.Code(end.err))
				require.Equal(t, reason.SlowReader, rpc.Reason(end.err))
				require.EqualValues(t, 1, s.StalledCalls())
				require.Zero(t, s.SendingBytes(), "the transport has dropped it")
				var err error
				for err == nil {
					err = stream.RecvMsg(&pb.GenerateResponse{})
				}
				require.Equal(t, tc.code, status.Code(err), "%v", err)
				_, err = pb.NewInferenceServiceClient(s.conn).Tokenize(t.Context(), text("100000"))
				require.NoError(t, err, "the connection serves on")
			})
		})
	}
}

// TestStalledStreamOfSmallMessagesEnds needs no reset: the caller gets the queued small messages,
// and the status after them.
func TestStalledStreamOfSmallMessagesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t, rpc.ServerConfig{}, talker{})
		begun := time.Now()
		stream := s.unread(t.Context(), t, generating, 100)
		time.Sleep(31 * time.Second)
		synctest.Wait()
		require.Len(t, s.ends.take(), 1)
		require.Equal(t, reason.SlowReader, rpc.Reason(s.ends.take()[0].err))
		require.Equal(t, 30*time.Second, s.ends.take()[0].at.Sub(begun))
		n, err := 0, error(nil)
		for ; err == nil; n++ {
			err = stream.RecvMsg(&pb.GenerateResponse{})
		}
		require.Greater(t, n, 500)
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.Equal(t, reason.SlowReader, rpc.Reason(err))
	})
}

// TestUnreadAnswersMakeRoomForOthers has callers with one address, like those of a scheduler. One
// that reads nothing holds the others' bytes only for seconds.
func TestUnreadAnswersMakeRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t, rpc.ServerConfig{MaxSendingBytes: 32 << 20}, talker{})
		for range 4 { // 12 MiB are an address's half of the budget for large responses
			s.unread(t.Context(), t, tokenizing, 4<<20)
		}
		synctest.Wait()
		begun := time.Now()
		_, err := pb.NewInferenceServiceClient(s.conn).Tokenize(t.Context(), text("4000000"))
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(begun), 10*time.Second)
		for _, e := range s.ends.take()[:1] {
			require.Equal(t, reason.SlowReader, rpc.Reason(e.err), "%v", e.err)
		}
	})
}

func TestBudgetIsReleasedHoweverACallEnds(t *testing.T) {
	const bytes = 1 << 20
	for name, end := range map[string]func(t *testing.T, s *sender, cancel func()){
		"the caller cancels":       func(_ *testing.T, _ *sender, cancel func()) { cancel() },
		"the deadline passes":      func(*testing.T, *sender, func()) { time.Sleep(11 * time.Second) },
		"the connection is closed": func(_ *testing.T, s *sender, _ func()) { _ = s.deaf.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSender(t, rpc.ServerConfig{}, talker{})
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				for range 3 {
					s.unread(ctx, t, tokenizing, bytes)
				}
				synctest.Wait()
				require.Positive(t, s.SendingBytes())
				require.Empty(t, s.ends.take())
				end(t, s, cancel)
				synctest.Wait()
				require.Len(t, s.ends.take(), 3)
				require.Zero(t, s.SendingBytes())
				require.Zero(t, s.StalledCalls())
			})
		})
	}
}

// TestStuckConnectionIsClosed has a caller that reads nothing from its connection, which also
// delays the end of its streams.
func TestStuckConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// far below the window of 64 KiB: the writer blocks
		s := newSenderOver(t, 16<<10, rpc.ServerConfig{}, talker{})
		_, err := pb.NewInferenceServiceClient(s.conn).Tokenize(t.Context(), text("1"))
		require.NoError(t, err)
		close(s.deaf.stop)
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			s.unread(ctx, t, tokenizing, 1<<20)
		}
		synctest.Wait()
		cancel()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		require.Len(t, s.ends.take(), 4)
		require.Positive(t, s.SendingBytes(), "what the transport cannot drop counts")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Zero(t, s.SendingBytes())
	})
}

// TestBudgetIsReleasedAfterAPanic has a goroutine that keeps sending while its handler panics.
func TestBudgetIsReleasedAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t, rpc.ServerConfig{}, talker{sendsOn: func(send func()) {
			go send()
			time.Sleep(time.Second) // until it waits
		}})
		s.unread(t.Context(), t, generating, 1<<20)
		time.Sleep(10 * time.Second) // the status of the panic may be read until then
		synctest.Wait()
		require.Len(t, s.ends.take(), 1)
		require.Equal(t, reason.Panic, rpc.Reason(s.ends.take()[0].err))
		require.Zero(t, s.SendingBytes())
	})
}

// TestReaderGetsTheStatusOfItsEnd has a caller that reads in time. It gets the status of a call
// that this program ends while a large message waits.
func TestReaderGetsTheStatusOfItsEnd(t *testing.T) {
	ended := status.Error(codes.Unauthenticated, "the key was revoked")
	for name, end := range map[string]grpc.StreamServerInterceptor{
		"an interceptor ends the context of the handler": func(impl any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			ctx, cancel := context.WithCancel(stream.Context())
			defer cancel()
			time.AfterFunc(2*time.Second, cancel)
			_ = next(impl, bounded{stream, ctx})
			return ended
		},
		// As trainings do.
		"the handler returns while another goroutine sends": func(impl any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			go func() { _ = next(impl, stream) }()
			time.Sleep(2 * time.Second)
			return ended
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSender(t, rpc.ServerConfig{Interceptors: []grpc.StreamServerInterceptor{end}}, talker{})
				stream := s.unread(t.Context(), t, generating, 1<<20)
				time.Sleep(3 * time.Second)
				var err error
				for err == nil {
					err = stream.RecvMsg(&pb.GenerateResponse{})
				}
				require.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)
				time.Sleep(20 * time.Second)
				synctest.Wait()
				require.Zero(t, s.SendingBytes())
			})
		})
	}
}

// bounded is a stream with its own context.
type bounded struct {
	grpc.ServerStream
	ctx context.Context
}

func (b bounded) Context() context.Context { return b.ctx }
