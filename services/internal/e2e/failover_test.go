package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// story returns request i: several options are set, and it is long enough to be running when a
// fault comes.
func story(model string, tokens int32, i int) *pb.GenerateRequest {
	in := ask(model, tokens)
	in.Sampling = &pb.Sampling{Seed: ptr(uint64(100 + i))}
	in.Response = &pb.ResponseOptions{OutputLogprobs: ptr(true)}
	switch i % 4 {
	case 1:
		in.Sampling.MinP, in.Sampling.RepetitionPenalty = ptr(float32(0.05)), ptr(float32(1.1))
		in.Stopping.Stop = []string{"never to be seen"} // holds text back
	case 2:
		in.Sampling.TopP, in.Sampling.FrequencyPenalty = ptr(float32(0.9)), ptr(float32(0.3))
		in.Response.OutputCandidates = ptr(int32(3))
	case 3:
		in.Sampling.LogitBias = map[int32]float32{300: 2, 301: -2}
		in.Response.PromptLogprobs, in.Response.EchoPrompt = ptr(int32(1)), ptr(true)
	}
	return in
}

// undisturbed returns the streams of the requests on a worker without faults.
func undisturbed(t *testing.T, on *server, requests []*pb.GenerateRequest) []outcome {
	t.Helper()
	out := make([]outcome, len(requests))
	ctx := within(t)
	var all sync.WaitGroup
	for i, in := range requests {
		all.Go(func() { out[i] = generate(ctx, on.infer, in) })
	}
	all.Wait()
	for _, o := range out {
		require.NoError(t, o.err)
	}
	return out
}

// requireSame compares two streams bit by bit.
func requireSame(t *testing.T, want, got outcome, what string) {
	t.Helper()
	require.NoError(t, got.err, what)
	require.Equal(t, want.ids, got.ids, what)
	require.Equal(t, want.text, got.text, what)
	require.Equal(t, want.calls, got.calls, what)
	require.Equal(t, want.logprobs, got.logprobs, "%s: bits", what)
	require.Equal(t, want.finished.GetReason(), got.finished.GetReason(), what)
	require.Equal(t, want.finished.GetUsage().GetCompletionTokens(), got.finished.GetUsage().GetCompletionTokens(), what)
}

var resumesField = regexp.MustCompile(`finished call.* resumes=(\d+)`)

// resumes returns how often finished streams of a scheduler were resumed after a token.
func (s *server) resumes() (sum int) {
	for _, found := range resumesField.FindAllStringSubmatch(s.log.String(), -1) {
		n, _ := strconv.Atoi(found[1]) // digits
		sum += n
	}
	return sum
}

// Faults of a worker, on the CPU engine and on one with steps of a fixed length: the streams
// continue on another worker without a difference.
func TestStreamsOutliveTheirWorkerBitByBit(t *testing.T) {
	engines := map[string]struct {
		model  string
		tokens int32
		args   []string
	}{
		"cpu": {stories, 400, []string{"--device", "cpu", "--load", stories}},
		"sim": {long, 500, paced},
	}
	happens := map[string]struct {
		hurt  func(*server)
		flags []string
	}{"killed": {func(s *server) { s.kill() }, patient}, "frozen": {func(s *server) { s.freeze() }, alert}}
	for engine, e := range engines {
		for name, h := range happens {
			t.Run(name+" on "+engine, func(t *testing.T) {
				t.Parallel()
				workers := map[string]*server{"w1": startWorker(t, "w1", e.args...), "w2": startWorker(t, "w2", e.args...)}
				s := startScheduler(t, []*server{workers["w1"], workers["w2"]}, h.flags...)
				s.untilServed(t, e.model, 2)
				var requests []*pb.GenerateRequest
				for i := range 8 {
					requests = append(requests, story(e.model, e.tokens, i))
				}
				held(requests[7])
				want := undisturbed(t, workers["w1"], requests)
				next := 0
				calls := beginAll(t, s, len(requests), func() *pb.GenerateRequest { next++; return requests[next-1] })
				victim, struck := workers[calls[len(calls)-1].started.GetWorkerId()], time.Now()
				h.hurt(victim)
				for i, c := range calls {
					requireSame(t, want[i], c.end(), fmt.Sprint("request ", i))
				}
				require.Eventually(t, func() bool { return s.resumes() > 0 }, hang, 10*time.Millisecond, "none was continued: nothing is proven")
				t.Logf("%d streams ended %v after their worker was %s, %d of them elsewhere", len(calls), time.Since(struck), name, s.resumes())
			})
		}
	}
}

func TestDrainUnderLoadFailsNoCall(t *testing.T) {
	t.Parallel()
	places := append([]string{"--max-sequences", "64"}, paced...) // slots for all streams on one worker
	w1, w2 := startWorker(t, "w1", places...), startWorker(t, "w2", places...)
	a, b := startScheduler(t, []*server{w1, w2}), startScheduler(t, []*server{w1, w2})
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 2)
	}
	const tokens = 1000
	want := undisturbed(t, w1, []*pb.GenerateRequest{story(long, tokens, 0), held(story(long, tokens, 0))})
	var calls, heldOn1 []*call // heldOn1: one call through each scheduler runs when the worker drains
	for _, s := range []*server{a, b} {
		calls = append(calls, beginAll(t, s, 6, func() *pb.GenerateRequest { return story(long, tokens, 0) })...)
		heldOn1 = append(heldOn1, beginOn(t, s, "w1", held(story(long, tokens, 0))))
	}
	began := time.Now()
	_, err := a.fleet.DrainWorker(within(t), &pb.DrainWorkerRequest{WorkerId: "w1"})
	require.NoError(t, err)
	for range 20 {
		for _, s := range []*server{a, b} {
			good(t, s, long)
		}
	}
	w1.untilIdle(t)
	t.Logf("idle %v after the drain was requested", time.Since(began))
	for i, c := range calls {
		requireSame(t, want[0], c.end(), fmt.Sprint("stream ", i))
	}
	for i, c := range heldOn1 {
		requireSame(t, want[1], c.end(), fmt.Sprint("held stream ", i))
	}
	require.Eventually(t, func() bool { return a.resumes() > 0 && b.resumes() > 0 }, hang, 10*time.Millisecond, "no stream was handed over")
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 1)
	}
	_, err = b.fleet.UndrainWorker(within(t), &pb.UndrainWorkerRequest{WorkerId: "w1"})
	require.NoError(t, err)
	for _, s := range []*server{a, b} {
		s.untilServed(t, long, 2)
	}
}
