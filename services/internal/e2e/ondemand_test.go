package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// loads counts the successful loads in the logs of workers, which may be later than an answer.
func loads(workers ...*server) (n int) {
	for _, w := range workers {
		n += strings.Count(w.log.String(), ": model loaded: ")
	}
	return n
}

// unloads counts how often workers have unloaded a model by themselves.
func unloads(workers ...*server) (n int) {
	for _, w := range workers {
		n += strings.Count(w.log.String(), ": model unloaded: ")
	}
	return n
}

// requireLoads requires exactly n successful loads.
func requireLoads(t *testing.T, n int, workers ...*server) {
	t.Helper()
	require.Eventually(t, func() bool { return loads(workers...) >= n }, hang, 10*time.Millisecond, "%d loads", n)
	require.Equal(t, n, loads(workers...))
}

// reference returns the answer to a request for n tokens of stories.
func reference(t *testing.T, tokens int32) outcome {
	t.Helper()
	w := startWorker(t, "reference", append([]string{"--load", stories}, quick...)...)
	out := generate(within(t), w.infer, ask(stories, tokens))
	require.NoError(t, out.err)
	return out
}

func TestOnDemandLoadIsSingleFlight(t *testing.T) {
	// A hundred clients request a model that is not loaded, and one load happens.
	t.Parallel()
	want := reference(t, 8)
	for _, schedulers := range []int{1, 2} {
		t.Run(fmt.Sprintf("through %d schedulers", schedulers), func(t *testing.T) {
			var workers, through []*server
			for i := range 4 {
				workers = append(workers, startWorker(t, fmt.Sprintf("w%d", i+1), quick...))
			}
			for range schedulers {
				through = append(through, startScheduler(t, workers, "--load-on-demand"))
			}
			var all errgroup.Group
			ctx := within(t)
			for i := range 100 {
				all.Go(func() error {
					out := generate(ctx, through[i%schedulers].infer, ask(stories, 8))
					if out.err == nil && out.text != want.text {
						return fmt.Errorf("got %q, wanted %q", out.text, want.text)
					}
					return out.err
				})
			}
			require.NoError(t, all.Wait())
			for _, s := range through { // each hears of every load
				s.untilServed(t, stories, 1)
			}
			requireLoads(t, 1, workers...)
		})
	}
}

func TestModelsLoadOnDemand(t *testing.T) {
	// The answers equal those of models that are always loaded.
	t.Parallel()
	const rounds, idle = 6, time.Second
	flags := append([]string{"--idle-unload", idle.String()}, quick...)
	workers := []*server{startWorker(t, "w1", flags...), startWorker(t, "w2", flags...)}
	through := []*server{startScheduler(t, workers, "--load-on-demand"), startScheduler(t, workers, "--load-on-demand")}
	var all errgroup.Group
	ctx := within(t)
	for i, model := range []string{stories, storiesF16, long} {
		rng := rand.New(rand.NewPCG(7, uint64(i)))
		all.Go(func() error {
			text := ""
			for round := range rounds {
				out := generate(ctx, through[round%2].infer, ask(model, 4))
				if out.err != nil {
					return fmt.Errorf("%s, round %d: %w", model, round, out.err)
				}
				if text == "" {
					text = out.text
				}
				if out.text != text {
					return fmt.Errorf("%s, round %d: got %q, wanted %q", model, round, out.text, text)
				}
				// The next request arrives when the model is unloaded, or just before or after.
				time.Sleep(idle + time.Duration(rng.IntN(40)-20)*time.Millisecond)
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
	for _, w := range workers {
		w.untilEmpty(t)
	}
	require.Eventually(t, func() bool { return unloads(workers...) > 0 && unloads(workers...) == loads(workers...) }, hang, 10*time.Millisecond,
		"what came has gone")
	t.Logf("%d requests, %d loads", 3*rounds, loads(workers...))
}

func TestTwoModelsThatDoNotFitTogetherTakeTurns(t *testing.T) {
	t.Parallel()
	const stay = time.Second
	w := startWorker(t, "w1", "--device", "sim:step=0s,prefill=0s,decode=0s,memory=14000000", "--max-sequences", "1",
		"--evict-idle", stay.String())
	s := startScheduler(t, []*server{w}, "--load-on-demand")
	begin := time.Now()
	refused, turns := 0, 0
	for ; turns < 4 || refused == 0; turns++ { // a late request finds the other model idle for long enough
		i := turns
		name := []string{stories, storiesF16}[i%2]
		for {
			err := generate(within(t), s.infer, ask(name, 4)).err
			if err == nil {
				break
			}
			require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
			require.Equal(t, "MODEL_DOES_NOT_FIT", rpc.Reason(err))
			require.Equal(t, rpc.WorkerDomain, rpc.Info(err).GetDomain())
			require.Equal(t, []string{storiesF16, stories}[i%2], rpc.Info(err).GetMetadata()["idle_models"])
			require.Positive(t, rpc.RetryAfter(err))
			refused++
			time.Sleep(rpc.RetryAfter(err))
		}
	}
	took := time.Since(begin)
	requireLoads(t, turns, w)
	require.Equal(t, turns-1, unloads(w))
	require.GreaterOrEqual(t, took, time.Duration(turns-1)*stay, "each stays loaded for its idle time")
}

func TestPinnedModelsStayAndOthersGo(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", append([]string{"--idle-unload", "1s", "--load", stories}, quick...)...)
	s := startScheduler(t, []*server{w})
	require.NoError(t, load(t, s, &pb.LoadModelRequest{Model: storiesF16}).err)
	require.NoError(t, load(t, s, &pb.LoadModelRequest{Model: long, Pin: ptr(true)}).err)
	s.untilServed(t, storiesF16, 0)
	list, err := s.models.ListModels(within(t), &pb.ListModelsRequest{})
	require.NoError(t, err)
	pinned := map[string][]string{}
	for _, m := range list.GetModels() {
		if m.GetState() == pb.ModelState_MODEL_STATE_READY {
			require.NotNil(t, m.GetIdleAge())
			pinned[m.GetName()] = m.GetPinnedWorkerIds()
		}
	}
	require.Equal(t, map[string][]string{stories: {"w1"}, long: {"w1"}}, pinned)
	require.NoError(t, load(t, s, &pb.LoadModelRequest{Model: long, Pin: ptr(false)}).err)
	s.untilServed(t, long, 0)
	s.untilServed(t, stories, 1)
}

func TestALoadOnDemandSurvivesTheLossOfItsWorker(t *testing.T) {
	t.Parallel()
	var workers []*server
	for i := range 3 {
		workers = append(workers, startWorker(t, fmt.Sprintf("w%d", i+1), quick...))
	}
	s := startScheduler(t, workers, "--load-on-demand")
	first := generate(within(t), s.infer, ask(stories, 4))
	require.NoError(t, first.err)
	for i, w := range workers {
		if first.started.GetWorkerId() == fmt.Sprintf("w%d", i+1) {
			requireLoads(t, 1, w)
			w.kill()
		}
	}
	ctx, cancel := context.WithTimeout(within(t), hang)
	defer cancel()
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			require.Eventually(t, func() bool { return generate(ctx, s.infer, ask(stories, 4)).err == nil }, hang, 50*time.Millisecond)
		})
	}
	wait.Wait()
	s.untilServed(t, stories, 1)
	requireLoads(t, 2, workers...) // exactly one other worker has it
}
