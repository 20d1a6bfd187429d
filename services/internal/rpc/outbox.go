package rpc

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

const (
	// outboxBytes of small messages wait in the transport for one caller.
	outboxBytes = 1 << 10
	// pooledBytes is the capacity above which grpc-go tells when it needs a buffer no more.
	pooledBytes = 1 << 10
)

// outbox is a stream whose small Frames do not pile up behind a caller that does not read. grpc-go bounds what it queues for
// a stream by the bytes of the messages, at 64 KiB, and adds some two hundred of its own to each: ten times as much as a token
// takes. An outbox lays the messages side by side in one page and waits when the page is full until all of it is on the
// wire. One goroutine may send.
type outbox struct {
	grpc.ServerStream

	mu     sync.Mutex
	page   *page         // guarded by mu; nil while nothing waits
	used   int           // guarded by mu; bytes of page
	queued int           // guarded by mu; messages in page that are not yet on the wire
	empty  chan struct{} // guarded by mu; closed when page is given back; nil while nobody waits for that
}

// page has room for outboxBytes wherever a message begins.
type page [outboxBytes + pooledBytes + 1]byte

var pages = sync.Pool{New: func() any { return new(page) }}

// SendMsg sends a message; see grpc.ServerStream. A Frame is emptied.
func (o *outbox) SendMsg(m any) error {
	f, ok := m.(*Frame)
	if !ok || f.Data.Len() > outboxBytes {
		return o.ServerStream.SendMsg(m)
	}
	message, err := o.lay(f.Data)
	f.Free()
	if err != nil {
		return err
	}
	return o.ServerStream.SendMsg(&Frame{Data: mem.BufferSlice{mem.NewBuffer(&message, o)}})
}

// lay copies a message into the page, which it waits for.
func (o *outbox) lay(data mem.BufferSlice) ([]byte, error) {
	n := data.Len()
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
	data.CopyTo(message)
	o.used += n
	o.queued++
	return message, nil
}

// waitLocked waits until the page was given back, with the lock released meanwhile.
func (o *outbox) waitLocked() error {
	if o.empty == nil {
		o.empty = make(chan struct{})
	}
	empty := o.empty
	o.mu.Unlock()
	defer o.mu.Lock()
	ctx := o.ServerStream.Context()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
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
