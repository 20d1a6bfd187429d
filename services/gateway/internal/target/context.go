package target

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"google.golang.org/grpc/metadata"

	"github.com/millrace/millrace/services/internal/rpc"
)

// Call has the metadata that all calls of one request share.
type Call struct {
	// RequestID names the request in the logs of every program.
	RequestID string
	// Authorization is the value of the header of that name, or "".
	Authorization string
	// RoutingKey sends requests with equal keys to the same worker if possible; "": no key.
	RoutingKey string
}

// Context returns a context for the calls of a request. It carries the span of ctx.
func (c Call) Context(ctx context.Context) context.Context {
	if c.Authorization != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", c.Authorization)
	}
	return WithRoutingKey(rpc.WithRequestID(ctx, c.RequestID), c.RoutingKey)
}

// WithRoutingKey adds a routing key to the calls of ctx unless it is "". A key that is not short
// printable ASCII is replaced by its hash.
func WithRoutingKey(ctx context.Context, key string) context.Context {
	if key == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, rpc.RoutingKey, Token(key))
}

// Token returns text if the contract accepts it as an id or a key: at most 128 printable ASCII
// characters. It returns the text's hash otherwise.
func Token(text string) string {
	if rpc.ValidRequestID(text) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}
