package rpc_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// stranger is a client that sends arbitrary frames.
type stranger struct {
	t    *testing.T
	conn net.Conn

	mu     sync.Mutex
	framer *http2.Framer     // writes are guarded by mu
	ends   map[uint32]string // guarded by mu; grpc-status and reason by stream
	news   chan struct{}     // guarded by mu; closed when another call has ended
}

// meet connects a stranger to a server over memory.
func meet(t *testing.T, cfg rpc.ServerConfig) (*stranger, *rpc.Server) {
	t.Helper()
	cfg.Domain = rpc.WorkerDomain
	server := rpc.NewServer(cfg, rpctest.Logger(t))
	pb.RegisterInferenceServiceServer(server, echo{})
	lis := rpctest.Listener(t)
	rpctest.Serve(t, server, lis)
	conn, err := lis.DialContext(t.Context())
	require.NoError(t, err)
	s := &stranger{t: t, conn: conn, framer: http2.NewFramer(conn, conn), ends: map[uint32]string{}, news: make(chan struct{})}
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte(http2.ClientPreface))
	require.NoError(t, err)
	require.NoError(t, s.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}))
	s.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	go s.read()
	return s, server
}

// read records how calls end.
func (s *stranger) read() {
	for {
		frame, err := s.framer.ReadFrame()
		if err != nil {
			return
		}
		if ping, ok := frame.(*http2.PingFrame); ok && !ping.IsAck() {
			s.mu.Lock()
			_ = s.framer.WritePing(true, ping.Data) // reading reports a broken connection
			s.mu.Unlock()
		}
		headers, ok := frame.(*http2.MetaHeadersFrame)
		if !ok || !headers.StreamEnded() {
			continue
		}
		end := ""
		for _, f := range headers.Fields {
			if f.Name == "grpc-status" {
				end = f.Value
			}
			if f.Name == "grpc-message" {
				end += " " + f.Value
			}
		}
		s.mu.Lock()
		s.ends[headers.StreamID] = end
		close(s.news)
		s.news = make(chan struct{})
		s.mu.Unlock()
	}
}

// call begins a call.
func (s *stranger) call(stream uint32, method string) {
	s.t.Helper()
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	e.SetMaxDynamicTableSize(0)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "a"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		require.NoError(s.t, e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NoError(s.t, s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true}))
}

// send sends a part of a call's body.
func (s *stranger) send(stream uint32, end bool, part []byte) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NoError(s.t, s.framer.WriteData(stream, end, part))
}

// end waits for the end of a call.
func (s *stranger) end(stream uint32) string {
	s.t.Helper()
	for {
		s.mu.Lock()
		end, ok := s.ends[stream]
		news := s.news
		s.mu.Unlock()
		if ok {
			return end
		}
		select {
		case <-news:
		case <-time.After(hang):
			require.FailNow(s.t, "the call has no end")
		}
	}
}

// framed returns a message with its prefix.
func framed(t *testing.T, m proto.Message) []byte {
	t.Helper()
	body, err := proto.Marshal(m)
	require.NoError(t, err)
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

// prefix returns the prefix of a message of n bytes.
func prefix(n int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(n)) }

const (
	tokenize = "/millrace.v1.InferenceService/Tokenize"
	check    = "/grpc.health.v1.Health/Check"
)

func TestReceiverTimesOutWithoutARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := meet(t, rpc.ServerConfig{})
		begun := time.Now()
		s.call(1, check)
		s.call(3, tokenize)
		s.send(3, false, framed(t, text("hello"))) // does not end the stream
		s.call(5, tokenize)
		s.send(5, false, framed(t, text("hello"))[:9])
		for _, stream := range []uint32{1, 3, 5} {
			require.Contains(t, s.end(stream), "4 the request did not arrive within 20s", "DEADLINE_EXCEEDED")
		}
		require.Equal(t, 20*time.Second, time.Since(begun))
		s.call(7, tokenize)
		s.send(7, true, framed(t, text("hello")))
		require.Equal(t, "0", strings.TrimSpace(s.end(7)))
	})
}

func TestReceiverEndsSlowRequests(t *testing.T) {
	// A slow request ends sooner if others wait for the budget.
	const large = 1 << 20
	synctest.Test(t, func(t *testing.T) {
		s, server := meet(t, rpc.ServerConfig{MaxReceiveBytes: large, MaxReceivingBytes: large})
		begun := time.Now()
		s.call(1, tokenize)
		s.send(1, false, append(prefix(large), make([]byte, 1000)...))
		require.Contains(t, s.end(1), "4 the request of 1048576 bytes did not arrive completely within 36s: send it faster")
		require.Equal(t, 36*time.Second, time.Since(begun))

		begun = time.Now()
		s.call(3, tokenize)
		s.send(3, false, prefix(large))
		synctest.Wait()
		s.call(5, tokenize)
		s.send(5, false, prefix(large))
		synctest.Wait()
		require.EqualValues(t, large, server.ReceivingBytes())
		require.Equal(t, 1, server.WaitingToReceive())
		s.call(7, tokenize)
		s.send(7, true, framed(t, text("small")))
		require.Equal(t, "0", strings.TrimSpace(s.end(7)))
		require.Zero(t, time.Since(begun), "a small one waits for none of them")
		require.Contains(t, s.end(3), "did not arrive completely within 20s, and 1 others wait for its bytes")
		require.Equal(t, 20*time.Second, time.Since(begun))
		synctest.Wait()
		require.Zero(t, server.WaitingToReceive(), "the next one is in")
		require.NoError(t, s.framer.WriteRSTStream(5, http2.ErrCodeCancel))
		synctest.Wait()
		require.Zero(t, server.ReceivingBytes(), "who leaves makes room")
	})
}

func TestReceiverRefusesByLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, server := meet(t, rpc.ServerConfig{})
		s.call(1, tokenize)
		s.send(1, false, prefix(1<<30))
		require.Contains(t, s.end(1), "8 the request has 1073741824 bytes and this server accepts 16777216: send less")
		synctest.Wait()
		require.Zero(t, server.ReceivingBytes())
	})
}

func TestMaxMethodBytesBoundsOneMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := meet(t, rpc.ServerConfig{MaxMethodBytes: map[string]int{pb.InferenceService_Tokenize_FullMethodName: 1 << 20}})
		s.call(1, tokenize)
		s.send(1, false, prefix(1<<20+1))
		require.Contains(t, s.end(1), "8 the request has 1048577 bytes and this server accepts 1048576: send less")
		s.call(3, pb.InferenceService_Detokenize_FullMethodName)
		s.send(3, false, prefix(16<<20+1))
		require.Contains(t, s.end(3), "this server accepts 16777216: send less")
	})
}

func TestReceiverRefusesMalformedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := meet(t, rpc.ServerConfig{})
		s.call(1, tokenize)
		s.send(1, false, framed(t, text("one")))
		s.send(1, false, framed(t, text("two")))
		require.Contains(t, s.end(1), "3 the call takes one message and a second one was sent")
		s.call(3, tokenize)
		s.send(3, false, prefix(1<<20))
		for range 1025 {
			s.send(3, false, []byte{0})
		}
		require.Contains(t, s.end(3), "3 a message arrives in frames of a few bytes each")
	})
}

func TestReceiveBudgetQueuesLargeRequests(t *testing.T) {
	rpctest.NoLeaks(t)
	const size = 300 << 10
	cfg := rpc.ServerConfig{MaxReceiveBytes: 512 << 10, MaxReceivingBytes: 1 << 20}
	conn := rpctest.Pair(t, cfg, func(r grpc.ServiceRegistrar) { pb.RegisterInferenceServiceServer(r, echo{}) })
	c := pb.NewInferenceServiceClient(conn)
	errs := make(chan error, 40)
	for range cap(errs) {
		go func() {
			_, err := c.Tokenize(within(t), text(strings.Repeat("x", size)))
			errs <- err
		}()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	_, err := c.Tokenize(within(t), text(strings.Repeat("x", 513<<10)))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Equal(t, reason.MessageTooLarge, rpc.Reason(err))
	require.Equal(t, "524288", rpc.Info(err).GetMetadata()["max_bytes"])
}

func TestHeadersAreBounded(t *testing.T) {
	rpctest.NoLeaks(t)
	conn := pair(t, rpc.ServerConfig{})
	c := pb.NewInferenceServiceClient(conn)
	_, err := c.Tokenize(within(t), text("a"))
	require.NoError(t, err)
	_, err = c.Tokenize(metadata.AppendToOutgoingContext(within(t), "x-long", strings.Repeat("x", 20<<10)), text("a"))
	require.ErrorContains(t, err, "header list size")
	_, err = c.Tokenize(metadata.AppendToOutgoingContext(within(t), "x-long", strings.Repeat("x", 8<<10)), text("a"))
	require.NoError(t, err)
}

func TestFrameHoldsItsBudgetUntilReleased(t *testing.T) {
	rpctest.NoLeaks(t)
	const size = 300 << 10
	for name, settle := range map[string]func(grpc.ServerStream) error{
		"by a turn":     func(s grpc.ServerStream) error { rpc.AcquireDecodeSlot(s.Context(), size)(); return nil },
		"by saying so":  func(s grpc.ServerStream) error { rpc.ReleaseReceived(s.Context()); return nil },
		"by the next":   func(s grpc.ServerStream) error { return s.RecvMsg(&rpc.Frame{}) },
		"by its return": nil,
	} {
		t.Run(name, func(t *testing.T) {
			held, left := make(chan int64, 1), make(chan int64, 1)
			server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain}, rpctest.Logger(t))
			server.RegisterService(&grpc.ServiceDesc{ServiceName: "any", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
				StreamName: "Method", ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
					var f rpc.Frame
					if err := stream.RecvMsg(&f); err != nil {
						return err
					}
					defer f.Free()
					held <- server.ReceivingBytes()
					if settle != nil {
						if err := settle(stream); err != nil {
							return err
						}
						left <- server.ReceivingBytes()
					}
					return stream.SendMsg(&rpc.Frame{})
				},
			}}}, server)
			lis := rpctest.Listener(t)
			rpctest.Serve(t, server, lis)
			stream, err := rpctest.Dial(t, lis).NewStream(within(t), &grpc.StreamDesc{ClientStreams: true}, "/any/Method", grpc.ForceCodecV2(rpc.FrameCodec()))
			require.NoError(t, err)
			require.NoError(t, stream.SendMsg(raw(make([]byte, size))))
			if err := stream.SendMsg(raw([]byte{1})); err != nil {
				require.ErrorIs(t, err, io.EOF, "a handler that reads one message may have returned")
			}
			require.NoError(t, stream.CloseSend())
			require.NoError(t, stream.RecvMsg(&rpc.Frame{}))
			require.EqualValues(t, size, <-held)
			if settle != nil {
				require.Zero(t, <-left)
			}
			require.Eventually(t, func() bool { return server.ReceivingBytes() == 0 }, hang, retry)
		})
	}
}
