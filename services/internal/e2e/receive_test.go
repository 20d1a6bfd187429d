package e2e

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/cputest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// serveWithin starts a program with a limit of its memory, touched or not (RLIMIT_DATA); it ends if
// it allocates more.
func serveWithin(t *testing.T, bytes int, binary string, args ...string) *server {
	t.Helper()
	limited := []string{"-c", `ulimit -d "$1" && program=$2 && shift 2 && exec "$program" "$@"`, "sh", strconv.Itoa(bytes >> 10), binary}
	for range 5 {
		s := &server{binary: "/bin/sh", before: limited, args: args, address: freeAddress(t)}
		if s.start(t) {
			return s
		}
	}
	require.FailNow(t, "no port is free for long enough")
	return nil
}

func TestManyLargeRequestsNeedLittleMemory(t *testing.T) {
	// Large requests at once must not need memory for all of them, nor delay small ones.
	if raced {
		t.Skip("the race detector takes memory of its own, which the bound of this test would count: run make test, which CI does too")
	}
	t.Parallel()
	const requests, size, memory = 90, 16 << 20, 1200 << 20
	require.Greater(t, requests*size, memory)
	w := serveWithin(t, memory, workerBinary, append([]string{"--models", modelsDir, "--worker-id", "w1", "--threads", "1"},
		append(cputest.Flags(), roomy("2ms")...)...)...)
	s := serveWithin(t, memory, schedulerBinary, append([]string{"--workers", w.address, "--max-held-bytes", strconv.Itoa(128 << 20)}, patient...)...)
	s.untilServed(t, long, 1)

	in := ask(long, 1)
	ids := make([]uint32, size/3-100)
	for i := range ids {
		ids[i] = 1 << 20 // three bytes on the wire, four decoded, and not a token
	}
	in.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}
	large, err := proto.Marshal(in)
	require.NoError(t, err)
	for name, to := range map[string]*server{"worker": w, "scheduler": s} {
		conns := make([]*grpc.ClientConn, 6)
		for i := range conns {
			conns[i] = dial(t, to.address)
		}
		var mu sync.Mutex
		ends := map[string]int{}
		var all sync.WaitGroup
		ended := make(chan struct{})
		for i := range requests {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 2*hang)
				defer cancel()
				err := raw(ctx, &server{conn: conns[i%len(conns)]}, large)
				mu.Lock()
				defer mu.Unlock()
				ends[status.Code(err).String()+" "+rpc.Reason(err)]++
			})
		}
		go func() { defer close(ended); all.Wait() }()
		served, longest := 0, time.Duration(0)
		for under := true; under; served++ {
			began := time.Now()
			require.NoError(t, generate(within(t), to.infer, ask(long, 3)).err, "a small request at the same time")
			longest = max(longest, time.Since(began))
			select {
			case <-ended:
				under = false
			default:
			}
		}
		t.Logf("%s: %v; %d small requests took %v at most", name, ends, served, longest)
		require.True(t, to.alive())
		n := 0
		for end, count := range ends {
			n += count
			code, reason, _ := strings.Cut(end, " ")
			require.NotEmpty(t, reason, "a status of ours: %s", end)
			require.Contains(t, []string{codes.InvalidArgument.String(), codes.ResourceExhausted.String()}, code, end)
		}
		require.Equal(t, requests, n)
	}
	require.True(t, w.alive())
}
