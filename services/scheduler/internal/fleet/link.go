package fleet

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// Link is the way to one run of a worker, over one connection or several. Whoever sends requests over it holds it; it is closed
// when its health stream has ended and nobody holds it. Safe for concurrent use.
type Link struct {
	first *grpc.ClientConn // of the health stream
	dial  func() (*grpc.ClientConn, error)
	most  int64 // streams on a connection before another is opened
	stale time.Duration
	lost  context.Context
	lose  context.CancelCauseFunc
	// reported and heard are whether a health message came from the worker, and whether a frame was read, since the last tick.
	reported, heard atomic.Bool
	// patience is how many ticks the worker may be silent.
	patience atomic.Int32
	// reporting is whether the first connection has a health stream.
	reporting atomic.Bool
	// served is told what answers say that they are of.
	served func(model, digest string)
	// closed is called once, when the connections are.
	closed func()
	// incarnation of the worker at the other end; guarded by its member's mu, empty before the first report.
	incarnation string
	drains      drains

	mu    sync.Mutex
	quiet watch   // guarded by mu; of the worker, while it reports
	refs  int     // guarded by mu; the health stream's own and one a holder; the connections are open while > 0
	conns []*conn // guarded by mu; the first is over first
	// read and answered are whether a frame was read, and whether its server answered, since the worker's last word.
	read, answered bool // guarded by mu
}

// newLink makes a link with one holder and the connection of its health stream. dial opens more.
func newLink(first *grpc.ClientConn, dial func() (*grpc.ClientConn, error), cfg Config) *Link {
	l := &Link{
		first: first, dial: dial, most: cfg.StreamsPerConn, stale: cfg.Stale, refs: 1,
		conns: []*conn{{ClientConn: first}}, served: func(string, string) {}, closed: func() {},
	}
	l.lost, l.lose = context.WithCancelCause(context.Background())
	l.patience.Store(staleTicks)
	l.reporting.Store(true)
	return l
}

// Acquire holds the link; false means that it is gone, or that nobody reports over it any more. A held link must be released.
func (l *Link) Acquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refs == 0 || !l.Reports() {
		return false
	}
	l.refs++
	return true
}

// Reports is whether the worker reports over the link: a snapshot may be older than the end of that.
func (l *Link) Reports() bool { return l.reporting.Load() && l.lost.Err() == nil }

// Release gives the link back.
func (l *Link) Release() {
	l.mu.Lock()
	l.refs--
	last := l.refs == 0
	conns := l.conns
	l.mu.Unlock()
	if last {
		l.lose(context.Canceled)
		for _, c := range conns {
			c.close()
		}
		l.closed()
	}
}

// Conn is where calls to the worker are made; use it only while holding the link. Each call takes the first connection that has
// room, and opens another where none has.
func (l *Link) Conn() grpc.ClientConnInterface { return calls{l} }

// Heard notes that a frame of the worker was read: with a server that answers, it speaks for a worker that is too busy to report its
// health. It is cheap enough to be called for every message.
func (l *Link) Heard() {
	if !l.heard.Load() { // most calls: the cache line stays shared
		l.heard.Store(true)
	}
}

// Served notes which model an answer of the worker says that it is of. A worker that serves what it does not report is refused.
func (l *Link) Served(model, digest string) { l.served(model, digest) }

// Lost ends when requests on this link must be given up. Its cause says why: ErrStale, the worker is silent; ErrStalled, its
// engine hangs; ErrDigest, it computes with another model than it says.
func (l *Link) Lost() context.Context { return l.lost }

// tick is called once a tick while anybody holds the link: it gives up a worker, or a way to it, that is silent. A health message says
// that the worker is there. A frame says so together with an answer of its server, both since its last word: alone it may have lain here
// since before the worker froze, for as long as its reader is slow. Where there are several connections, or one that has no health stream any more, each is
// watched for itself as well: a frame does not say over which it came.
func (l *Link) tick() {
	if l.lost.Err() != nil {
		return
	}
	most, reporting := int(l.patience.Load()), l.reporting.Load()
	reported, heard := l.reported.Swap(false), l.heard.Swap(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.conns[0]
	answered := first.heard(reporting)
	if reporting {
		l.read, l.answered = l.read || heard, l.answered || answered
		word := reported || l.read && l.answered
		if word {
			l.read, l.answered = false, false
		}
		ask, lost := l.quiet.tick(word, most)
		if lost {
			l.giveUp(most)
			return
		}
		if ask {
			first.ask(l.lost)
		}
		if len(l.conns) == 1 {
			first.watch = l.quiet // it is the whole way: should its health stream end, the silence goes on
			return
		}
	}
	for i, c := range l.conns {
		if i > 0 && c.streams.Load() == 0 {
			c.rest()
			continue
		}
		word := answered || reported
		if i > 0 {
			word = c.heard(reporting)
		}
		ask, lost := c.watch.tick(word, most)
		if lost {
			l.giveUp(most)
			return
		}
		if ask {
			c.ask(l.lost)
		}
	}
	l.conns = closeIdle(l.conns)
}

// giveUp loses the link for a silence of so many ticks.
func (l *Link) giveUp(ticks int) {
	silent := l.stale * time.Duration(ticks) / staleTicks
	l.lose(fmt.Errorf("%w for %v", ErrStale, silent.Round(time.Millisecond)))
}
