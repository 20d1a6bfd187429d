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

// Gate is the room for messages that are being received. Who finds none waits in line, which goes by turns among addresses: the one
// that has least inside is next, and among equals who came first. Safe for concurrent use. Invariant: used <= max.
type Gate struct {
	max int64

	mu     sync.Mutex
	used   int64                // guarded by mu
	inside map[netip.Addr]int64 // guarded by mu; of used, by address
	line   []*waiter            // guarded by mu; in the order of their coming
}

// waiter is one in line.
type waiter struct {
	from  netip.Addr
	bytes int64
	in    chan struct{} // closed when it is inside
}

// NewGate is a gate with room for so many bytes.
func NewGate(bytes int64) *Gate { return &Gate{max: bytes, inside: map[netip.Addr]int64{}} }

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
	g.admitLocked()
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
	for len(g.line) > 0 {
		next := 0
		for i, w := range g.line {
			if g.inside[w.from] < g.inside[g.line[next].from] {
				next = i
			}
		}
		w := g.line[next]
		if w.bytes > g.max-g.used {
			return
		}
		g.line = slices.Delete(g.line, next, next+1)
		g.used += w.bytes
		g.inside[w.from] += w.bytes
		close(w.in)
	}
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
