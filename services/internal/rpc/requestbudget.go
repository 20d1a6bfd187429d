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
	// DefaultMaxWaitingBytes bounds the requests that handlers hold: sixteen of the largest, or
	// sixteen thousand of 16 KiB.
	DefaultMaxWaitingBytes = 16 * DefaultMaxReceiveBytes
	// uncountedBytes is the size up to which requests always pass. Such a request is no larger than
	// the rest of its call, and health checks must succeed on a full server.
	uncountedBytes = 4 << 10
	// waitingRetry is the RetryInfo delay of a refused request.
	waitingRetry = time.Second
)

// requestBudget counts the bytes of received requests that handlers hold, for example in queues,
// which count requests and not bytes. It is safe for concurrent use.
//
// Invariant: used <= max.
type requestBudget struct {
	max  int64
	used atomic.Int64
}

// reserve adds bytes if they fit. used is the count before.
func (b *requestBudget) reserve(bytes int64) (used int64, ok bool) {
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

// holdRequest counts a received request in place of the call's previous one, or refuses it. A
// request that takes more than the whole budget when decoded counts as all of it, so a server that
// holds nothing else accepts it.
func (c *call) holdRequest(m any, domain string) error {
	c.releaseRequest()
	bytes := min(sizeOf(m), c.requests.max)
	if bytes <= uncountedBytes {
		return nil
	}
	return c.reserve("request", bytes, domain)
}

// reserve adds bytes to those that the call holds, or refuses them.
func (c *call) reserve(what string, bytes int64, domain string) error {
	used, ok := c.requests.reserve(bytes)
	if !ok {
		return Error{
			Code: codes.ResourceExhausted, Domain: domain, Reason: reason.TooManyBytesWaiting, RetryAfter: waitingRetry,
			Message: fmt.Sprintf("the %s takes %d bytes, this server holds requests of %d bytes and %d at most: "+
				"try again later, or send less", what, bytes, used, c.requests.max),
			Metadata: map[string]string{"bytes": strconv.FormatInt(bytes, 10), "waiting_bytes": strconv.FormatInt(used, 10),
				"max_waiting_bytes": strconv.FormatInt(c.requests.max, 10)},
		}.Err()
	}
	c.heldBytes.Add(bytes)
	if c.ended.Load() { // a goroutine that outlives its handler received it
		c.releaseRequest()
	}
	return nil
}

// ReserveResponse counts the memory of a response that the handler of ctx's call is about to build,
// until ReleaseRequest or the end of the call. It returns the status that refuses it if it does not
// fit. A server that holds nothing else accepts any response. Outside a handler it does nothing.
func ReserveResponse(ctx context.Context, bytes int64, domain string) error {
	c := callOf(ctx)
	if c == nil || bytes <= uncountedBytes {
		return nil
	}
	return c.reserve("response", min(bytes, c.requests.max-c.heldBytes.Load()), domain)
}

// close releases the call's request for good. What is received later is not counted.
func (c *call) close() {
	c.ended.Store(true)
	c.releaseRequest()
	if c.receiver != nil {
		c.receiver.close()
	}
}

// releaseReceived returns the bytes of the received request to the receive budget.
func (c *call) releaseReceived() {
	if c.receiver != nil {
		c.receiver.releaseLast()
	}
}

// releaseRequest returns the bytes of the call to the request budget.
func (c *call) releaseRequest() {
	if held := c.heldBytes.Swap(0); held > 0 {
		c.requests.used.Add(-held)
	}
}

// ReleaseRequest reports that the handler of ctx's call no longer holds its request. The end of the
// call does the same. Outside a handler it does nothing.
func ReleaseRequest(ctx context.Context) {
	if c := callOf(ctx); c != nil {
		c.releaseRequest()
	}
}

// ReleaseReceived reports that the handler has stored a received Frame where it will stay, so that
// its bytes leave the receive budget. Receiving the next one, releasing a decode slot and the end
// of the call do the same. Outside a handler it does nothing.
func ReleaseReceived(ctx context.Context) {
	if c := callOf(ctx); c != nil {
		c.releaseReceived()
	}
}

// sizeOf returns the memory that a received message takes.
func sizeOf(m any) int64 {
	switch m := m.(type) {
	case *Frame:
		return int64(m.Data.Len())
	case *BorrowedMessage:
		if m.buffer != nil {
			return int64(cap(m.buffer.ReadOnlyData())) // the capacity that the pool gave out
		}
		return footprint(m.Message)
	case proto.Message:
		return footprint(m)
	}
	return 0
}
