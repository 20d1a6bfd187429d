package vectors_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// BenchmarkEncode sends rows to a worker that computes next to nothing, directly and through a
// scheduler: the difference is the scheduler's cost. Its share of a real worker's time is smaller.
func BenchmarkEncode(b *testing.B) {
	n := workertest.NewNet()
	n.Start(b, "w:1", workertest.New("w", "i").WithVectors("k"))
	logger := rpctest.Logger(b)
	f, err := fleet.New(fleet.Config{Workers: []string{"w:1"}, Dial: n.Dial}, logger)
	require.NoError(b, err)
	carrier := vectors.New(f, vectors.Config{}, logger)
	s := rpc.NewServer(rpc.ServerConfig{Domain: rpcstatus.Domain}, logger)
	carrier.Register(s)
	following, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(following) }()
	b.Cleanup(func() { cancel(); <-done; carrier.Close() })
	lis := rpctest.Listener(b)
	rpctest.Serve(b, s, lis)
	for !f.Snapshot().Route.Known {
		<-f.Snapshot().Next
	}
	direct, err := n.Dial("w:1")
	require.NoError(b, err)
	b.Cleanup(func() { _ = direct.Close() }) // only an error if closed twice
	for _, size := range []int{4 << 10, 256 << 10, 4<<20 - 64} {
		raw, err := proto.Marshal(&pb.EncodeRequest{Codebook: "k", Rows: rows(size, 1)})
		require.NoError(b, err)
		for name, conn := range map[string]*grpc.ClientConn{"direct": direct, "through": rpctest.Dial(b, lis)} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.RunParallel(func(p *testing.PB) {
					for p.Next() {
						var out rpc.Frame
						in := &rpc.Frame{Data: mem.BufferSlice{mem.SliceBuffer(raw)}}
						if err := conn.Invoke(b.Context(), pb.VectorService_Encode_FullMethodName, in, &out,
							grpc.ForceCodecV2(rpc.FrameCodec())); err != nil {
							b.Error(err)
							return
						}
						out.Free()
					}
				})
			})
		}
	}
}
