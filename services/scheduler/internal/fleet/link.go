package fleet

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// Link is one connection to one worker. Whoever sends requests over it holds it; it is closed when its health stream has
// ended and nobody holds it. Safe for concurrent use.
type Link struct {
	conn *grpc.ClientConn
	lost context.Context
	lose context.CancelCauseFunc
	// heard is whether anything came from the worker since it was last asked.
	heard atomic.Bool
	// watch counts silence for as long as the connection is open: a health stream may end before the requests beside it do.
	watch *silence
	// draining follows the worker's state.
	draining *draining
	// closed is called once, when the connection is.
	closed func()
	// incarnation of the worker at the other end; guarded by its member's mu, empty before the first report.
	incarnation string

	mu   sync.Mutex
	refs int // guarded by mu; the health stream's own and one a holder; the connection is open while > 0
}

// newLink makes a link with one holder. It is lost, with ErrStale, after a silence of stale.
func newLink(conn *grpc.ClientConn, stale time.Duration, closed func(*Link)) *Link {
	l := &Link{conn: conn, draining: newDraining(), refs: 1}
	l.closed = func() { closed(l) }
	l.lost, l.lose = context.WithCancelCause(context.Background())
	l.watch = watchSilence(stale, &l.heard, func() { l.lose(fmt.Errorf("%w for %v", ErrStale, stale)) })
	return l
}

// Acquire holds the link; false means that it is gone. A held link must be released.
func (l *Link) Acquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refs == 0 || l.lost.Err() != nil {
		return false
	}
	l.refs++
	return true
}

// Release gives the link back.
func (l *Link) Release() {
	l.mu.Lock()
	l.refs--
	last := l.refs == 0
	l.mu.Unlock()
	if last {
		l.watch.stop()
		l.lose(context.Canceled)
		_ = l.conn.Close() // only an error if closed twice
		l.closed()
	}
}

// Conn is the connection; use it only while holding the link.
func (l *Link) Conn() *grpc.ClientConn { return l.conn }

// Heard notes that something came from the worker: one that answers requests is not silent, though it may be too busy
// to report its health. It is cheap enough to be called for every message.
func (l *Link) Heard() {
	if !l.heard.Load() { // most calls: the cache line stays shared
		l.heard.Store(true)
	}
}

// Lost ends when the worker's messages have stopped: requests on this link must be given up. Its cause says why.
func (l *Link) Lost() context.Context { return l.lost }

// Draining ends when the worker begins to drain, by a Drain or because its process stops, and has ended while it does: requests
// on this link should go on elsewhere where they can. They are not lost meanwhile. After an Undrain it is another context.
func (l *Link) Draining() context.Context { return l.draining.now.Load() }
