package auth

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// BenchmarkGuardCall measures a guard's cost of a call.
func BenchmarkGuardCall(b *testing.B) {
	text, key := newToken("web", Generate)
	key.Limits = Limits{RequestsPerMinute: 1 << 30, TokensPerMinute: 1 << 30, Streams: 1 << 20}
	keys := newKeys([]*Key{key})
	g := newGuard(rpc.WorkerDomain, func() *Keys { return keys }, time.Now, func(time.Duration, func()) {})
	info := &grpc.StreamServerInfo{FullMethod: pb.InferenceService_Generate_FullMethodName, IsServerStream: true}
	chain := g.interceptors()
	handler := func(any, grpc.ServerStream) error { return nil }
	last := func(impl any, stream grpc.ServerStream) error { return chain[1](impl, stream, info, handler) }
	stream := &fakeStream{ctx: metadata.NewIncomingContext(context.Background(), metadata.Pairs("authorization", "Bearer "+text))}
	b.ReportAllocs()
	for b.Loop() {
		if err := chain[0](struct{}{}, stream, info, last); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGuardToken measures a guard's cost of a token.
func BenchmarkGuardToken(b *testing.B) {
	m := &Meter{&account{}}
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			m.Add(1)
		}
	})
}
