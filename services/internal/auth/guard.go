package auth

import (
	"context"
	"errors"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// scheme is the scheme of the header: authorization: Bearer TOKEN.
const scheme = "bearer"

// Guard authorises the calls of a server. Serve makes it. It is safe for concurrent use.
type Guard struct {
	registry *registry
	worker   bool // the server is a worker
}

// newGuard returns the guard of a server with the given domain.
func newGuard(domain string, keys func() *Keys, now func() time.Time, afterFunc func(time.Duration, func())) *Guard {
	return &Guard{worker: domain == rpc.WorkerDomain, registry: &registry{
		keys: keys, now: now, afterFunc: afterFunc, accounts: map[string]*account{}, running: map[*activeCall]struct{}{},
		withDomain: func(f rpc.Error) error { f.Domain = domain; return f.Err() },
	}}
}

// Usage is the usage of a key in this process.
type Usage struct {
	ID string
	Used
}

// Usage returns what each key of the file has used, in the file's order.
func (g *Guard) Usage() []Usage {
	keys := g.registry.keys().All()
	all := make([]Usage, len(keys))
	for i, k := range keys {
		all[i] = Usage{k.ID, g.registry.account(k).usage()}
	}
	return all
}

// interceptors run for every method, including standard services and unknown methods. The first
// authenticates the caller, the second authorises the call.
func (g *Guard) interceptors() []grpc.StreamServerInterceptor {
	closed := selector.MatchFunc(func(_ context.Context, call interceptors.CallMeta) bool { return !needs[call.FullMethod()].open })
	return []grpc.StreamServerInterceptor{selector.StreamServerInterceptor(auth.StreamServerInterceptor(g.authenticate), closed), g.admit}
}

// keyContextKey is the context key of the *Key of a call.
type keyContextKey struct{}

// authenticate finds the key of a call's token.
func (g *Guard) authenticate(ctx context.Context) (context.Context, error) {
	token, err := auth.AuthFromMD(ctx, scheme)
	if err != nil {
		return nil, g.registry.withDomain(noToken())
	}
	if checkToken(token) != nil {
		return nil, g.registry.withDomain(unknownToken())
	}
	key := g.registry.keys().find(HashOf(token))
	if key == nil {
		return nil, g.registry.withDomain(unknownToken())
	}
	rpc.Annotate(ctx, "key", key.ID)
	if key.expired(g.registry.now()) {
		g.registry.account(key).countRefusal()
		return nil, g.registry.withDomain(expired(key))
	}
	return context.WithValue(ctx, keyContextKey{}, key), nil
}

// admit runs a call that its key allows, and ends it when the key no longer does.
func (g *Guard) admit(impl any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	n, known := needs[info.FullMethod]
	if n.open {
		return next(impl, stream)
	}
	key, ok := stream.Context().Value(keyContextKey{}).(*Key)
	if !ok {
		return g.registry.withDomain(noToken())
	}
	account := g.registry.account(key)
	if !known && impl == nil {
		n = anyKey // not registered: a caller with a key gets UNIMPLEMENTED
	}
	if !key.may(n) {
		account.countRefusal()
		return g.registry.withDomain(rightMissing(key, info.FullMethod, n))
	}
	if over, after := account.acquire(key.Limits, g.registry.now()); over != enough {
		return g.registry.withDomain(overQuota(key, over, after))
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(stream.Context(), meterKey{}, &Meter{account}))
	defer cancel(nil)
	defer g.registry.add(&activeCall{key, info.FullMethod, account, cancel})()
	err := next(impl, &guardedStream{ServerStream: stream, ctx: ctx, guard: g, key: key, account: account,
		tenanted: tenanted[info.FullMethod], generates: info.FullMethod == pb.InferenceService_Generate_FullMethodName})
	var cut cutOffError
	if err != nil && errors.As(context.Cause(ctx), &cut) {
		return cut.error // whatever the handler returns for the end of its context
	}
	return err
}

// guardedStream is the stream of a call.
type guardedStream struct {
	grpc.ServerStream
	ctx       context.Context
	guard     *Guard
	key       *Key
	account   *account
	tenanted  bool // its request has a tenant
	generates bool // it is a Generate
}

func (s *guardedStream) Context() context.Context { return s.ctx }

// RecvMsg refuses requests that the key does not allow, and every request after the key has ended.
func (s *guardedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	var cut cutOffError
	if errors.As(context.Cause(s.ctx), &cut) {
		free(m)
		return cut.error
	}
	if !s.tenanted {
		return nil
	}
	if refusal := s.key.stamp(m, endpoint{generates: s.generates, worker: s.guard.worker}); refusal != nil {
		free(m)
		s.account.countRefusal()
		return s.guard.registry.withDomain(*refusal)
	}
	return nil
}

// free frees the buffers of a frame.
func free(m any) {
	if f, ok := m.(*rpc.Frame); ok {
		f.Free()
	}
}
