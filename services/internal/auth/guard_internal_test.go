package auth

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// hang is a hang guard: the tests wait for a far shorter time.
const hang = time.Minute

// lines is a log that is safe for concurrent use.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// with returns the lines that contain text.
func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// inference is a service that generates as the test directs.
type inference struct {
	pb.UnimplementedInferenceServiceServer
	generate func(*pb.GenerateRequest, grpc.ServerStream) error
}

func (s *inference) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	return s.generate(in, stream)
}

// rig is a server with a guard. The test sets its clock and its keys.
type rig struct {
	t      *testing.T
	guard  *Guard
	log    *lines
	conn   *grpc.ClientConn
	served *inference

	mu    sync.Mutex
	now   time.Time // guarded by mu
	keys  *Keys     // guarded by mu
	looks []func()  // guarded by mu; to be called when time has passed
}

func newRig(t *testing.T, keys ...*Key) *rig {
	t.Helper()
	rpctest.NoLeaks(t)
	r := &rig{t: t, log: &lines{}, now: noon, keys: newKeys(keys), served: &inference{}}
	r.guard = newGuard(rpc.SchedulerDomain, r.current, r.clock, func(_ time.Duration, sweep func()) {
		r.mu.Lock()
		r.looks = append(r.looks, sweep)
		r.mu.Unlock()
	})
	r.served.generate = func(in *pb.GenerateRequest, stream grpc.ServerStream) error {
		MeterOf(stream.Context()).Add(10)
		return stream.SendMsg(&pb.GenerateResponse{Event: &pb.GenerateResponse_Started{Started: &pb.Started{RequestId: in.GetFairnessId()}}})
	}
	s := rpc.NewServer(rpc.ServerConfig{Domain: rpc.SchedulerDomain, Interceptors: r.guard.interceptors()},
		hclog.New(&hclog.LoggerOptions{Level: hclog.Info, Output: r.log}))
	pb.RegisterInferenceServiceServer(s, r.served)
	lis := rpctest.Listener(t)
	rpctest.Serve(t, s, lis)
	r.conn = rpctest.Dial(t, lis)
	return r
}

func (r *rig) current() *Keys   { r.mu.Lock(); defer r.mu.Unlock(); return r.keys }
func (r *rig) clock() time.Time { r.mu.Lock(); defer r.mu.Unlock(); return r.now }

// pass lets a second pass, after which the file has other keys.
func (r *rig) pass(d time.Duration, keys ...*Key) {
	r.mu.Lock()
	r.now = r.now.Add(d)
	r.keys = newKeys(keys)
	looks := r.looks
	r.looks = nil
	r.mu.Unlock()
	for _, sweep := range looks {
		sweep()
	}
}

// as returns a context that sends a token.
func as(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

func (r *rig) within() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	r.t.Cleanup(cancel)
	return ctx
}

// call generates to the end. tenant is the one that the service received.
func (r *rig) call(token string, in *pb.GenerateRequest) (tenant string, err error) {
	stream, err := pb.NewInferenceServiceClient(r.conn).Generate(as(r.within(), token), in)
	require.NoError(r.t, err)
	out, err := stream.Recv()
	if err != nil {
		return "", err
	}
	_, end := stream.Recv()
	require.Error(r.t, end)
	return out.GetStarted().GetRequestId(), nil
}

// newToken returns a token and its key.
func newToken(id string, rights ...Right) (string, *Key) {
	text := NewToken()
	return text, &Key{ID: id, Hashes: []Hash{HashOf(text)}, Tenant: id, Rights: rights, Limits: Limits{Priority: new(int32)}}
}

// requireRefusal checks code, reason and domain.
func requireRefusal(t *testing.T, code codes.Code, why string, err error) {
	t.Helper()
	require.Equal(t, code, status.Code(err), "%v", err)
	require.Equal(t, why, rpc.Reason(err), "%v", err)
	require.Equal(t, rpc.SchedulerDomain, rpc.Domain(err))
}

func TestBadTokensAreRefused(t *testing.T) {
	// The log has one line without the token.
	good, key := newToken("web", Generate)
	over, ended := newToken("old", Generate)
	ended.Expires = noon
	r := newRig(t, key, ended)
	tenant, err := r.call(good, &pb.GenerateRequest{})
	require.NoError(t, err)
	require.Equal(t, "web", tenant)
	stranger := NewToken()
	for name, tc := range map[string]struct{ header, reason string }{
		"no token":               {"", reason.NoToken},
		"another scheme":         {"Basic " + good, reason.NoToken},
		"no scheme":              {good, reason.NoToken},
		"an unknown token":       {"Bearer " + stranger, reason.UnknownToken},
		"the start of a token":   {"Bearer " + good[:len(good)-1], reason.UnknownToken},
		"a token and more":       {"Bearer " + good + "x", reason.UnknownToken},
		"the hash":               {"Bearer " + key.Hashes[0].String(), reason.UnknownToken},
		"a short one":            {"Bearer secret", reason.UnknownToken},
		"an empty one":           {"Bearer ", reason.UnknownToken},
		"one with a space":       {"Bearer  " + good, reason.UnknownToken},
		"one whose time is over": {"Bearer " + over, reason.TokenExpired},
	} {
		before := len(r.log.with(""))
		ctx := r.within()
		if tc.header != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", tc.header)
		}
		err := r.conn.Invoke(ctx, pb.InferenceService_Tokenize_FullMethodName, &pb.TokenizeRequest{}, &pb.TokenizeResponse{})
		requireRefusal(t, codes.Unauthenticated, tc.reason, err)
		require.Eventually(t, func() bool { return len(r.log.with("")) == before+1 }, hang, time.Millisecond, name)
		require.Contains(t, r.log.with("")[before], tc.reason)
	}
	require.Len(t, r.log.with("key=old"), 1, "the key is named")
	for _, secret := range []string{good, over, stranger, good[9:], "secret", key.Hashes[0].String()[7:]} {
		require.Empty(t, r.log.with(secret))
	}
}

func TestMethodsNeedTheirRights(t *testing.T) {
	// Without a token only the health check is allowed.
	tokens, keys := map[Right]string{}, []*Key(nil)
	for _, right := range Rights() {
		text, key := newToken(string(right), right)
		tokens[right] = text
		keys = append(keys, key)
	}
	r := newRig(t, keys...)
	ask := func(ctx context.Context, method string) error {
		return r.conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
	}
	methods := []string{"/no.Service/Method"}
	for method := range needs {
		methods = append(methods, method)
	}
	for _, method := range methods {
		n, known := needs[method]
		if !n.open {
			requireRefusal(t, codes.Unauthenticated, reason.NoToken, ask(r.within(), method))
		}
		if known && n.anyKey {
			continue // endless streams
		}
		for right, text := range tokens {
			err := ask(as(r.within(), text), method)
			switch {
			case n.open:
				require.NoError(t, err)
			case !known:
				require.Equal(t, codes.Unimplemented, status.Code(err), "%s as %s: %v", method, right, err)
			case slices.Contains(n.rights, right):
				require.NotContains(t, []codes.Code{codes.PermissionDenied, codes.Unauthenticated}, status.Code(err), "%s as %s: %v", method, right, err)
			default:
				requireRefusal(t, codes.PermissionDenied, reason.RightMissing, err)
			}
		}
	}
	out, err := healthpb.NewHealthClient(r.conn).Check(r.within(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, out.GetStatus())
}

func TestMethodsWithoutANeedAreRefused(t *testing.T) {
	text, key := newToken("all", Rights()...)
	r := newRig(t, key)
	err := r.guard.admit(struct{}{}, &fakeStream{ctx: context.WithValue(r.within(), keyContextKey{}, key)},
		&grpc.StreamServerInfo{FullMethod: "/millrace.v1.NewService/Method"}, func(any, grpc.ServerStream) error { return nil })
	requireRefusal(t, codes.PermissionDenied, reason.RightMissing, err)
	err = r.guard.admit(struct{}{}, &fakeStream{ctx: r.within()},
		&grpc.StreamServerInfo{FullMethod: pb.InferenceService_Embed_FullMethodName}, func(any, grpc.ServerStream) error { return nil })
	requireRefusal(t, codes.Unauthenticated, reason.NoToken, err)
	require.NotEmpty(t, text)
}

// fakeStream has only a context.
type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *fakeStream) Context() context.Context { return s.ctx }

func TestTenantPriorityAndQuotaAreEnforced(t *testing.T) {
	text, key := newToken("web", Generate)
	key.Limits.RequestsPerMinute, key.Limits.TokensPerMinute = 6, 25
	gatewayText, gateway := newToken("gateway", Generate)
	gateway.Tenant, gateway.Limits.Priority = AnyTenant, nil
	r := newRig(t, key, gateway)
	other, high := "other", int32(1)
	_, err := r.call(text, &pb.GenerateRequest{FairnessId: &other})
	requireRefusal(t, codes.PermissionDenied, reason.OtherTenant, err)
	_, err = r.call(text, &pb.GenerateRequest{Priority: &high})
	requireRefusal(t, codes.PermissionDenied, reason.PriorityTooHigh, err)
	tenant, err := r.call(gatewayText, &pb.GenerateRequest{FairnessId: &other, Priority: &high})
	require.NoError(t, err)
	require.Equal(t, "other", tenant)

	for range 3 { // of 10 tokens each: the third is admitted with 5 left
		_, err = r.call(text, &pb.GenerateRequest{})
		require.NoError(t, err)
	}
	_, err = r.call(text, &pb.GenerateRequest{})
	requireRefusal(t, codes.ResourceExhausted, reason.TooManyTokens, err)
	require.InDelta(t, 14400*time.Millisecond, rpc.RetryAfter(err), 10, "it owes 5 of 25 a minute, and a call needs one")
	r.pass(15*time.Second, key, gateway)
	_, err = r.call(text, &pb.GenerateRequest{})
	require.NoError(t, err)
	r.pass(time.Second, &Key{ID: "web", Hashes: key.Hashes, Tenant: "web", Rights: key.Rights, Limits: Limits{RequestsPerMinute: 1, Priority: new(int32)}}, gateway)
	_, err = r.call(text, &pb.GenerateRequest{})
	require.NoError(t, err, "what the new file says holds, and what was left of it stays within it")
	_, err = r.call(text, &pb.GenerateRequest{})
	requireRefusal(t, codes.ResourceExhausted, reason.TooManyRequests, err)
	require.Positive(t, rpc.RetryAfter(err))
	used := map[string]Used{}
	for _, u := range r.guard.Usage() {
		used[u.ID] = u.Used
	}
	require.Eventually(t, func() bool { return r.guard.Usage()[0].UnderWay == 0 }, hang, time.Millisecond)
	require.EqualValues(t, 4, used["web"].Refused)
	require.EqualValues(t, 50, used["web"].Tokens)
	require.EqualValues(t, 10, used["gateway"].Tokens)
}

// standing begins a generation that lasts until its context ends, and waits until it runs.
func (r *rig) standing(text string) grpc.ServerStreamingClient[pb.GenerateResponse] {
	r.t.Helper()
	r.served.generate = func(_ *pb.GenerateRequest, stream grpc.ServerStream) error {
		if err := stream.SendMsg(&pb.GenerateResponse{}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	stream, err := pb.NewInferenceServiceClient(r.conn).Generate(as(r.within(), text), &pb.GenerateRequest{})
	require.NoError(r.t, err)
	_, err = stream.Recv()
	require.NoError(r.t, err)
	return stream
}

func TestRevokedKeyEndsItsCalls(t *testing.T) {
	text, key := newToken("web", Generate)
	stays, other := newToken("other", Generate)
	changed := func(change func(*Key)) *Key {
		k := *key
		change(&k)
		return &k
	}
	for name, tc := range map[string]struct {
		next   []*Key
		code   codes.Code
		reason string
	}{
		"taken out":     {[]*Key{other}, codes.Unauthenticated, reason.TokenRevoked},
		"another id":    {[]*Key{other, changed(func(k *Key) { k.ID, k.Hashes = "else", []Hash{HashOf("else")} })}, codes.Unauthenticated, reason.TokenRevoked},
		"another token": {[]*Key{other, changed(func(k *Key) { k.Hashes = []Hash{HashOf("another")} })}, codes.OK, ""},
		"expired":       {[]*Key{other, changed(func(k *Key) { k.Expires = noon.Add(time.Second) })}, codes.Unauthenticated, reason.TokenExpired},
		"fewer rights":  {[]*Key{other, changed(func(k *Key) { k.Rights = []Right{Load} })}, codes.PermissionDenied, reason.RightMissing},
		"lower limits":  {[]*Key{other, changed(func(k *Key) { k.Limits.Streams = 1 })}, codes.OK, ""},
		"the same keys": {[]*Key{key, other}, codes.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, key, other)
			ends, goesOn := r.standing(text), r.standing(stays)
			r.pass(time.Second, tc.next...)
			if tc.code == codes.OK {
				require.NoError(t, ends.Context().Err())
				r.pass(time.Second, other)
				tc.code, tc.reason = codes.Unauthenticated, reason.TokenRevoked
			}
			_, err := ends.Recv()
			requireRefusal(t, tc.code, tc.reason, err)
			require.Eventually(t, func() bool { return len(r.log.with("reason="+tc.reason)) == 1 }, hang, time.Millisecond)
			_, err = r.call(text, &pb.GenerateRequest{})
			require.NotEqual(t, codes.OK, status.Code(err))
			r.pass(time.Second)
			_, err = goesOn.Recv()
			requireRefusal(t, codes.Unauthenticated, reason.TokenRevoked, err)
			require.Eventually(t, func() bool { r.pass(time.Second); r.mu.Lock(); defer r.mu.Unlock(); return len(r.looks) == 0 }, hang, time.Millisecond,
				"without calls nobody looks")
		})
	}
}

func TestRevokedCallThatReadsNothingEnds(t *testing.T) {
	text, key := newToken("web", Generate)
	r := newRig(t, key)
	running, over := make(chan struct{}), make(chan error, 1)
	r.served.generate = func(_ *pb.GenerateRequest, stream grpc.ServerStream) error {
		bare := rpc.RawStream(stream)
		var err error
		// the handler does not watch its context, like one that sends to a caller that reads
		// nothing
		for n := 0; err == nil; n++ {
			if n == 1 {
				close(running)
			}
			err = bare.SendMsg(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{Text: "token"}}})
		}
		over <- err
		return err
	}
	stream, err := pb.NewInferenceServiceClient(r.conn).Generate(as(r.within(), text), &pb.GenerateRequest{})
	require.NoError(t, err)
	<-running
	r.pass(time.Second)
	select {
	case err := <-over:
		require.Error(t, err)
	case <-time.After(hang):
		require.FailNow(t, "it sends for ever")
	}
	for err == nil {
		_, err = stream.Recv()
	}
	requireRefusal(t, codes.Unauthenticated, reason.TokenRevoked, err)
}

func TestStreamsAreCountedByKey(t *testing.T) {
	text, key := newToken("web", Generate)
	key.Limits.Streams = 1
	r := newRig(t, key)
	first := r.standing(text)
	err := r.conn.Invoke(as(r.within(), text), pb.InferenceService_Embed_FullMethodName, &emptypb.Empty{}, &emptypb.Empty{})
	requireRefusal(t, codes.ResourceExhausted, reason.TooManyStreams, err)
	require.Zero(t, rpc.RetryAfter(err))
	r.pass(time.Second)
	_, err = first.Recv()
	requireRefusal(t, codes.Unauthenticated, reason.TokenRevoked, err)
	r.pass(0, key)
	require.Eventually(t, func() bool {
		err := r.conn.Invoke(as(r.within(), text), pb.InferenceService_Embed_FullMethodName, &emptypb.Empty{}, &emptypb.Empty{})
		return status.Code(err) == codes.Unimplemented
	}, hang, time.Millisecond, "the place is free again")
}

// TestUnreadAnswersCountAsStreams counts a response that is not read as a running call. Otherwise
// one stream could have any number of responses in memory.
func TestUnreadAnswersCountAsStreams(t *testing.T) {
	token, key := newToken("web", Generate)
	key.Limits.Streams = 1
	r := newRig(t, key)
	r.served.generate = func(_ *pb.GenerateRequest, stream grpc.ServerStream) error {
		return rpc.RawStream(stream).SendMsg(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{
			Tokens: &pb.Tokens{Text: strings.Repeat("x", 1<<20)}}})
	}
	c := pb.NewInferenceServiceClient(r.conn)
	unread, err := c.Generate(as(r.within(), token), &pb.GenerateRequest{})
	require.NoError(t, err)
	_, err = unread.Header() // arrives with the first bytes of the response
	require.NoError(t, err)
	_, err = r.call(token, &pb.GenerateRequest{})
	requireRefusal(t, codes.ResourceExhausted, reason.TooManyStreams, err)
	require.Equal(t, 1, r.guard.Usage()[0].UnderWay)
	_, err = unread.Recv()
	require.NoError(t, err)
	_, err = unread.Recv()
	require.ErrorIs(t, err, io.EOF)
	_, err = r.call(token, &pb.GenerateRequest{})
	require.NoError(t, err)
}
