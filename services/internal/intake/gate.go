package intake

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
)

// maxLine bounds how many wait for room: what each has sent stays in its stream's window, 64 KiB at most.
const maxLine = 2048

// ErrCrowded says that as many wait for room as may.
var ErrCrowded = errors.New("too many messages wait to be received")

// Gate is the room for messages that are being received, or sent. Who finds none waits in line, which goes by turns among addresses:
// the one that has least inside is next, and among equals who came first. Safe for concurrent use. Invariant: used <= max.
type Gate struct {
	max         int64
	share       int64 // what one address may have inside, unless it has nothing inside; 0: all of it
	mostWaiting int64 // bytes of messages that wait in memory; 0: those in line are not in memory

	mu     sync.Mutex
	used   int64                // guarded by mu
	inside map[netip.Addr]int64 // guarded by mu; of used, by address
	line   []*waiter            // guarded by mu; in the order of their coming
	queued int64                // guarded by mu; bytes of those in line
}

// waiter is one in line.
type waiter struct {
	from  netip.Addr
	bytes int64
	in    chan struct{} // closed when it is inside
}

// NewGate is a gate with room for so many bytes.
func NewGate(bytes int64) *Gate { return &Gate{max: bytes, inside: map[netip.Addr]int64{}} }

// NewSendGate is a gate for messages that are in memory while they wait. One address gets half of the room, or one message. No more
// than waiting bytes are in line, or one message.
func NewSendGate(bytes, waiting int64) *Gate {
	return &Gate{max: bytes, share: bytes / 2, mostWaiting: waiting, inside: map[netip.Addr]int64{}}
}

// TryEnter is Enter without waiting. ok reports whether there was room and no message waited.
func (g *Gate) TryEnter(from netip.Addr, bytes int64) (leave func(), ok bool) {
	w := &waiter{from: from, bytes: min(bytes, g.max)}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.line) > 0 || !g.fitsLocked(w) {
		return nil, false
	}
	g.enterLocked(w)
	return func() { g.leave(w) }, true
}

// Enter waits for room for a message from an address. leave gives it back, once. A message of more bytes than the whole room takes
// all of it. The error is ErrCrowded, or that of ctx.
func (g *Gate) Enter(ctx context.Context, from netip.Addr, bytes int64) (leave func(), err error) {
	w := &waiter{from: from, bytes: min(bytes, g.max), in: make(chan struct{})}
	g.mu.Lock()
	if len(g.line) >= maxLine {
		g.mu.Unlock()
		return nil, ErrCrowded
	}
	g.line = append(g.line, w)
	g.queued += w.bytes
	g.admitLocked()
	if last := len(g.line) - 1; g.mostWaiting > 0 && g.queued > g.mostWaiting && last > 0 && g.line[last] == w {
		g.line = g.line[:last]
		g.queued -= w.bytes
		g.mu.Unlock()
		return nil, ErrCrowded
	}
	g.mu.Unlock()
	select {
	case <-w.in:
	case <-ctx.Done():
		if g.giveUp(w) {
			return nil, ctx.Err()
		}
	}
	return func() { g.leave(w) }, nil
}

// giveUp takes one out of line, unless it is inside.
func (g *Gate) giveUp(w *waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := slices.Index(g.line, w)
	if at < 0 {
		return false
	}
	g.line = slices.Delete(g.line, at, at+1)
	g.queued -= w.bytes
	g.admitLocked()
	return true
}

func (g *Gate) leave(w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used -= w.bytes
	if g.inside[w.from] -= w.bytes; g.inside[w.from] == 0 {
		delete(g.inside, w.from)
	}
	g.admitLocked()
}

// admitLocked lets in whoever is next, as long as there is room for it.
func (g *Gate) admitLocked() {
	for {
		next := -1
		var full map[netip.Addr]bool // addresses whose share the first of theirs in line does not fit
		for i, w := range g.line {
			switch {
			case full[w.from]:
			case !g.sharesLocked(w):
				if full == nil {
					full = map[netip.Addr]bool{}
				}
				full[w.from] = true
			case next < 0 || g.inside[w.from] < g.inside[g.line[next].from]:
				next = i
			}
		}
		if next < 0 || !g.fitsLocked(g.line[next]) {
			return
		}
		w := g.line[next]
		g.line = slices.Delete(g.line, next, next+1)
		g.queued -= w.bytes
		g.enterLocked(w)
		close(w.in)
	}
}

// sharesLocked reports whether a message stays within the share of its address.
func (g *Gate) sharesLocked(w *waiter) bool {
	return g.share == 0 || g.inside[w.from] == 0 || g.inside[w.from]+w.bytes <= g.share
}

// fitsLocked reports whether there is room for a message.
func (g *Gate) fitsLocked(w *waiter) bool { return w.bytes <= g.max-g.used && g.sharesLocked(w) }

func (g *Gate) enterLocked(w *waiter) {
	g.used += w.bytes
	g.inside[w.from] += w.bytes
}

// Used is how many bytes are inside.
func (g *Gate) Used() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.used
}

// Max is how many may be.
func (g *Gate) Max() int64 { return g.max }

// Waiting is how many are in line.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.line)
}
