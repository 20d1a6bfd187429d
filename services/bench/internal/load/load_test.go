package load_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// worker is a fake: it sends tokens, two a message, until max_tokens, and refuses every request
// that refuse picks.
type worker struct {
	pb.UnimplementedInferenceServiceServer
	pb.UnimplementedModelServiceServer
	models  []*pb.ModelInfo
	refuse  func(*pb.GenerateRequest) bool
	hang    bool // after the first message, until the call is cancelled
	silent  bool // no finished event
	running atomic.Int64
	peak    atomic.Int64
	seen    chan *pb.GenerateRequest
}

func (w *worker) Generate(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
	w.peak.Store(max(w.peak.Load(), w.running.Add(1)))
	defer w.running.Add(-1)
	if w.seen != nil {
		select {
		case w.seen <- in:
		case <-stream.Context().Done(): // more came than the test counts
			return stream.Context().Err()
		}
	}
	if w.refuse != nil && w.refuse(in) {
		return rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: "FULL", Message: "no room"}.Err()
	}
	for n := in.GetStopping().GetMaxTokens(); n > 0; n -= 2 {
		ids := make([]uint32, min(n, 2))
		event := &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{TokenIds: ids}}}
		if err := stream.Send(event); err != nil {
			return err
		}
		if w.hang {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
	}
	if w.silent {
		return nil
	}
	return stream.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{}}})
}

func (w *worker) ListModels(context.Context, *pb.ListModelsRequest) (*pb.ListModelsResponse, error) {
	return &pb.ListModelsResponse{Models: w.models}, nil
}

// generator makes calls to w; the leak check runs last.
func generator(t *testing.T, w *worker, to *load.Recorder) *load.Generator {
	t.Helper()
	rpctest.NoLeaks(t)
	conn := rpctest.Pair(t, rpc.ServerConfig{}, func(s grpc.ServiceRegistrar) {
		pb.RegisterInferenceServiceServer(s, w)
		pb.RegisterModelServiceServer(s, w)
	})
	return &load.Generator{
		Conns: []grpc.ClientConnInterface{conn}, Maker: load.Maker{Model: "m", Vocabulary: 50, Seed: 3}, To: to,
	}
}

func report(t *testing.T, r *load.Recorder) load.Report {
	t.Helper()
	out, err := r.Report()
	require.NoError(t, err)
	return out
}

func TestClosedLoopMakesAndCountsItsCalls(t *testing.T) {
	w, to := &worker{}, load.NewRecorder(nil)
	generator(t, w, to).Closed(t.Context(), 3, load.Size{Prompt: 4, Output: 5}, 0, 20)
	got := report(t, to)
	require.EqualValues(t, 20, got.Requests)
	require.EqualValues(t, 20, got.OK)
	require.EqualValues(t, 100, got.Tokens)
	require.EqualValues(t, 60, got.Messages, "messages of two tokens")
	require.EqualValues(t, 20, got.TTFT.Count)
	require.EqualValues(t, 60, got.InterToken.Count, "one for each token behind the first message")
	require.EqualValues(t, 20, got.EndToEnd.Count)
	require.LessOrEqual(t, w.peak.Load(), int64(3))
	require.LessOrEqual(t, got.PeakStreams, int64(3))
	require.Empty(t, got.Errors)
	require.Positive(t, got.TokensPerSecond)
	require.LessOrEqual(t, got.TTFT.P50, got.EndToEnd.Max)
	require.Equal(t, load.Live{Finished: 20, Messages: 60, Tokens: 100}, to.Live())
}

func TestErrorsAreCountedByCodeAndReason(t *testing.T) {
	w := &worker{refuse: func(in *pb.GenerateRequest) bool { return in.GetSampling().GetSeed()%2 == 1 }}
	to := load.NewRecorder(nil)
	g := generator(t, w, to)
	g.Closed(t.Context(), 2, load.Size{Prompt: 1, Output: 1}, 0, 10)
	w.refuse, w.silent = nil, true
	g.Closed(t.Context(), 1, load.Size{Prompt: 1, Output: 1}, 0, 2)
	got := report(t, to)
	require.EqualValues(t, 5, got.OK)
	require.EqualValues(t, 7, got.Failed)
	require.Equal(t, []load.ErrorCount{
		{ErrorKey: load.ErrorKey{Code: "ResourceExhausted", Reason: "FULL"}, Count: 5, Example: "no room"},
		{ErrorKey: load.ErrorKey{Code: "DataLoss"}, Count: 2, Example: "the stream ended OK without a finished event"},
	}, got.Errors)
	var text bytes.Buffer
	got.Print(&text)
	require.Contains(t, text.String(), "5 x ResourceExhausted FULL: no room")
}

func TestInterruptedCallsAreNotErrors(t *testing.T) {
	for name, run := range map[string]func(context.Context, *load.Generator){
		"closed": func(ctx context.Context, g *load.Generator) { g.Closed(ctx, 3, load.Size{Prompt: 1, Output: 9}, 0, 0) },
		"open": func(ctx context.Context, g *load.Generator) {
			g.Open(ctx, load.Poisson(1000, load.Size{Prompt: 1, Output: 9}, 1, 0, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, to := &worker{hang: true, seen: make(chan *pb.GenerateRequest, 100)}, load.NewRecorder(nil)
			g := generator(t, w, to)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan struct{})
			go func() { defer close(done); run(ctx, g) }()
			for range 3 {
				<-w.seen
			}
			cancel()
			<-done
			got := report(t, to)
			require.GreaterOrEqual(t, got.Cut, uint64(3))
			require.Zero(t, got.Failed)
			require.Zero(t, got.OK)
		})
	}
}

func TestCallPastItsDeadlineIsAnError(t *testing.T) {
	g := generator(t, &worker{hang: true}, nil)
	var got load.Report
	for g.Timeout = 50 * time.Millisecond; got.TTFT.Count == 0; g.Timeout *= 2 { // a slow machine needs longer for the first message
		require.Less(t, g.Timeout, time.Minute)
		g.To = load.NewRecorder(nil)
		g.Closed(t.Context(), 1, load.Size{Prompt: 1, Output: 9}, 0, 1)
		got = report(t, g.To)
		require.Len(t, got.Errors, 1)
		require.Equal(t, "DeadlineExceeded", got.Errors[0].Code)
	}
	require.EqualValues(t, 1, got.TTFT.Count, "what came before counts")
}

func TestOpenLoopDoesNotWaitForAnswers(t *testing.T) {
	w, to := &worker{hang: true, seen: make(chan *pb.GenerateRequest, 10)}, load.NewRecorder(nil)
	g := generator(t, w, to)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.Open(ctx, slices.Values([]load.Arrival{
			{At: 0, Size: load.Size{Prompt: 3, Output: 2}}, {At: time.Millisecond, Size: load.Size{Prompt: 5, Output: 4}},
		}))
	}()
	lengths := []int{len((<-w.seen).GetTokenIds().GetIds()), len((<-w.seen).GetTokenIds().GetIds())}
	slices.Sort(lengths)
	require.Equal(t, []int{3, 5}, lengths, "both run though neither has ended")
	cancel()
	<-done
}

func TestEveryCallIsALineOfCSV(t *testing.T) {
	var lines bytes.Buffer
	to := load.NewRecorder(&lines)
	generator(t, &worker{}, to).Closed(t.Context(), 1, load.Size{Prompt: 7, Output: 4}, 0, 3)
	report(t, to)
	rows, err := csv.NewReader(&lines).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 4)
	require.Equal(t, "ttft_ms", rows[0][3])
	require.Equal(t, []string{"7", "4", "2", "OK", ""}, rows[1][5:])
}

func TestRequestsDependOnSeedAndIndex(t *testing.T) {
	m := load.Maker{Model: "m", Vocabulary: 50, Seed: 3, IDsOnly: true}
	one, again, other := m.Request(1, load.Size{Prompt: 20, Output: 6}), m.Request(1, load.Size{Prompt: 20, Output: 6}), m.Request(2, load.Size{Prompt: 20, Output: 6})
	require.Equal(t, one.GetTokenIds().GetIds(), again.GetTokenIds().GetIds())
	require.NotEqual(t, one.GetTokenIds().GetIds(), other.GetTokenIds().GetIds())
	require.Len(t, one.GetTokenIds().GetIds(), 20)
	require.Less(t, slices.Max(one.GetTokenIds().GetIds()), uint32(50))
	require.EqualValues(t, 6, one.GetStopping().GetMaxTokens())
	require.True(t, one.GetStopping().GetIgnoreEos())
	require.True(t, one.GetResponse().GetTokenIdsOnly())
	m.Text, m.IDsOnly = "once upon", false
	text := m.Request(1, load.Size{Output: 6})
	require.Equal(t, "once upon", text.GetPrompt())
	require.False(t, text.GetResponse().GetTokenIdsOnly())
}

func TestRequestsShareTheConfiguredPrefix(t *testing.T) {
	m := load.Maker{Model: "m", Vocabulary: 1000, Seed: 3, Shared: 12, Tenant: "a", Bypass: true}
	size := load.Size{Prompt: 20, Output: 1}
	one, other := m.Request(1, size).GetTokenIds().GetIds(), m.Request(2, size).GetTokenIds().GetIds()
	require.Equal(t, one[:12], other[:12])
	require.NotEqual(t, one[12:], other[12:])
	require.Equal(t, one[:5], m.Request(1, load.Size{Prompt: 5, Output: 1}).GetTokenIds().GetIds(), "all of a shorter prompt is shared")
	require.Equal(t, "a", m.Request(1, size).GetFairnessId())
	require.True(t, m.Request(1, size).GetCache().GetBypassPrefixCache())
	m.Tenant, m.Bypass = "", false
	require.Nil(t, m.Request(1, size).FairnessId)
	require.Nil(t, m.Request(1, size).Cache)
}

func TestPeriodicArrivals(t *testing.T) {
	var got []time.Duration
	for a := range load.Periodic(3*time.Second, load.Size{Prompt: 4, Output: 1}) {
		require.Equal(t, load.Size{Prompt: 4, Output: 1}, a.Size)
		if got = append(got, a.At); len(got) == 3 {
			break
		}
	}
	require.Equal(t, []time.Duration{3 * time.Second, 6 * time.Second, 9 * time.Second}, got)
}

func TestPoissonArrivalsHaveRateAndSeed(t *testing.T) {
	size := load.Size{Prompt: 1, Output: 2}
	var last time.Duration
	var gaps []float64
	for a := range load.Poisson(100, size, 7, 0, 20000) {
		require.GreaterOrEqual(t, a.At, last)
		require.Equal(t, size, a.Size)
		gaps = append(gaps, (a.At - last).Seconds())
		last = a.At
	}
	require.Len(t, gaps, 20000)
	require.InEpsilon(t, 200, last.Seconds(), 0.03, "20 000 arrivals at 100 a second")
	var squares float64
	for _, g := range gaps {
		squares += (g - 0.01) * (g - 0.01)
	}
	require.InEpsilon(t, 0.0001, squares/20000, 0.1, "exponential gaps have the variance of their mean squared")
	once := slices.Collect(load.Poisson(10, size, 1, time.Second, 0))
	require.Equal(t, once, slices.Collect(load.Poisson(10, size, 1, time.Second, 0)))
	require.NotEqual(t, slices.Collect(load.Poisson(10, size, 1, time.Second, 5)), slices.Collect(load.Poisson(10, size, 2, time.Second, 5)))
	for a := range load.Poisson(10, size, 1, time.Second, 0) {
		require.Less(t, a.At, time.Second)
	}
}

func TestFindTargetExplainsAMissingModel(t *testing.T) {
	ready := func(name string) *pb.ModelInfo {
		return &pb.ModelInfo{
			Name: name, State: pb.ModelState_MODEL_STATE_READY, Capabilities: &pb.ModelCapabilities{Vocabulary: 9, Tokenizer: true},
			Loaded: &pb.LoadResult{ContextLength: 77, MaxSequences: 5},
		}
	}
	onDisk := &pb.ModelInfo{Name: "disk", State: pb.ModelState_MODEL_STATE_ON_DISK}
	for name, tc := range map[string]struct {
		models []*pb.ModelInfo
		ask    string
		want   string // part of the error
	}{
		"the only one":   {[]*pb.ModelInfo{ready("a"), onDisk}, "", ""},
		"by name":        {[]*pb.ModelInfo{ready("a"), ready("b")}, "a", ""},
		"two, no name":   {[]*pb.ModelInfo{ready("a"), ready("b")}, "", "--model"},
		"only on disk":   {[]*pb.ModelInfo{onDisk}, "disk", "millrace load disk"},
		"nothing loaded": {nil, "", "none is loaded"},
	} {
		t.Run(name, func(t *testing.T) {
			g := generator(t, &worker{models: tc.models}, load.NewRecorder(nil))
			got, err := load.FindTarget(t.Context(), g.Conns[0], tc.ask)
			if tc.want != "" {
				require.ErrorIs(t, err, load.ErrModel)
				require.ErrorContains(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, load.Target{Model: "a", Vocabulary: 9, Context: 77, Tokenizer: true, Sequences: 5}, got)
		})
	}
}
