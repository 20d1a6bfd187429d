package e2e

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// soakEnv sets how long the soak runs. Unset: a few dozen requests, so that every run of the tests
// has some.
const soakEnv = "MILLRACE_SOAK"

// soakSeedEnv sets the first seed. Unset: it depends on the date.
const soakSeedEnv = "MILLRACE_SOAK_SEED"

// soakContexts are the contexts of the fleet's workers. The first worker has no faults, so the
// largest context of the fleet does not change, and every request has one correct answer: that of a
// lone worker with the largest context.
var soakContexts = []uint32{512, 512, 200, 96}

// Random requests, whole and resumed, through a scheduler whose workers have different contexts and
// are killed and drained: the answer, its length and the verdict are those of one undisturbed
// worker that has the largest context.
func TestSoakWithUnequalContexts(t *testing.T) {
	t.Parallel()
	lasts, requests := time.Duration(0), 30
	if raw := os.Getenv(soakEnv); raw != "" {
		var err error
		lasts, err = time.ParseDuration(raw)
		require.NoError(t, err, "%s is a duration, such as 20m", soakEnv)
		requests = math.MaxInt
	}
	first := uint64(time.Now().Unix()) / (24 * 60 * 60) << 32
	if raw := os.Getenv(soakSeedEnv); raw != "" {
		var err error
		first, err = strconv.ParseUint(raw, 10, 64)
		require.NoError(t, err, "%s is a number", soakSeedEnv)
	}
	t.Logf("requests are those of seed %d and the next ones", first)

	s := startSoak(t)
	end := time.Now().Add(lasts)
	if lasts == 0 {
		end = time.Now().Add(hang)
	}
	var next, whole, resumed, refused atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	for range 6 {
		group.Go(func() error {
			for ctx.Err() == nil && time.Now().Before(end) {
				n := next.Add(1)
				if n > int64(requests) {
					return nil
				}
				seed := first + uint64(n)
				verdict, err := s.compare(ctx, seed, &resumed)
				switch {
				case err != nil:
					return fmt.Errorf("seed %d: %w", seed, err)
				case verdict != codes.OK:
					refused.Add(1)
				}
				whole.Add(1)
			}
			return nil
		})
	}
	stop := make(chan struct{})
	var disturber sync.WaitGroup
	disturber.Go(func() { s.disturb(t, stop) })
	steady := []*server{s.scheduler, s.workers[0]} // processes without faults
	early := make([]int64, len(steady))
	if lasts > 0 {
		time.Sleep(lasts / 4) // caches and pools fill first
		for i, p := range steady {
			early[i] = p.resident(t)
		}
	}
	err := group.Wait()
	close(stop)
	disturber.Wait()
	require.NoError(t, err)
	require.Positive(t, resumed.Load())
	t.Logf("%d requests, %d of them refused alike, %d resumed alike; %d streams moved; workers were disturbed %d times",
		whole.Load(), refused.Load(), resumed.Load(), s.scheduler.resumes(), s.disturbed)
	if lasts == 0 {
		return
	}
	for i, p := range steady {
		late := p.resident(t)
		t.Logf("%s: %s after a quarter of the time, %s in the end", p.name, mib(early[i]), mib(late))
		require.Less(t, late-early[i], int64(64<<20), "%s grows", p.name)
	}
}

// soak is a fleet of unequal contexts and the worker of the correct answers.
type soak struct {
	reference, scheduler *server
	workers              []*server
	disturbed            int
}

func startSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{reference: startWorker(t, "reference", "--device", "cpu", "--max-sequences", "16")}
	loadContext(t, s.reference, soakContexts[0])
	for i, context := range soakContexts {
		w := startWorker(t, fmt.Sprint("w", i), "--device", "cpu", "--max-sequences", "16")
		loadContext(t, w, context)
		s.workers = append(s.workers, w)
	}
	s.scheduler = startScheduler(t, s.workers)
	s.scheduler.untilServed(t, stories, len(s.workers))
	return s
}

// loadContext loads the shipped model with a context.
func loadContext(t *testing.T, on *server, context uint32) {
	t.Helper()
	require.NoError(t, load(t, on, &pb.LoadModelRequest{Model: stories, ContextLength: &context}).err)
}

// disturb kills and drains workers one after another, all but the first, until it is stopped.
func (s *soak) disturb(t *testing.T, stop <-chan struct{}) {
	t.Helper()
	wait := func(d time.Duration) bool {
		select {
		case <-stop:
			return false
		case <-time.After(d):
			return true
		}
	}
	for turn := 0; wait(500 * time.Millisecond); turn++ {
		i := 1 + turn%(len(s.workers)-1)
		s.disturbed++
		if turn/(len(s.workers)-1)%2 == 0 {
			id := fmt.Sprint("w", i)
			_, err := s.scheduler.fleet.DrainWorker(within(t), &pb.DrainWorkerRequest{WorkerId: id})
			require.NoError(t, err)
			wait(time.Second)
			_, err = s.scheduler.fleet.UndrainWorker(within(t), &pb.UndrainWorkerRequest{WorkerId: id})
			require.NoError(t, err)
			continue
		}
		s.workers[i].kill()
		s.workers[i] = s.workers[i].again(t)
		loadContext(t, s.workers[i], soakContexts[i])
		s.scheduler.untilServed(t, stories, len(s.workers))
	}
}

// compare sends the request of a seed to both, and resumes a part of the answer through the
// scheduler.
func (s *soak) compare(ctx context.Context, seed uint64, resumed *atomic.Int64) (codes.Code, error) {
	ctx, cancel := context.WithTimeout(ctx, hang)
	defer cancel()
	in, r := randomRequest(seed), rand.New(rand.NewPCG(seed, 2))
	want, refusal := listen(ctx, s.reference.infer, in)
	got, err := listen(ctx, s.scheduler.infer, in)
	if status.Code(refusal) != status.Code(err) || rpc.Reason(refusal) != rpc.Reason(err) {
		return codes.OK, fmt.Errorf("alone %s, and through the scheduler %s", status.Convert(refusal), status.Convert(err))
	}
	switch code := status.Code(refusal); code {
	case codes.OK:
	case codes.InvalidArgument, codes.FailedPrecondition:
		return code, nil
	default:
		return code, refusal
	}
	if d := want.answerDiffers(got); d != "" {
		return codes.OK, fmt.Errorf("through the scheduler %s", d)
	}
	again, rest := want.cut(in, r)
	if again == nil {
		return codes.OK, nil
	}
	resumed.Add(1)
	if got, err = listen(ctx, s.scheduler.infer, again); err != nil {
		return codes.OK, fmt.Errorf("resumed by %v: %w", again.GetResume(), err)
	}
	if d := rest.answerDiffers(got); d != "" {
		return codes.OK, fmt.Errorf("resumed by %v %s", again.GetResume(), d)
	}
	return codes.OK, nil
}

// answerDiffers describes the first difference of two answers except cached tokens, or returns "".
func (a *content) answerDiffers(b *content) string {
	if len(a.Outputs) != len(b.Outputs) || len(a.Finished) != len(b.Finished) {
		return fmt.Sprintf("%d outputs with %d ends and not %d with %d", len(b.Outputs), len(b.Finished), len(a.Outputs), len(a.Finished))
	}
	for i, o := range a.Outputs {
		if !proto.Equal(o, b.Outputs[i]) {
			return fmt.Sprintf("output %d: %v and not %v", i, b.Outputs[i], o)
		}
	}
	for i, f := range a.Finished {
		if withoutCached(f) != withoutCached(b.Finished[i]) {
			return fmt.Sprintf("end %d: %s and not %s", i, b.Finished[i], f)
		}
	}
	return ""
}

// withoutCached returns a message as text without the number of cached tokens.
func withoutCached(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "cached_tokens") {
			kept = append(kept, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(kept, "\n")
}

// cut returns the request with a random part of its answer in resume, and the rest of the answer;
// nil if the answer has no tokens.
func (a *content) cut(in *pb.GenerateRequest, r *rand.Rand) (*pb.GenerateRequest, *content) {
	again := proto.CloneOf(in)
	rest := &content{Prompt: &pb.PromptTokens{}, Outputs: map[uint32]*pb.Tokens{}, Finished: map[uint32]string{}}
	for i, o := range a.Outputs {
		k := r.IntN(len(o.GetTokenIds()) + 1)
		bytes := uint64(0)
		for _, d := range o.GetDetails()[:k] {
			bytes += uint64(d.GetTextBytes())
		}
		rest.Finished[i] = a.Finished[i]
		if k < len(o.GetTokenIds()) {
			rest.Outputs[i] = &pb.Tokens{TokenIndex: uint32(k), TokenIds: o.GetTokenIds()[k:],
				Text: o.GetText()[bytes:], Details: o.GetDetails()[k:]}
		}
		if k > 0 || r.IntN(8) == 0 { // an entry without tokens is allowed
			again.Resume = append(again.Resume, &pb.Resume{OutputIndex: i, TokenIds: o.GetTokenIds()[:k], TextBytes: &bytes})
		}
	}
	if len(again.GetResume()) == 0 {
		return nil, nil
	}
	return again, rest
}

// soakWords are the parts of prompts: words, characters of several bytes, and the texts of special
// tokens.
var soakWords = []string{"Once", " upon", " a", " time", " Tom", " had", " red", " ball", "\n", " é", " 日本", "🜁", " ", "</s>", "<s>", "."}

// randomRequest returns the request of a seed. Prompts are shorter and longer than every context of
// the fleet.
func randomRequest(seed uint64) *pb.GenerateRequest {
	r := rand.New(rand.NewPCG(seed, 1))
	length := []int{1, 8, 60, 90, 110, 190, 210, 500, 520}[r.IntN(9)] + r.IntN(8)
	in := &pb.GenerateRequest{Model: stories, Response: &pb.ResponseOptions{OutputLogprobs: ptr(true)}}
	if r.IntN(2) == 0 {
		ids := make([]uint32, length)
		for i := range ids {
			ids[i] = uint32(3 + r.IntN(2045))
		}
		in.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}
	} else {
		var text strings.Builder
		for range length {
			text.WriteString(soakWords[r.IntN(len(soakWords))])
		}
		in.Input = &pb.GenerateRequest_Prompt{Prompt: text.String()}
	}
	chance := func(of int) bool { return r.IntN(of) == 0 }
	s := &pb.Sampling{Seed: ptr([]uint64{0, 1, math.MaxUint64, r.Uint64()}[r.IntN(4)])}
	if chance(2) {
		s.Temperature = ptr([]float32{0, 1e-45, 1e-6, 0.7, 3, 100}[r.IntN(6)])
	}
	if chance(3) {
		s.TopK, s.TopP = ptr([]int32{0, 1, 64, 65, 2047}[r.IntN(5)]), ptr([]float32{1e-45, 0.1, 0.9, 1}[r.IntN(4)])
	}
	if chance(4) {
		s.MinP, s.TypicalP = ptr([]float32{0, 1e-45, 0.5, 1}[r.IntN(4)]), ptr([]float32{1e-45, 0.2, 1}[r.IntN(3)])
	}
	if chance(3) {
		s.RepetitionPenalty, s.PresencePenalty = ptr([]float32{1e-38, 0.5, 1.1, 100}[r.IntN(4)]), ptr([]float32{-100, 0, 1}[r.IntN(3)])
		s.FrequencyPenalty, s.PenaltyWindow = ptr([]float32{-1, 0, 100}[r.IntN(3)]), ptr([]int32{-1, 0, 17, math.MaxInt32}[r.IntN(4)])
	}
	if chance(4) {
		s.LogitBias = map[int32]float32{int32(r.IntN(2048)): float32(math.Inf(-1)), int32(r.IntN(2048)): math.MaxFloat32, 300: -5}
	}
	if chance(3) {
		s.NumSequences = ptr(int32(1 + r.IntN(4)))
	}
	in.Sampling = s
	in.Stopping = &pb.Stopping{IgnoreEos: ptr(chance(2))}
	if !chance(4) { // without it a request gets as many tokens as the context allows
		in.Stopping.MaxTokens = ptr([]int32{1, 2, 30, 100, 300, math.MaxInt32}[r.IntN(6)])
		in.Stopping.MinTokens = ptr(min(in.Stopping.GetMaxTokens(), int32(r.IntN(20))))
	}
	if chance(2) {
		in.Stopping.Stop = []string{[]string{"a", " the", "\n", "nd th", "\ufffd", "aaaaab"}[r.IntN(6)], "never to be seen"}
		in.Stopping.IncludeStopInOutput = ptr(chance(2))
	}
	if chance(4) {
		in.Response.OutputCandidates = ptr(int32(r.IntN(65)))
	}
	in.Cache = &pb.CacheOptions{Salt: ptr([]string{"", "x"}[r.IntN(2)]), BypassPrefixCache: ptr(chance(3))}
	in.Priority = ptr([]int32{0, 0, math.MinInt32, math.MaxInt32}[r.IntN(4)])
	return in
}
