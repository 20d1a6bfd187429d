package ingress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// raw is a codec that passes bytes unchanged.
type raw struct{ encoding.CodecV2 }

func (raw) Name() string { return protocodec.Name }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// serve runs a grpc-go server whose calls go to handler, and returns a connection to it.
func serve(t *testing.T, handler grpc.StreamHandler) *grpc.ClientConn {
	t.Helper()
	return serveWith(t, nil, insecure.NewCredentials(), handler)
}

// serveWith is serve with credentials of the server and the client.
func serveWith(t *testing.T, theirs, ours credentials.TransportCredentials, handler grpc.StreamHandler) *grpc.ClientConn {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.Creds(Credentials(theirs)), grpc.InTapHandle(Tap), grpc.StaticStreamWindowSize(Window),
		grpc.ForceServerCodecV2(raw{}), grpc.MaxRecvMsgSize(1<<24), grpc.UnknownServiceHandler(handler))
	done := make(chan error, 1)
	go func() { done <- s.Serve(Limit(lis, Limits{PerAddress: 8, Pending: 8})) }()
	t.Cleanup(func() { s.Stop(); require.NoError(t, <-done) })
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(ours))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// call sends messages of the given lengths and returns the status of the call.
func call(ctx context.Context, conn *grpc.ClientConn, lengths ...int) error {
	pairs := []string{}
	for _, n := range lengths {
		pairs = append(pairs, "length", strconv.Itoa(n))
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, pairs...))
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/any/Method", grpc.ForceCodecV2(raw{}))
	if err != nil {
		return err
	}
	for _, n := range lengths {
		m := make([]byte, n)
		if err := stream.SendMsg(&m); err != nil {
			break // RecvMsg returns the reason
		}
	}
	_ = stream.CloseSend() // RecvMsg returns the reason
	var m []byte
	if err := stream.RecvMsg(&m); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// TestTapFindsTheStreamOfItsCall checks the assumption that leads from a call to its frames:
// grpc-go begins a call before it reads past the call's headers.
func TestTapFindsTheStreamOfItsCall(t *testing.T) {
	conn := serve(t, func(_ any, stream grpc.ServerStream) error {
		a := FromContext(stream.Context())
		if a == nil {
			return status.Error(codes.Internal, "the call is not watched")
		}
		if !From(stream.Context()).IsLoopback() {
			return status.Errorf(codes.Internal, "from %v", From(stream.Context()))
		}
		for _, want := range append(metadata.ValueFromIncomingContext(stream.Context(), "length"), "0") {
			n, err := a.Next(stream.Context(), 0)
			if err != nil {
				return err
			}
			sent, _ := strconv.ParseInt(want, 10, 64)
			if whole := n == 0 && sent < Window; n != sent && !whole {
				return status.Errorf(codes.Internal, "told of %d bytes, and %d come", n, sent)
			}
			var m []byte
			if err := stream.RecvMsg(&m); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if strconv.Itoa(len(m)) != want {
				return status.Errorf(codes.Internal, "%d bytes came, and %s were sent", len(m), want)
			}
		}
		return status.Error(codes.Internal, "more came than was sent")
	})
	var all errgroup.Group
	for n := range uint64(64) {
		all.Go(func() error {
			r := rand.New(rand.NewPCG(n, 5))
			for range 6 {
				lengths := make([]int, r.IntN(4))
				for i := range lengths {
					lengths[i] = []int{0, r.IntN(100), r.IntN(smallBytes + 1), smallBytes + 1 + r.IntN(1<<18)}[r.IntN(4)]
				}
				if err := call(t.Context(), conn, lengths...); err != nil {
					return fmt.Errorf("%v: %w", lengths, err)
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
}

// scripted is a connection that returns the given pieces.
type scripted struct {
	net.Conn
	pieces [][]byte
}

func (*scripted) SetReadDeadline(time.Time) error { return nil }

func (s *scripted) Read(p []byte) (int, error) {
	if len(s.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.pieces[0])
	if s.pieces[0] = s.pieces[0][n:]; len(s.pieces[0]) == 0 {
		s.pieces = s.pieces[1:]
	}
	return n, nil
}

func TestConnReadsUnchangedBytes(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 4))
		sent := written(t, r, 60)
		var pieces [][]byte
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), 1+r.IntN(500))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		settled := 0
		c := watch(&scripted{pieces: pieces}, true, func() { settled++ }, nil)
		var got bytes.Buffer
		for {
			if r.IntN(2) == 0 {
				b, n, err := c.ReadOnReady(1+r.IntN(300), mem.NopBufferPool{})
				if err != nil {
					require.ErrorIs(t, err, io.EOF)
					break
				}
				got.Write((*b)[:n])
				continue
			}
			p := make([]byte, 1+r.IntN(300))
			n, err := c.Read(p)
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
			got.Write(p[:n])
		}
		require.Equal(t, sent, got.Bytes())
		require.Equal(t, 1, settled)
	}
}

func TestConnForgetsEndedCalls(t *testing.T) {
	var to bytes.Buffer
	to.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&to, nil)
	for id := uint32(1); id < 10*sweepFrom; id += 2 {
		require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true}))
	}
	c := watch(&scripted{pieces: [][]byte{to.Bytes()}}, true, func() {}, nil)
	over := make(chan struct{})
	close(over)
	running := c.openStream(nil) // a call that has not ended
	for {
		if _, err := c.Read(make([]byte, 4096)); err != nil {
			break
		}
		c.openStream(over)
		require.LessOrEqual(t, len(c.streams), 2*sweepFrom)
	}
	require.Contains(t, c.streams, uint32(0))
	require.Same(t, running, c.streams[0])
}
