package rpc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/millrace/millrace/services/internal/ratelog"
)

// Metadata keys, headers and trailers, that the project's programs use.
const (
	// RequestIDKey carries the request id. A server adopts the caller's if it is 1 to 128 printable
	// ASCII characters, and makes one otherwise.
	RequestIDKey = "x-request-id"
	// RoutingKey asks a scheduler to send equal values to one worker if possible.
	RoutingKey = "millrace-routing-key"
	// UsageTrailer holds the encoded Usage of a generation that failed.
	UsageTrailer = "millrace-usage-bin"
	// PushbackTrailer holds the milliseconds that standard clients wait before a retry.
	PushbackTrailer = "grpc-retry-pushback-ms"
	// LoadReportPrefix begins the trailers with load reports for load balancers (ORCA).
	LoadReportPrefix = "endpoint-load-metrics"
)

// callKey is the context key of *call.
type callKey struct{}

// call is the state of one running call.
type call struct {
	draining    <-chan struct{}
	sender      *boundedSender
	decodeSlots decodeSlots      // of the server
	receiver    *boundedReceiver // nil if package ingress does not watch the connection
	requests    *requestBudget   // of the server
	heldBytes   atomic.Int64     // bytes of the call that requests counts
	ended       atomic.Bool      // the handler has returned

	mu     sync.Mutex
	id     string // guarded by mu
	fields []any  // guarded by mu; key, value, ...
}

// callOf returns the call of a handler's context, or nil outside a handler.
func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// RequestID returns the id of the call of ctx, or "" outside a handler.
func RequestID(ctx context.Context) string {
	c := callOf(ctx)
	if c == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// SetRequestID replaces the id of the call of ctx, for a request that carries its own. It does
// nothing outside a handler, or if ValidRequestID refuses id.
func SetRequestID(ctx context.Context, id string) {
	if c := callOf(ctx); c != nil && ValidRequestID(id) {
		c.mu.Lock()
		c.id = id
		c.mu.Unlock()
	}
}

// WithRequestID returns a context whose outgoing calls carry the id and the span of ctx, if any.
func WithRequestID(ctx context.Context, id string) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	md = metadata.Join(md, metadata.Pairs(RequestIDKey, id))
	PutTrace(ctx, md)
	return metadata.NewOutgoingContext(ctx, md)
}

// Annotate sets a field of the line that is logged when the call of ctx ends. A later value of the
// same key replaces an earlier one. Texts may come from the caller and be of any length: they are
// cut by ratelog.Clip. Outside a handler it does nothing.
func Annotate(ctx context.Context, key string, value any) {
	if c := callOf(ctx); c != nil {
		c.annotate(key, value)
	}
}

// annotate sets a field. It replaces values, because a call may wait for hours and annotate the
// same key again and again.
func (c *call) annotate(key string, value any) {
	switch v := value.(type) {
	case string:
		value = ratelog.Clip(v)
	case error:
		value = ratelog.Clip(v.Error())
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

// Draining returns a channel that is closed when the server of the call of ctx begins to stop. A
// handler that streams until its caller leaves must return then. The server waits for all others.
// Outside a handler it returns nil.
func Draining(ctx context.Context) <-chan struct{} {
	if c := callOf(ctx); c != nil {
		return c.draining
	}
	return nil
}

// RawStream returns the stream below the server's chain, for a handler that sends many messages:
// the chain reads the clock before and after each. Receiving from it skips the checks. One
// goroutine may send. Outside a handler it returns stream.
func RawStream(stream grpc.ServerStream) grpc.ServerStream {
	if c := callOf(stream.Context()); c != nil {
		return c.sender
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

// NewRequestID returns 16 random hexadecimal digits.
func NewRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// newCall returns the call of a stream, with the caller's request id or a new one.
func newCall(stream grpc.ServerStream, draining <-chan struct{}, requests *requestBudget, sends *sendBudget, slots decodeSlots) *call {
	ctx := stream.Context()
	c := &call{draining: draining, sender: &boundedSender{ServerStream: stream, budget: sends}, requests: requests, decodeSlots: slots}
	c.receiver, _ = stream.(*boundedReceiver)
	if ids := metadata.ValueFromIncomingContext(ctx, RequestIDKey); len(ids) > 0 && ValidRequestID(ids[0]) {
		c.id = ids[0]
	} else {
		c.id = NewRequestID()
	}
	return c
}

// logFields returns the request id and the annotations.
func (c *call) logFields() []any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]any{"request_id", c.id}, c.fields...)
}
