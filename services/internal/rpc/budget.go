package rpc

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/services/internal/reason"
)

const (
	// DefaultMaxWaitingBytes bounds the requests that handlers hold: sixteen of the largest, or sixteen thousand of 16 KiB.
	DefaultMaxWaitingBytes = 16 * DefaultMaxReceiveBytes
	// uncountedBytes is the size up to which a request is always taken: it is no more than the rest of its call, and the
	// probes of health must come through to a server that is full.
	uncountedBytes = 4 << 10
	// waitingRetry is what a caller is told to wait.
	waitingRetry = time.Second
)

// budget counts the bytes of requests that have been received and are still held: they wait for their turn in queues that
// count requests, and a request may be large. Safe for concurrent use. Invariant: used <= max.
type budget struct {
	max  int64
	used atomic.Int64
}

// take counts bytes if they fit; used is how many are counted without them.
func (b *budget) take(bytes int64) (used int64, ok bool) {
	for {
		used = b.used.Load()
		if bytes > b.max-used {
			return used, false
		}
		if b.used.CompareAndSwap(used, used+bytes) {
			return used, true
		}
	}
}

// hold counts a request that the call has received, in place of the one before, or refuses it. One that takes more than the
// whole budget when decoded counts as all of it: a server that holds nothing else takes any.
func (c *call) hold(m any, domain string) error {
	c.letGo()
	bytes := min(sizeOf(m), c.waiting.max)
	if bytes <= uncountedBytes {
		return nil
	}
	return c.take("request", bytes, domain)
}

// take counts bytes of a request or response with those that the call holds, or refuses them.
func (c *call) take(what string, bytes int64, domain string) error {
	used, ok := c.waiting.take(bytes)
	if !ok {
		return Fault{
			Code: codes.ResourceExhausted, Domain: domain, Reason: reason.TooManyBytesWaiting, RetryAfter: waitingRetry,
			Message: fmt.Sprintf("the %s takes %d bytes, requests of %d bytes wait on this server and it holds %d at most: "+
				"try again later, or send less", what, bytes, used, c.waiting.max),
			Metadata: map[string]string{"bytes": strconv.FormatInt(bytes, 10), "waiting_bytes": strconv.FormatInt(used, 10),
				"max_waiting_bytes": strconv.FormatInt(c.waiting.max, 10)},
		}.Err()
	}
	c.held.Add(bytes)
	if c.over.Load() { // a goroutine that the handler has left behind received it
		c.letGo()
	}
	return nil
}

// HoldResponse counts the memory of the response that the handler of ctx's call is about to make, until LetGo or the end of the
// call, or returns the status that refuses it. A server that holds nothing else takes any. Outside a handler it does nothing.
func HoldResponse(ctx context.Context, bytes int64, domain string) error {
	c := callOf(ctx)
	if c == nil || bytes <= uncountedBytes {
		return nil
	}
	return c.take("response", min(bytes, c.waiting.max-c.held.Load()), domain)
}

// end lets go of the call's request for good: what is received later counts no more.
func (c *call) end() {
	c.over.Store(true)
	c.letGo()
	if c.in != nil {
		c.in.end()
	}
}

// received gives back the room in which the request was received.
func (c *call) received() {
	if c.in != nil {
		c.in.leave()
	}
}

// letGo takes the request back out of the count.
func (c *call) letGo() {
	if held := c.held.Swap(0); held > 0 {
		c.waiting.used.Add(-held)
	}
}

// LetGo says that the handler of ctx's call holds the bytes of its request no more: others may be received in their place.
// The end of the call says so too. Outside a handler it does nothing.
func LetGo(ctx context.Context) {
	if c := callOf(ctx); c != nil {
		c.letGo()
	}
}

// Received says that the handler has a Frame that it received where it will keep it, or keeps it as it is: others may be received in
// the room of a large one. Receiving the next one says so too, and the end of a Turn and of the call. Outside a handler it does nothing.
func Received(ctx context.Context) {
	if c := callOf(ctx); c != nil {
		c.received()
	}
}

// sizeOf is the memory that a received message takes.
func sizeOf(m any) int64 {
	switch m := m.(type) {
	case *Frame:
		return int64(m.Data.Len())
	case *Lent:
		if m.whole != nil {
			return int64(cap(m.whole.ReadOnlyData())) // as it was given out
		}
		return footprint(m.Message)
	case proto.Message:
		return footprint(m)
	}
	return 0
}
