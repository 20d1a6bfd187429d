package rpc

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// outboxBytes of small messages wait in the transport for one caller.
	outboxBytes = 1 << 10
	// pooledBytes is the capacity above which grpc-go tells when it needs a buffer no more.
	pooledBytes = 1 << 10
)

// outbox is a stream that applies backpressure to a slow consumer. Small messages: grpc-go bounds the queue of a stream at 64 KiB of
// message bytes and does not count its own bookkeeping, about 200 bytes a message, ten times the size of a token. An outbox copies
// small messages into one page, and waits when the page is full until all of it is on the wire. Larger messages go through the
// budget of sends, and SendMsg returns when the transport has written them. One goroutine may send.
type outbox struct {
	grpc.ServerStream
	sends *sends

	mu     sync.Mutex
	ctx    context.Context // guarded by mu; ends waiting; nil: the stream's own
	page   *page           // guarded by mu; nil while nothing waits
	used   int             // guarded by mu; bytes of page
	queued int             // guarded by mu; messages in page that are not yet on the wire
	empty  chan struct{}   // guarded by mu; closed when page is given back; nil while nobody waits for that

	timer *time.Timer // of the sending goroutine; nil: it has not waited yet

	returned atomic.Bool // the handler has, so that the end of the stream's context is this program's doing
}

// page has room for outboxBytes wherever a message begins.
type page [outboxBytes + pooledBytes + 1]byte

var pages = sync.Pool{New: func() any { return new(page) }}

// SendMsg sends a message; see grpc.ServerStream. A Frame is emptied.
func (o *outbox) SendMsg(m any) error {
	var message []byte
	switch m := m.(type) {
	case *Frame:
		n := m.Data.Len()
		if n > outboxBytes {
			return o.sendLarge(n, m)
		}
		defer m.Free()
		var err error
		if message, err = o.reserve(n); err != nil {
			return err
		}
		m.Data.CopyTo(message)
	case proto.Message:
		n := proto.Size(m)
		if n > outboxBytes {
			return o.sendLarge(n, m)
		}
		var err error
		if message, err = o.reserve(n); err != nil {
			return err
		}
		if _, err := (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(message[:0], m); err != nil {
			o.Put(nil)
			return o.ServerStream.SendMsg(m) // which says why it cannot be sent
		}
	default:
		return o.ServerStream.SendMsg(m)
	}
	return o.ServerStream.SendMsg(&Frame{Data: mem.BufferSlice{mem.NewBuffer(&message, o)}})
}

// sendLarge sends a message of more than outboxBytes and waits until the transport has written it. A Frame is emptied.
func (o *outbox) sendLarge(bytes int, m any) error {
	if bytes > maxSendBytes {
		return o.ServerStream.SendMsg(m) // which says so
	}
	ctx := o.context()
	in, _ := o.ServerStream.(*receiving)
	var from netip.Addr
	if in != nil {
		from = in.from
	}
	gate := o.sends.gate(bytes)
	release, err := o.sends.enter(ctx, gate, from, bytes)
	if err != nil {
		free(m)
		return asStatus(err)
	}
	data, err := FrameCodec().Marshal(m)
	if err != nil {
		release()
		return o.ServerStream.SendMsg(m) // which says why it cannot be sent
	}
	message, data := newInflight(data, release)
	if err := o.ServerStream.SendMsg(&Frame{Data: data}); err != nil {
		return err // nothing was queued
	}
	if err = message.await(ctx, o.stalls(), o.sends.stall, gate); err == nil {
		return nil
	}
	still, stalled := errors.AsType[stalledFor](err)
	if in == nil { // no connection of ours is under it
		message.release()
	} else {
		go o.sends.drop(message, in, stalled || in.Context().Err() != nil && !o.returned.Load())
	}
	if stalled {
		return o.sends.slow(time.Duration(still))
	}
	return asStatus(err)
}

// asStatus is the status of an error of enter or await.
func asStatus(err error) error {
	if _, is := status.FromError(err); is {
		return err
	}
	return status.FromContextError(err).Err()
}

// until ends waiting with a context too, which is of the stream's own.
func (o *outbox) until(ctx context.Context) {
	o.mu.Lock()
	o.ctx = ctx
	o.mu.Unlock()
}

// context is what ends waiting.
func (o *outbox) context() context.Context {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ctx == nil {
		return o.ServerStream.Context()
	}
	return o.ctx
}

// reserve takes n bytes of the page, which it waits for. Put gives them back.
func (o *outbox) reserve(n int) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.page != nil && o.used+n > outboxBytes {
		if err := o.waitLocked(); err != nil {
			return nil, err
		}
	}
	if o.page == nil {
		o.page = pages.Get().(*page)
	}
	message := o.page[o.used : o.used+n]
	o.used += n
	o.queued++
	return message, nil
}

// waitLocked waits until the page was given back, with the lock released meanwhile.
func (o *outbox) waitLocked() error {
	if o.empty == nil {
		o.empty = make(chan struct{})
	}
	empty, ctx := o.empty, o.ctx
	o.mu.Unlock()
	defer o.mu.Lock()
	if ctx == nil {
		ctx = o.ServerStream.Context()
	}
	timer := o.stalls()
	defer timer.Stop()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-timer.C:
		return o.sends.slow(o.sends.stall)
	}
}

// stalls is a timer of the stall time, the same one for all waits of the call. Whoever waits stops it.
func (o *outbox) stalls() *time.Timer {
	if o.timer == nil {
		o.timer = time.NewTimer(o.sends.stall)
	} else {
		o.timer.Reset(o.sends.stall)
	}
	return o.timer
}

// LetOut gives the processor to the goroutine that writes a connection, until what was just sent on it is on the wire. Otherwise
// that waits until the sender waits for something. It takes two turns: grpc-go's writer gives its own first one away, so that
// others may send more in the same packet.
func LetOut() {
	runtime.Gosched()
	runtime.Gosched()
}

// Put is called by the transport when a message is on the wire, or dropped.
func (o *outbox) Put(*[]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.queued--; o.queued > 0 {
		return
	}
	pages.Put(o.page)
	o.page, o.used = nil, 0
	if o.empty != nil {
		close(o.empty)
		o.empty = nil
	}
}

// Get is never called: the transport gets no buffer of an outbox.
func (o *outbox) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

var (
	_ grpc.ServerStream = (*outbox)(nil)
	_ mem.BufferPool    = (*outbox)(nil)
)
