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

// scheme is how tokens are shown: authorization: Bearer TOKEN.
const scheme = "bearer"

// Guard stands before the methods of a server. Make it with Serve. Safe for concurrent use.
type Guard struct {
	book   *book
	worker bool // the server is a worker
}

// newGuard makes a guard of a server with a domain.
func newGuard(domain string, keys func() *Keys, now func() time.Time, later func(time.Duration, func())) *Guard {
	return &Guard{worker: domain == rpc.WorkerDomain, book: &book{
		keys: keys, now: now, later: later, accounts: map[string]*account{}, running: map[*visit]struct{}{},
		fault: func(f rpc.Fault) error { f.Domain = domain; return f.Err() },
	}}
}

// Usage is what a key has used in this process.
type Usage struct {
	ID string
	Used
}

// Usage is what each key of the file has used, in the file's order.
func (g *Guard) Usage() []Usage {
	keys := g.book.keys().All()
	all := make([]Usage, len(keys))
	for i, k := range keys {
		all[i] = Usage{k.ID, g.book.account(k).usage()}
	}
	return all
}

// interceptors are for every method, those of the standard services and those that nobody registered too: first who calls, then
// whether they may.
func (g *Guard) interceptors() []grpc.StreamServerInterceptor {
	closed := selector.MatchFunc(func(_ context.Context, call interceptors.CallMeta) bool { return !needs[call.FullMethod()].open })
	return []grpc.StreamServerInterceptor{selector.StreamServerInterceptor(auth.StreamServerInterceptor(g.authenticate), closed), g.admit}
}

// keyOf is the context key of the *Key of a call.
type keyOf struct{}

// authenticate finds the key of a call's token.
func (g *Guard) authenticate(ctx context.Context) (context.Context, error) {
	token, err := auth.AuthFromMD(ctx, scheme)
	if err != nil {
		return nil, g.book.fault(noToken())
	}
	if checkToken(token) != nil {
		return nil, g.book.fault(unknownToken())
	}
	key := g.book.keys().find(HashOf(token))
	if key == nil {
		return nil, g.book.fault(unknownToken())
	}
	rpc.Annotate(ctx, "key", key.ID)
	if key.expired(g.book.now()) {
		g.book.account(key).refuse()
		return nil, g.book.fault(expired(key))
	}
	return context.WithValue(ctx, keyOf{}, key), nil
}

// admit lets a call pass that its key allows, and ends it when the key no longer does.
func (g *Guard) admit(impl any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	n, known := needs[info.FullMethod]
	if n.open {
		return next(impl, stream)
	}
	key, is := stream.Context().Value(keyOf{}).(*Key)
	if !is {
		return g.book.fault(noToken())
	}
	account := g.book.account(key)
	if !known && impl == nil {
		n = anyKey // nobody registered it: a key is told so
	}
	if !key.may(n) {
		account.refuse()
		return g.book.fault(rightMissing(key, info.FullMethod, n))
	}
	if over, after := account.begin(key.Limits, g.book.now()); over != enough {
		return g.book.fault(overQuota(key, over, after))
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(stream.Context(), meterKey{}, &Meter{account}))
	defer cancel(nil)
	defer g.book.enter(&visit{key, info.FullMethod, account, cancel})()
	err := next(impl, &guarded{ServerStream: stream, ctx: ctx, guard: g, key: key, account: account,
		tenanted: tenanted[info.FullMethod], generates: info.FullMethod == pb.InferenceService_Generate_FullMethodName})
	var cut cutOff
	if err != nil && errors.As(context.Cause(ctx), &cut) {
		return cut.error // whatever the handler makes of the end of its context
	}
	return err
}

// guarded is a call's stream.
type guarded struct {
	grpc.ServerStream
	ctx       context.Context
	guard     *Guard
	key       *Key
	account   *account
	tenanted  bool // its request has a tenant
	generates bool // it is a Generate
}

func (s *guarded) Context() context.Context { return s.ctx }

// RecvMsg refuses what the key does not allow, and everything once the key has ended.
func (s *guarded) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	var cut cutOff
	if errors.As(context.Cause(s.ctx), &cut) {
		free(m)
		return cut.error
	}
	if !s.tenanted {
		return nil
	}
	if refusal := s.key.stamp(m, place{generates: s.generates, worker: s.guard.worker}); refusal != nil {
		free(m)
		s.account.refuse()
		return s.guard.book.fault(*refusal)
	}
	return nil
}

// free gives a frame's buffers back.
func free(m any) {
	if f, is := m.(*rpc.Frame); is {
		f.Free()
	}
}
