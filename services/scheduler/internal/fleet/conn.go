package fleet

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// idleTicks is how long a connection beside the first stays open without a stream.
const idleTicks = 10 * staleTicks

// conn is one connection of a link.
type conn struct {
	*grpc.ClientConn
	streams atomic.Int64 // calls under way, the link's own aside
	watch   watch        // guarded by the link's mu, as idle is
	idle    int          // ticks without a stream

	asking   atomic.Bool
	answered atomic.Bool // since the last tick
	refused  atomic.Bool // since the last tick
}

// heard is whether the server gave a sign since the last tick. A connection that is refused says nothing of the streams on an
// earlier one of the same address, as those of a server that stops: then the worker's word is enough, while it reports.
func (c *conn) heard(reporting bool) bool {
	answered, refused := c.answered.Swap(false), c.refused.Swap(false)
	return answered || refused && reporting
}

// ask asks the server whether it is there, unless it is being asked. Any status that it gives is an answer.
func (c *conn) ask(lost context.Context) {
	if c.asking.Swap(true) {
		return
	}
	go func() {
		defer c.asking.Store(false)
		_, err := healthpb.NewHealthClient(c.ClientConn).Check(lost, &healthpb.HealthCheckRequest{})
		switch status.Code(err) {
		case codes.Canceled:
		case codes.Unavailable:
			c.refused.Store(true)
		default:
			c.answered.Store(true)
		}
	}()
}

// rest counts a tick without a stream.
func (c *conn) rest() {
	c.watch = watch{}
	c.idle++
}

func (c *conn) close() { _ = c.Close() } // only an error if closed twice

// closeIdle closes connections beside the first that have been idle for long, and returns the others.
func closeIdle(conns []*conn) []*conn {
	idle := func(c *conn) bool { return c.idle > idleTicks }
	if !slices.ContainsFunc(conns, idle) {
		return conns
	}
	kept := make([]*conn, 0, len(conns))
	for _, c := range conns {
		if idle(c) {
			c.close()
			continue
		}
		kept = append(kept, c)
	}
	return kept
}

// calls makes calls over the connections of a link.
type calls struct{ link *Link }

// Invoke implements grpc.ClientConnInterface.
func (c calls) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn := c.link.take()
	defer conn.streams.Add(-1)
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c calls) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn := c.link.take()
	ended := sync.OnceFunc(func() { conn.streams.Add(-1) })
	return conn.NewStream(ctx, desc, method, append(opts[:len(opts):len(opts)], grpc.OnFinish(func(error) { ended() }))...)
}

// take counts a call on the first connection that has room. Where none has, it opens another; where that fails, it takes the one
// with the fewest.
func (l *Link) take() *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	best := l.conns[0]
	for _, c := range l.conns {
		if c.streams.Load() < l.most {
			best = c
			break
		}
		if c.streams.Load() < best.streams.Load() {
			best = c
		}
	}
	if best.streams.Load() >= l.most {
		if cc, err := l.dial(); err == nil {
			best = &conn{ClientConn: cc}
			l.conns = append(l.conns, best)
		}
	}
	best.idle = 0
	best.streams.Add(1)
	return best
}
