package e2e

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

func TestAClientThatDisappearsFreesItsSequences(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	for name, on := range map[string]*server{"direct": w, "through the scheduler": s} {
		var mu sync.Mutex
		var sockets []net.Conn
		conn := dial(t, on.address, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", address)
			mu.Lock()
			defer mu.Unlock()
			sockets = append(sockets, c)
			return c, err
		}))
		for range 10 {
			_, err := begin(within(t), pb.NewInferenceServiceClient(conn), endless())
			require.NoError(t, err)
		}
		w.untilLoad(t, "all run", func(load *pb.LoadStatus) bool { return load.GetRunning() == 10 })
		mu.Lock()
		require.Len(t, sockets, 1)
		// Reset instead of closed, as if its process had been killed with data unread.
		require.NoError(t, sockets[0].(*net.TCPConn).SetLinger(0))
		require.NoError(t, sockets[0].Close())
		mu.Unlock()
		gone := time.Now()
		w.untilIdle(t)
		t.Logf("%s: 10 sequences freed %v after the client was gone", name, time.Since(gone))
		good(t, on, long)
	}
}

func TestAnExpiredRequestComesBackWithItsUsage(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	for name, on := range map[string]*server{"direct": w, "through the scheduler": s} {
		// The server ends a call 50 ms before its deadline. On a busy machine the client's own
		// clock may be first; it returns the same code without usage, so the test tries again.
		var trailer []string
		for try := 0; try < 20 && len(trailer) == 0; try++ {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			c, err := begin(ctx, on.infer, endless())
			if err == nil {
				o := c.end()
				err, trailer = o.err, c.stream.Trailer().Get(rpc.UsageTrailer)
				if len(trailer) > 0 {
					require.Equal(t, fault{codes.DeadlineExceeded, rpc.WorkerDomain, reason.DeadlineExceeded}, faultOf(o.err))
					usage := &pb.Usage{}
					require.NoError(t, proto.Unmarshal([]byte(trailer[0]), usage))
					require.Equal(t, o.started.GetPromptTokens(), usage.GetPromptTokens())
					require.EqualValues(t, len(o.ids), usage.GetCompletionTokens(), "%s: the delivered tokens are counted", name)
				}
			}
			require.Equal(t, codes.DeadlineExceeded, faultOf(err).code, "%s: %v", name, err)
			cancel()
		}
		require.Len(t, trailer, 1, name)
		w.untilIdle(t)
	}
}
