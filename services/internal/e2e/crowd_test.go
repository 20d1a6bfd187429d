package e2e

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// roomy has a thousand slots.
func roomy(step string) []string {
	return []string{"--device", "sim:step=" + step + ",prefill=0s,decode=0s", "--load", long,
		"--max-sequences", "1024", "--max-batched-tokens", "4096"}
}

func TestThousandStreamsAtOnce(t *testing.T) {
	t.Parallel()
	const streams, tokens = 1000, 40
	w := startWorker(t, "w1", roomy("20ms")...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	var begun sync.WaitGroup
	begun.Add(streams)
	var all errgroup.Group
	ctx := within(t)
	started := time.Now()
	for range streams {
		all.Go(func() error {
			c, err := begin(ctx, s.infer, ask(long, tokens))
			begun.Done()
			if err != nil {
				return err
			}
			begun.Wait() // no call ends before all have begun
			return c.end().err
		})
	}
	require.NoError(t, all.Wait())
	t.Logf("%d streams of %d tokens took %v", streams, tokens, time.Since(started))
	w.untilIdle(t)
	// Reports lag behind by a moment.
	w.untilLoad(t, "no sequence is computed twice or beyond its end", func(load *pb.LoadStatus) bool {
		return load.GetGeneratedTokens() == streams*tokens
	})
	s.until(t, "nothing is in flight", func(fleet []*pb.FleetWorker) bool {
		return fleet[0].GetInFlight() == 0 && fleet[0].GetOutstandingTokens() == 0
	})
}

func TestClientsThatDoNotReadPileUpABoundedAmount(t *testing.T) {
	t.Parallel()
	clients := uint32(500)
	if raced {
		clients = 50 // with the race detector a token costs twenty times as much
	}
	// Paced, so that generation leaves processor time for the checks.
	w := startWorker(t, "w1", roomy("10ms")...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	deaf := dial(t, s.address)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range clients {
		askDeaf(ctx, t, deaf)
	}
	load := levelled(t, w, s, clients)
	worker, scheduler := w.resident(t), s.resident(t)
	t.Logf("%d clients that do not read: %d tokens, worker %s, scheduler %s",
		clients, load.GetGeneratedTokens(), mib(worker), mib(scheduler))

	for range 20 {
		good(t, s, long)
	}
	time.Sleep(time.Second) // memory that still grows would show
	after := w.untilLoad(t, "the worker reports the requests that were read", func(now *pb.LoadStatus) bool {
		return now.GetGeneratedTokens() >= load.GetGeneratedTokens()+20*3
	})
	require.Equal(t, load.GetGeneratedTokens()+20*3, after.GetGeneratedTokens(), "only the client that reads gets tokens")
	grownWorker, grownScheduler := w.resident(t)-worker, s.resident(t)-scheduler
	t.Logf("20 requests later: worker %s more, scheduler %s more", mib(grownWorker), mib(grownScheduler))
	require.Less(t, grownWorker, slack())
	require.Less(t, grownScheduler, slack())

	require.NoError(t, deaf.Close())
	w.untilIdle(t)
	require.Equal(t, codes.OK, status.Code(generate(within(t), s.infer, ask(long, 3)).err))
}

// levelled waits until the sequence of every deaf client is paused and no token was generated while
// requests through the same scheduler were served, which shows that worker and scheduler had time
// to. It returns the tokens generated, these requests' included.
func levelled(t *testing.T, w, s *server, clients uint32) *pb.LoadStatus {
	t.Helper()
	const requests, tokens = 20, 3 // of each request of good
	for deadline := time.Now().Add(hang); ; {
		before := w.untilLoad(t, "all wait for their readers", func(load *pb.LoadStatus) bool { return load.GetPaused() == clients })
		for range requests {
			good(t, s, long)
			time.Sleep(50 * time.Millisecond)
		}
		after := w.untilLoad(t, "all wait again, and the tokens read are counted", func(load *pb.LoadStatus) bool {
			return load.GetPaused() == clients && load.GetRunning() == clients &&
				load.GetGeneratedTokens() >= before.GetGeneratedTokens()+requests*tokens
		})
		if after.GetGeneratedTokens() == before.GetGeneratedTokens()+requests*tokens {
			return after
		}
		require.True(t, time.Now().Before(deadline), "tokens do not level off: %v", after)
	}
}

// askDeaf starts a call that is not read, with large events that fill buffers soon.
func askDeaf(ctx context.Context, t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	in := endless()
	in.Response = &pb.ResponseOptions{OutputLogprobs: ptr(true), OutputCandidates: ptr(int32(32))}
	_, err := pb.NewInferenceServiceClient(conn).Generate(ctx, in)
	require.NoError(t, err)
}

func TestClientsThatDoNotReadBlockNoOthers(t *testing.T) {
	// Slow consumers must not block other clients, even if there are more of them than slots.
	t.Parallel()
	w := startWorker(t, "w1", append([]string{"--max-sequences", "16"}, paced...)...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	deaf := dial(t, s.address)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 24 {
		askDeaf(ctx, t, deaf)
	}
	w.untilLoad(t, "it has them all, those beyond its 16 slots in place of some that do not read", func(load *pb.LoadStatus) bool {
		return load.GetRunning()+load.GetWaiting() == 24
	})
	began := time.Now()
	for range 3 {
		good(t, s, long)
	}
	t.Logf("three requests during 24 clients that do not read took %v", time.Since(began))
	w.untilLoad(t, "no stream had to end by the stall limit of a reader", func(load *pb.LoadStatus) bool {
		return load.GetRunning()+load.GetWaiting() == 24
	})
}

// slack is the growth that is not a leak: a heap keeps pages. The race detector's shadow memory
// grows with every page that is touched for the first time.
func slack() int64 {
	if raced {
		return 96 << 20
	}
	return 16 << 20
}
