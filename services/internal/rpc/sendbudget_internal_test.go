package rpc

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// testSendBudget returns the budget of a server with default configuration.
func testSendBudget() *sendBudget {
	return newSendBudget(&ServerConfig{MaxSendingBytes: DefaultMaxSendingBytes, SendStall: DefaultSendStall, Domain: WorkerDomain}, hclog.NewNullLogger())
}

// counted is a pool that counts returned buffers.
type counted struct{ back int }

func (c *counted) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (c *counted) Put(*[]byte)       { c.back++ }

func TestChunksCarryAndFreeTheMessage(t *testing.T) {
	for _, lengths := range [][]int{
		{1025}, {0, 1025}, {16 << 10}, {16<<10 + 1}, {16379, 16384, 5}, {700, 700, 700}, {5, 4 << 20, 0, 3}, {1 << 20},
	} {
		pool, data, want, released := &counted{}, mem.BufferSlice{}, []byte(nil), 0
		for i, n := range lengths {
			part := slices.Repeat([]byte{byte(i + 1)}, n)
			want = append(want, part...)
			part = slices.Grow(part, max(0, pooledBytes+1-n))
			data = append(data, mem.NewBuffer(&part, pool))
		}
		m, out := newInflight(data, func() { released++ })
		require.Equal(t, want, out.Materialize())
		r := out.Reader()
		out.Free()
		for r.Remaining() > 0 {
			require.Zero(t, released)
			n := min(16<<10, r.Remaining())
			_, err := r.Discard(n)
			require.NoError(t, err)
		}
		<-m.freed
		require.Equal(t, len(lengths), pool.back, "%v", lengths)
		require.Equal(t, 1, released)
		m.release()
		require.Equal(t, 1, released)
	}
}

func TestAwaitCountsFromTheLastChunk(t *testing.T) {
	for name, tc := range map[string]struct {
		crowd bool
		want  time.Duration // from the last chunk
	}{"nobody waits": {false, 30 * time.Second}, "others wait for its room": {true, contendedStall}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := testSendBudget().streamed
				release, ok := budget.TryAcquire(netip.Addr{}, budget.Max())
				require.True(t, ok)
				waits, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.crowd {
					go func() { _, _ = budget.Acquire(waits, netip.Addr{}, 1) }()
				}
				m, out := newInflight(mem.BufferSlice{mem.SliceBuffer(make([]byte, 4*chunkBytes))}, release)
				step := tc.want - time.Second
				go func() {
					for _, c := range out[:3] { // a slow caller
						time.Sleep(step)
						c.Free()
					}
				}()
				begun := time.Now()
				var still stallError
				require.ErrorAs(t, m.await(t.Context(), time.NewTimer(time.Hour), 30*time.Second, budget), &still)
				require.EqualValues(t, tc.want, still)
				require.Equal(t, 3*step+tc.want, time.Since(begun))
				out[3].Free()
				require.NoError(t, m.await(t.Context(), time.NewTimer(time.Hour), time.Second, budget))
			})
		})
	}
}

// forgetter ends a call whose message the transport dropped and never freed.
type forgetter struct {
	pb.UnimplementedInferenceServiceServer
	released chan time.Time
}

func (f forgetter) Tokenize(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
	if in.GetText() == "" {
		return &pb.TokenizeResponse{}, nil
	}
	c := callOf(ctx)
	m, _ := newInflight(mem.BufferSlice{mem.SliceBuffer(make([]byte, 2<<10))}, func() { f.released <- time.Now() })
	go c.sender.budget.dropStream(m, c.receiver, true)
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestForgottenMessageClosesNoConnection cancels while a message is handed to the transport, which
// makes grpc-go forget the message.
func TestForgottenMessageClosesNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, released := NewServer(ServerConfig{Domain: WorkerDomain}, hclog.NewNullLogger()), make(chan time.Time, 1)
		pb.RegisterInferenceServiceServer(s, forgetter{released: released})
		lis, served := bufconn.Listen(64<<10), make(chan error, 1)
		go func() { served <- s.grpc.Serve(lis) }()
		dials := 0
		conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { dials++; return lis.DialContext(ctx) }))
		require.NoError(t, err)
		c, begun := pb.NewInferenceServiceClient(conn), time.Now()
		_, err = c.Tokenize(t.Context(), &pb.TokenizeRequest{Input: &pb.TokenizeRequest_Text{Text: "x"}})
		require.Equal(t, codes.Internal, status.Code(err), "%v", err)
		require.Equal(t, dropTime, (<-released).Sub(begun))
		time.Sleep(time.Minute)
		_, err = c.Tokenize(t.Context(), &pb.TokenizeRequest{})
		require.NoError(t, err)
		require.Equal(t, 1, dials)
		require.NoError(t, conn.Close())
		s.grpc.Stop()
		require.NoError(t, <-served)
	})
}
