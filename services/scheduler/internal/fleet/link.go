package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Link is the way to one run of a worker, over one or more connections. A caller must hold it while
// it has requests on it. It is closed once its health stream has ended and no caller holds it. It
// is safe for concurrent use.
type Link struct {
	first *grpc.ClientConn // of the health stream
	dial  func() (*grpc.ClientConn, error)
	most  int64 // streams on a connection before another one is opened
	stale time.Duration
	lost  context.Context
	lose  context.CancelCauseFunc
	// Since the last tick: whether a health message arrived, and whether a frame was read.
	reported, heard atomic.Bool
	// patience is how many ticks the worker may be silent.
	patience atomic.Int32
	// reporting is whether the first connection has a health stream.
	reporting atomic.Bool
	// onDigest receives the digests that answers state.
	onDigest func(model, digest string)
	// onClose is called once, when the connections are closed.
	onClose func()
	// incarnation is the worker's; empty before its first report. The member's mutex guards it.
	incarnation string
	drain       drainNotifier

	mu struct {
		sync.Mutex
		silence silenceDetector // of the worker, while it reports
		refs    int             // the health stream's, and one for each holder; connections are open while > 0
		conns   []*conn         // the first one is over first
		// Since the worker last proved that it is alive: whether a frame was read, and whether its server
		// answered.
		read, answered bool
	}
}

// newLink returns a link with one holder and the connection of its health stream. dial opens
// others.
func newLink(first *grpc.ClientConn, dial func() (*grpc.ClientConn, error), cfg Config) *Link {
	l := &Link{
		first: first, dial: dial, most: cfg.StreamsPerConn, stale: cfg.Stale,
		onDigest: func(string, string) {}, onClose: func() {},
	}
	l.mu.refs, l.mu.conns = 1, []*conn{{ClientConn: first}}
	l.lost, l.lose = context.WithCancelCause(context.Background())
	l.patience.Store(staleTicks)
	l.reporting.Store(true)
	return l
}

// Acquire holds the link. It returns false if the link is closed, or if the worker does not report
// over it any more. A link that is held must be released.
func (l *Link) Acquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.refs == 0 || !l.Reports() {
		return false
	}
	l.mu.refs++
	return true
}

// Reports reports whether the worker reports over the link. A snapshot may be older than the end of
// that.
func (l *Link) Reports() bool { return l.reporting.Load() && l.lost.Err() == nil }

// Release releases the link.
func (l *Link) Release() {
	l.mu.Lock()
	l.mu.refs--
	last := l.mu.refs == 0
	conns := l.mu.conns
	l.mu.Unlock()
	if last {
		l.lose(context.Canceled)
		for _, c := range conns {
			c.close()
		}
		l.onClose()
	}
}

// Conn returns a connection for calls to the worker, which must only be used while the link is
// held. Each call uses the first connection that has room; if none has, another one is opened.
func (l *Link) Conn() grpc.ClientConnInterface { return calls{l} }

// Heard records that a frame of the worker was read. Together with an answer of its server, a frame
// proves that a worker is alive that is too busy to report its health. Heard may be called for
// every message.
func (l *Link) Heard() {
	if !l.heard.Load() { // false only once a tick, so that the cache line stays shared
		l.heard.Store(true)
	}
}

// ObserveDigest records which model an answer of the worker states. A worker that serves another
// model than it reports is refused.
func (l *Link) ObserveDigest(model, digest string) { l.onDigest(model, digest) }

// OnDrain calls f on its own goroutine each time that the worker begins to drain, and now if it
// drains. The worker's requests should then move to others. stop ends that, but does not wait for
// calls of f.
func (l *Link) OnDrain(f func()) (stop func()) { return l.drain.listen(f) }

// Lost returns a context that ends when the requests on this link must be given up. Its cause is
// ErrStale (the worker is silent), ErrStalled (its engine hangs) or ErrDigest (it computes with
// another model than it reports).
func (l *Link) Lost() context.Context { return l.lost }

// tick must be called once a tick while the link is held. It gives up a worker, or a connection to
// it, that is silent.
//
// A health message proves that the worker is alive. A frame does so only together with an answer of
// its server, both since the last proof: a frame alone may have been buffered here since before the
// worker froze, for as long as its reader is slow. If there are several connections, or one without
// a health stream, each is watched separately as well, because a frame does not say over which one
// it came.
func (l *Link) tick() {
	if l.lost.Err() != nil {
		return
	}
	most, reporting := int(l.patience.Load()), l.reporting.Load()
	reported, heard := l.reported.Swap(false), l.heard.Swap(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.mu.conns[0]
	answered := first.heard(reporting)
	if reporting {
		l.mu.read, l.mu.answered = l.mu.read || heard, l.mu.answered || answered
		alive := reported || l.mu.read && l.mu.answered
		if alive {
			l.mu.read, l.mu.answered = false, false
		}
		ask, lost := l.mu.silence.tick(alive, most)
		if lost {
			l.giveUp(most)
			return
		}
		if ask {
			first.ask(l.lost)
		}
		if len(l.mu.conns) == 1 {
			first.silence = l.mu.silence // it is the only connection: if its health stream ends, the silence goes on
			return
		}
	}
	for i, c := range l.mu.conns {
		if i > 0 && c.streams.Load() == 0 {
			c.tickIdle()
			continue
		}
		alive := answered || reported
		if i > 0 {
			alive = c.heard(reporting)
		}
		ask, lost := c.silence.tick(alive, most)
		if lost {
			l.giveUp(most)
			return
		}
		if ask {
			c.ask(l.lost)
		}
	}
	l.mu.conns = closeIdle(l.mu.conns)
}

// giveUp loses the link after a silence of a number of ticks.
func (l *Link) giveUp(ticks int) {
	silent := l.stale * time.Duration(ticks) / staleTicks
	l.lose(fmt.Errorf("%w for %v", ErrStale, silent.Round(time.Millisecond)))
}

// calls makes calls over the connections of a link.
type calls struct{ link *Link }

// Invoke implements grpc.ClientConnInterface.
func (c calls) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn := c.link.pickConn()
	defer conn.streams.Add(-1)
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c calls) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn := c.link.pickConn()
	ended := sync.OnceFunc(func() { conn.streams.Add(-1) })
	return conn.NewStream(ctx, desc, method, append(opts[:len(opts):len(opts)], grpc.OnFinish(func(error) { ended() }))...)
}

// pickConn counts a call on the first connection that has room. If none has, it opens another one.
// If that fails, it uses the one with the fewest calls.
func (l *Link) pickConn() *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	best := l.mu.conns[0]
	for _, c := range l.mu.conns {
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
			l.mu.conns = append(l.mu.conns, best)
		}
	}
	best.idle = 0
	best.streams.Add(1)
	return best
}

// idleTicks is how long an additional connection stays open without a stream.
const idleTicks = 10 * staleTicks

// conn is one connection of a link.
type conn struct {
	*grpc.ClientConn
	streams atomic.Int64    // calls in flight, without the link's own
	silence silenceDetector // guarded by the link's mutex, as idle is
	idle    int             // ticks without a stream

	asking   atomic.Bool
	answered atomic.Bool // since the last tick
	refused  atomic.Bool // since the last tick
}

// heard reports whether the server has answered since the last tick. If a new connection is
// refused, the streams of an earlier one to the same address may still run, for example on a server
// that stops. Then the worker's health messages are enough, as long as it reports.
func (c *conn) heard(reporting bool) bool {
	answered, refused := c.answered.Swap(false), c.refused.Swap(false)
	return answered || refused && reporting
}

// ask sends a health check to the server, unless one is pending. Any status from the server is an
// answer.
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

// tickIdle counts a tick without a stream.
func (c *conn) tickIdle() {
	c.silence = silenceDetector{}
	c.idle++
}

func (c *conn) close() { _ = c.Close() } // returns an error only if it was closed before

// closeIdle closes additional connections that have been idle for long, and returns the others.
func closeIdle(conns []*conn) []*conn {
	idle := func(c *conn) bool { return c.idle > idleTicks }
	if !slices.ContainsFunc(conns, idle) {
		return conns
	}
	open := make([]*conn, 0, len(conns))
	for _, c := range conns {
		if idle(c) {
			c.close()
			continue
		}
		open = append(open, c)
	}
	return open
}

const (
	// staleTicks is how many ticks in a row must pass without a message before a worker is given
	// up. One long tick would also count time in which this process itself got no processor while
	// messages lay in its sockets; with several, these messages are read between the ticks.
	staleTicks = 7
	// slowTicks is the same for a worker that declares a step bound longer than Config.Stale: its
	// machine is slow or shared, and its heartbeats may be as late as its steps.
	slowTicks = 10
	// askTicks is the silence after which the server of a connection is sent a health check.
	askTicks = 2
)

// patience returns how many ticks a worker may be silent that declares a bound for its steps.
func patience(bound, stale time.Duration) int {
	tick := stale / staleTicks
	return int(min(max((bound+tick-1)/tick, staleTicks), slowTicks))
}

// silenceDetector counts consecutive ticks without a message. It has no clock; the caller invokes
// tick.
type silenceDetector struct{ silent int }

// tick counts a tick; heard says whether a message arrived since the last one. ask reports that the
// server should be sent a health check, lost that more than most ticks have passed in silence. The
// first tick after a message does not count, because it is not a whole one.
func (s *silenceDetector) tick(heard bool, most int) (ask, lost bool) {
	if heard {
		s.silent = 0
	}
	s.silent++
	return s.silent > askTicks, s.silent > most
}

// drainNotifier calls listeners each time that a worker begins to drain. It is safe for concurrent
// use. The zero value is that of a worker that does not drain.
type drainNotifier struct {
	mu struct {
		sync.Mutex
		draining  bool
		listeners map[*func()]struct{}
	}
}

// listen calls f on its own goroutine each time that the worker begins to drain, and now if it
// drains, until stop is called.
func (d *drainNotifier) listen(f func()) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.listeners == nil {
		d.mu.listeners = map[*func()]struct{}{}
	}
	d.mu.listeners[&f] = struct{}{}
	if d.mu.draining {
		go f()
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.mu.listeners, &f)
	}
}

// set sets whether the worker drains.
func (d *drainNotifier) set(draining bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if draining && !d.mu.draining {
		for f := range d.mu.listeners {
			go (*f)()
		}
	}
	d.mu.draining = draining
}
