package ingress

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
)

// maxQueue bounds the messages that wait. The bytes of each that have arrived stay in the
// flow-control window of its stream, 64 KiB at most.
const maxQueue = 2048

// ErrQueueFull reports that as many messages wait as may.
var ErrQueueFull = errors.New("too many messages wait to be received")

// Budget bounds the bytes of messages that are being received or sent. A message that does not fit
// waits in a queue. The next one admitted belongs to the address with the fewest bytes inside;
// between equal addresses the order is that of arrival. Budget is safe for concurrent use.
//
// Invariant: used <= max.
type Budget struct {
	max            int64
	share          int64 // bytes that one address may hold, one message aside; 0: no bound
	maxQueuedBytes int64 // bound of queuedBytes; 0: none, because queued messages are not in memory

	mu          sync.Mutex
	used        int64                // guarded by mu
	byAddress   map[netip.Addr]int64 // guarded by mu; the part of used that each address holds
	queue       []*waiter            // guarded by mu; oldest first
	queuedBytes int64                // guarded by mu; sum of the queue
}

// waiter is a message in the queue.
type waiter struct {
	from     netip.Addr
	bytes    int64
	admitted chan struct{} // closed when it is admitted
}

// NewBudget returns a budget of the given size.
func NewBudget(bytes int64) *Budget { return &Budget{max: bytes, byAddress: map[netip.Addr]int64{}} }

// NewSendBudget returns a budget for messages that are in memory while they wait. One address may
// hold half of it, or one message. At most waiting bytes are queued, or one message.
func NewSendBudget(bytes, waiting int64) *Budget {
	return &Budget{max: bytes, share: bytes / 2, maxQueuedBytes: waiting, byAddress: map[netip.Addr]int64{}}
}

// TryAcquire is Acquire without waiting. ok reports whether the message fits and the queue is
// empty.
func (b *Budget) TryAcquire(from netip.Addr, bytes int64) (release func(), ok bool) {
	w := &waiter{from: from, bytes: min(bytes, b.max)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) > 0 || !b.fitsLocked(w) {
		return nil, false
	}
	b.acquireLocked(w)
	return func() { b.release(w) }, true
}

// Acquire reserves the bytes of a message from an address, and waits until they fit. The caller
// must call release once. A message larger than the budget takes all of it. The error is
// ErrQueueFull or that of ctx.
func (b *Budget) Acquire(ctx context.Context, from netip.Addr, bytes int64) (release func(), err error) {
	w := &waiter{from: from, bytes: min(bytes, b.max), admitted: make(chan struct{})}
	b.mu.Lock()
	if len(b.queue) >= maxQueue {
		b.mu.Unlock()
		return nil, ErrQueueFull
	}
	b.queue = append(b.queue, w)
	b.queuedBytes += w.bytes
	b.admitLocked()
	if last := len(b.queue) - 1; b.maxQueuedBytes > 0 && b.queuedBytes > b.maxQueuedBytes && last > 0 && b.queue[last] == w {
		b.queue = b.queue[:last]
		b.queuedBytes -= w.bytes
		b.mu.Unlock()
		return nil, ErrQueueFull
	}
	b.mu.Unlock()
	select {
	case <-w.admitted:
	case <-ctx.Done():
		if b.abandon(w) {
			return nil, ctx.Err()
		}
	}
	return func() { b.release(w) }, nil
}

// abandon removes a message from the queue. It returns false if the message is admitted already.
func (b *Budget) abandon(w *waiter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.queue, w)
	if i < 0 {
		return false
	}
	b.queue = slices.Delete(b.queue, i, i+1)
	b.queuedBytes -= w.bytes
	b.admitLocked()
	return true
}

func (b *Budget) release(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= w.bytes
	if b.byAddress[w.from] -= w.bytes; b.byAddress[w.from] == 0 {
		delete(b.byAddress, w.from)
	}
	b.admitLocked()
}

// admitLocked admits messages while the next one fits.
func (b *Budget) admitLocked() {
	for {
		next := -1
		var full map[netip.Addr]bool // addresses whose oldest queued message exceeds their share
		for i, w := range b.queue {
			switch {
			case full[w.from]:
			case !b.withinShareLocked(w):
				if full == nil {
					full = map[netip.Addr]bool{}
				}
				full[w.from] = true
			case next < 0 || b.byAddress[w.from] < b.byAddress[b.queue[next].from]:
				next = i
			}
		}
		if next < 0 || !b.fitsLocked(b.queue[next]) {
			return
		}
		w := b.queue[next]
		b.queue = slices.Delete(b.queue, next, next+1)
		b.queuedBytes -= w.bytes
		b.acquireLocked(w)
		close(w.admitted)
	}
}

// withinShareLocked reports whether a message stays within the share of its address.
func (b *Budget) withinShareLocked(w *waiter) bool {
	return b.share == 0 || b.byAddress[w.from] == 0 || b.byAddress[w.from]+w.bytes <= b.share
}

// fitsLocked reports whether a message fits now.
func (b *Budget) fitsLocked(w *waiter) bool { return w.bytes <= b.max-b.used && b.withinShareLocked(w) }

func (b *Budget) acquireLocked(w *waiter) {
	b.used += w.bytes
	b.byAddress[w.from] += w.bytes
}

// Used returns the bytes that are reserved.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Max returns the size of the budget.
func (b *Budget) Max() int64 { return b.max }

// Waiting returns the length of the queue.
func (b *Budget) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}
