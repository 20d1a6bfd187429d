package fleet_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// crowded returns a worker whose connections carry two calls each, and a link to it that is held.
// dialled counts connections, also closed ones.
func crowded(t *testing.T) (link *fleet.Link, p *workertest.Process, dialled *atomic.Int64, release chan struct{}) {
	t.Helper()
	n, w := workertest.NewNet(), workertest.New("w1", "i1", "m")
	release, dialled = make(chan struct{}), &atomic.Int64{}
	w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if err := stream.Send(workertest.Started("w1")); err != nil {
			return err
		}
		select {
		case <-release:
		case <-stream.Context().Done():
		}
		return stream.Context().Err()
	}
	p = n.Start(t, "a:1", w)
	f := follow(t, n, func(c *fleet.Config) {
		c.StreamsPerConn = 2
		c.Dial = func(address string) (*grpc.ClientConn, error) {
			dialled.Add(1)
			return n.Dial(address)
		}
	}, "a:1")
	link = until(t, f, connected(1)).Members[0].Link
	require.True(t, link.Acquire())
	t.Cleanup(link.Release)
	return link, p, dialled, release
}

// generate begins a call over a link and waits for its first event.
func generate(ctx context.Context, t *testing.T, link *fleet.Link) grpc.ServerStreamingClient[pb.GenerateResponse] {
	t.Helper()
	stream, err := pb.NewInferenceServiceClient(link.Conn()).Generate(ctx, &pb.GenerateRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	return stream
}

func TestFullConnectionOpensAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		link, _, dialled, release := crowded(t)
		ctx, cancel := context.WithTimeout(t.Context(), hang)
		defer cancel()
		var streams []grpc.ServerStreamingClient[pb.GenerateResponse]
		for i := range 7 {
			streams = append(streams, generate(ctx, t, link))
			require.EqualValues(t, i/2+1, dialled.Load(), "connections of %d calls", i+1)
		}
		time.Sleep(900 * time.Millisecond) // three times as long as a worker may be silent: its calls send nothing
		require.NoError(t, link.Lost().Err(), "each connection is answered")
		close(release)
		for _, stream := range streams {
			_, err := stream.Recv()
			require.Error(t, err)
		}
		// Calls that have ended make room, on the first connection first.
		for range 2 {
			one, end := context.WithCancel(ctx)
			generate(one, t, link)
			end()
		}
		require.EqualValues(t, 4, dialled.Load())
	})
}

func TestFrozenWorkerIsLostOnEveryConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		link, p, _, _ := crowded(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 5 {
			generate(ctx, t, link)
		}
		p.Freeze()
		require.ErrorIs(t, lost(t, link), fleet.ErrStale)
	})
}

func TestHalfOpenConnectionIsDetected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		link, p, dialled, _ := crowded(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 3 {
			generate(ctx, t, link)
		}
		require.EqualValues(t, 2, dialled.Load())
		p.CutOff(1)
		require.ErrorIs(t, lost(t, link), fleet.ErrStale)
	})
}

func TestHalfOpenHealthStreamIsDetected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		link, p, _, _ := crowded(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 3 {
			generate(ctx, t, link)
		}
		p.CutOff(0)
		guard := time.After(hang)
		for link.Lost().Err() == nil {
			link.Heard()
			select {
			case <-time.After(time.Millisecond):
			case <-guard:
				require.FailNow(t, "the link was not lost")
			}
		}
		require.ErrorIs(t, lost(t, link), fleet.ErrStale)
	})
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		link, p, _, _ := crowded(t)
		ctx, cancel := context.WithCancel(t.Context())
		for range 7 {
			generate(ctx, t, link)
		}
		require.Equal(t, 4, p.Connections())
		cancel()
		require.Eventually(t, func() bool { return p.Connections() == 1 }, hang, time.Millisecond)
		require.NoError(t, link.Lost().Err())
	})
}
