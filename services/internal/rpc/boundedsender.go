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
	// smallBytes bounds a small message, and all small messages of one call that are queued in the
	// transport.
	smallBytes = 1 << 10
	// pooledBytes is the capacity above which grpc-go frees a buffer through its pool. Only then
	// does the sender learn when it was written.
	pooledBytes = 1 << 10
)

// boundedSender is a stream that applies backpressure to a slow consumer.
//
// Small messages: grpc-go bounds the queue of a stream at 64 KiB of message bytes, but does not
// count its own bookkeeping, about 200 bytes a message, ten times the size of a token. A
// boundedSender copies small messages into one page. When the page is full, SendMsg waits until all
// of it is on the wire.
//
// Large messages: SendMsg reserves their bytes of the sendBudget and returns when the transport has
// written them.
//
// One goroutine may send.
type boundedSender struct {
	grpc.ServerStream
	budget *sendBudget

	mu     sync.Mutex
	ctx    context.Context // guarded by mu; ends waiting; nil: the stream's own context
	page   *page           // guarded by mu; nil if no message is queued
	used   int             // guarded by mu; bytes of page
	queued int             // guarded by mu; messages in page that are not on the wire yet
	// guarded by mu; closed when page is freed; nil if nothing waits for that
	empty chan struct{}

	timer *time.Timer // of the sending goroutine; nil until its first wait

	returned atomic.Bool // the handler has returned, so this program ends the stream's context
}

// page holds smallBytes of messages. The rest keeps the capacity of each message above pooledBytes,
// wherever it begins.
type page [smallBytes + pooledBytes + 1]byte

var pages = sync.Pool{New: func() any { return new(page) }}

// SendMsg implements grpc.ServerStream. It empties a Frame.
func (s *boundedSender) SendMsg(m any) error {
	var message []byte
	switch m := m.(type) {
	case *Frame:
		n := m.Data.Len()
		if n > smallBytes {
			return s.sendLarge(n, m)
		}
		defer m.Free()
		var err error
		if message, err = s.reserve(n); err != nil {
			return err
		}
		m.Data.CopyTo(message)
	case proto.Message:
		n := proto.Size(m)
		if n > smallBytes {
			return s.sendLarge(n, m)
		}
		var err error
		if message, err = s.reserve(n); err != nil {
			return err
		}
		if _, err := (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(message[:0], m); err != nil {
			s.Put(nil)
			return s.ServerStream.SendMsg(m) // returns why it cannot be encoded
		}
	default:
		return s.ServerStream.SendMsg(m)
	}
	return s.ServerStream.SendMsg(&Frame{Data: mem.BufferSlice{mem.NewBuffer(&message, s)}})
}

// sendLarge sends a message of more than smallBytes and waits until the transport has written it.
// It empties a Frame.
func (s *boundedSender) sendLarge(bytes int, m any) error {
	if bytes > maxSendBytes {
		return s.ServerStream.SendMsg(m) // returns that it is too large
	}
	ctx := s.context()
	receiver, _ := s.ServerStream.(*boundedReceiver)
	var from netip.Addr
	if receiver != nil {
		from = receiver.from
	}
	budget := s.budget.budgetFor(bytes)
	release, err := s.budget.acquire(ctx, budget, from, bytes)
	if err != nil {
		free(m)
		return asStatus(err)
	}
	data, err := FrameCodec().Marshal(m)
	if err != nil {
		release()
		return s.ServerStream.SendMsg(m) // returns why it cannot be encoded
	}
	message, data := newInflight(data, release)
	if err := s.ServerStream.SendMsg(&Frame{Data: data}); err != nil {
		return err // nothing was queued
	}
	if err = message.await(ctx, s.stallTimer(), s.budget.stall, budget); err == nil {
		return nil
	}
	stall, stalled := errors.AsType[stallError](err)
	if receiver == nil { // the stream has no connection of package ingress
		message.release()
	} else {
		go s.budget.dropStream(message, receiver, stalled || receiver.Context().Err() != nil && !s.returned.Load())
	}
	if stalled {
		return s.budget.slowReaderError(time.Duration(stall))
	}
	return asStatus(err)
}

// asStatus converts an error of acquire or await to a status.
func asStatus(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(err).Err()
}

// setContext sets the context that ends waiting. It must be derived from the stream's own.
func (s *boundedSender) setContext(ctx context.Context) {
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
}

// context returns the context that ends waiting.
func (s *boundedSender) context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		return s.ServerStream.Context()
	}
	return s.ctx
}

// reserve returns n bytes of the page. It waits until the page has room. Put frees them.
func (s *boundedSender) reserve(n int) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.page != nil && s.used+n > smallBytes {
		if err := s.waitLocked(); err != nil {
			return nil, err
		}
	}
	if s.page == nil {
		s.page = pages.Get().(*page)
	}
	message := s.page[s.used : s.used+n]
	s.used += n
	s.queued++
	return message, nil
}

// waitLocked unlocks mu and waits until the page is freed.
func (s *boundedSender) waitLocked() error {
	if s.empty == nil {
		s.empty = make(chan struct{})
	}
	empty, ctx := s.empty, s.ctx
	s.mu.Unlock()
	defer s.mu.Lock()
	if ctx == nil {
		ctx = s.ServerStream.Context()
	}
	timer := s.stallTimer()
	defer timer.Stop()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-timer.C:
		return s.budget.slowReaderError(s.budget.stall)
	}
}

// stallTimer returns the call's timer, set to the stall time. The caller must stop it.
func (s *boundedSender) stallTimer() *time.Timer {
	if s.timer == nil {
		s.timer = time.NewTimer(s.budget.stall)
	} else {
		s.timer.Reset(s.budget.stall)
	}
	return s.timer
}

// YieldToTransport lets the goroutine that writes a connection run, so that what was just sent is
// on the wire before the caller continues. Otherwise it would run only when the sender blocks. It
// yields twice, because grpc-go's writer yields once itself to collect more messages for the
// packet.
func YieldToTransport() {
	runtime.Gosched()
	runtime.Gosched()
}

// Put implements mem.BufferPool. The transport calls it when a message was written or dropped.
func (s *boundedSender) Put(*[]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queued--; s.queued > 0 {
		return
	}
	pages.Put(s.page)
	s.page, s.used = nil, 0
	if s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
}

// Get implements mem.BufferPool. It is never called, because the transport gets no buffer from
// here.
func (s *boundedSender) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

var (
	_ grpc.ServerStream = (*boundedSender)(nil)
	_ mem.BufferPool    = (*boundedSender)(nil)
)
