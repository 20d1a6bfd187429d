package rpc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/millrace/millrace/services/internal/flood"
)

// callKey is the context key of *call.
type callKey struct{}

// call is what a server knows of one running call beside its messages.
type call struct {
	draining <-chan struct{}
	bare     *outbox
	turns    turns        // of the server
	in       *receiving   // nil: nobody watches what comes
	waiting  *budget      // of the server
	held     atomic.Int64 // bytes of the request that are counted in waiting
	over     atomic.Bool  // the handler has returned

	mu     sync.Mutex
	id     string // guarded by mu
	fields []any  // guarded by mu; key, value, ...
}

// callOf is the call of a handler's context, or nil outside one.
func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// RequestID is the id of the call that ctx belongs to, "" outside a handler.
func RequestID(ctx context.Context) string {
	c := callOf(ctx)
	if c == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// SetRequestID renames the call that ctx belongs to, for a request that carries its own id. Outside a handler, or with
// an id that ValidRequestID refuses, it does nothing.
func SetRequestID(ctx context.Context, id string) {
	if c := callOf(ctx); c != nil && ValidRequestID(id) {
		c.mu.Lock()
		c.id = id
		c.mu.Unlock()
	}
}

// WithRequestID is a context whose outgoing calls have an id, and belong to the span that ctx is in, if there is one.
func WithRequestID(ctx context.Context, id string) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	md = metadata.Join(md, metadata.Pairs(RequestIDKey, id))
	PutTrace(ctx, md)
	return metadata.NewOutgoingContext(ctx, md)
}

// Annotate sets a field of the line that is logged when the call that ctx belongs to ends; of several values of one key the last
// counts. A text may be the caller's and of any length: flood.Clip bounds it. Outside a handler it does nothing.
func Annotate(ctx context.Context, key string, value any) {
	if c := callOf(ctx); c != nil {
		c.annotate(key, value)
	}
}

// annotate sets a field of the line. A call may wait for hours and say so again and again.
func (c *call) annotate(key string, value any) {
	switch v := value.(type) {
	case string:
		value = flood.Clip(v)
	case error:
		value = flood.Clip(v.Error())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 0; i < len(c.fields); i += 2 {
		if c.fields[i] == key {
			c.fields[i+1] = value
			return
		}
	}
	c.fields = append(c.fields, key, value)
}

// Draining is closed when the server of the call that ctx belongs to begins to stop. A handler that streams until its
// caller leaves must end then; a server waits for the others. Outside a handler it is nil.
func Draining(ctx context.Context) <-chan struct{} {
	if c := callOf(ctx); c != nil {
		return c.draining
	}
	return nil
}

// Bare is the stream below the server's chain, for sending many messages: what the chain adds to a send is a clock read
// before and after. Receiving from it skips the checks. One goroutine may send. Outside a handler it is stream itself.
func Bare(stream grpc.ServerStream) grpc.ServerStream {
	if c := callOf(stream.Context()); c != nil {
		return c.bare
	}
	return stream
}

// ValidRequestID reports whether id is 1 to 128 printable ASCII characters.
func ValidRequestID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for _, c := range []byte(id) {
		if c < 0x20 || c > 0x7e {
			return false
		}
	}
	return true
}

// NewRequestID makes 16 random hex digits.
func NewRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// newCall reads the caller's request id or makes one.
func newCall(stream grpc.ServerStream, draining <-chan struct{}, waiting *budget, sends *sends, turns turns) *call {
	ctx := stream.Context()
	c := &call{draining: draining, bare: &outbox{ServerStream: stream, sends: sends}, waiting: waiting, turns: turns}
	c.in, _ = stream.(*receiving)
	if ids := metadata.ValueFromIncomingContext(ctx, RequestIDKey); len(ids) > 0 && ValidRequestID(ids[0]) {
		c.id = ids[0]
	} else {
		c.id = NewRequestID()
	}
	return c
}

// logFields are the request id and the annotations.
func (c *call) logFields() []any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]any{"request_id", c.id}, c.fields...)
}
