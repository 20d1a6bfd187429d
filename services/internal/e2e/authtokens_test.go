package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
)

// cached_tokens counts only tokens that the caller's own tenant has sent, unless the keys of two
// tenants share the cache.
func TestTenantsSeeNoOthersCachedTokens(t *testing.T) {
	k := keep(t, 1, func(f *keyFile) {
		for _, id := range []string{"a", "b"} {
			f.add(id, nil, auth.Generate)
		}
		for _, id := range []string{"s", "s2"} {
			f.add(id, func(k *auth.Key) { k.SharesPrefixes = true }, auth.Generate)
		}
	})
	in := ask(long, 1)
	in.Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("Once upon a time there was a little mill. ", 8)}
	cached := func(id string) uint32 {
		t.Helper()
		stream, err := k.by(t, id).Generate(t.Context(), in)
		require.NoError(t, err)
		first, err := stream.Recv()
		require.NoError(t, err)
		for err == nil {
			_, err = stream.Recv()
		}
		return first.GetStarted().GetCachedTokens()
	}
	require.Zero(t, cached("a"))
	own := cached("a")
	require.Positive(t, own)
	require.Zero(t, cached("b"), "what a has sent")
	require.Equal(t, own, cached("b"))
	require.Zero(t, cached("s"), "what a and b have sent")
	require.Equal(t, own, cached("s2"), "what s has sent")
}

// requireTextsCounted checks that the tokens of Tokenize and Detokenize count for the key "texts"
// of a scheduler, and for a key of a worker.
func requireTextsCounted(t *testing.T, k *keyed) {
	t.Helper()
	by := k.by(t, "texts")
	ids, err := by.Tokenize(within(t), &pb.TokenizeRequest{Model: long, Input: &pb.TokenizeRequest_Text{Text: "Once upon a time"}})
	require.NoError(t, err)
	back := &pb.DetokenizeRequest{Model: long, TokenIds: ids.GetTokenIds()}
	_, err = by.Detokenize(within(t), back)
	require.NoError(t, err)
	_, body := page(t, k.metricsAddress, "/metrics")
	require.Greater(t, len(ids.GetTokenIds()), 3)
	require.InDelta(t, 2*len(ids.GetTokenIds()), monitortest.Series(t, body)["millrace_key_tokens_total key=texts"], 0)

	// A call whose deadline passes has no response with its tokens: the estimate counts. On a busy
	// machine the deadline may pass before the request has arrived; a later one does not.
	counted := func() bool {
		_, body := page(t, k.metricsAddress, "/metrics")
		return monitortest.Series(t, body)["millrace_key_tokens_total key=texts"] > 100_000
	}
	many := &pb.EmbedRequest{Model: long, Texts: slices.Repeat([]string{strings.Repeat("Once upon a time ", 100)}, 2000)}
	for limit, begin := 500*time.Millisecond, time.Now(); !counted(); limit *= 2 {
		require.Less(t, time.Since(begin), hang, "the estimate of a call that ended is not counted")
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err = by.Embed(ctx, many)
		cancel()
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
		for deadline := time.Now().Add(time.Second); !counted() && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}

	k.ofWorkers.add("texts", func(k *auth.Key) { k.Limits.TokensPerMinute = 1 }, auth.Generate)
	k.ofWorkers.write(t)
	direct := pb.NewInferenceServiceClient(dial(t, k.workers[0].address, k.ofWorkers.as(t, "texts")))
	detokenize := func() error {
		_, err := direct.Detokenize(within(t), back)
		return err
	}
	require.Eventually(t, func() bool { return detokenize() == nil }, hang, 10*time.Millisecond, "its file is read again")
	require.Equal(t, byWorker(codes.ResourceExhausted, "TOO_MANY_TOKENS"), faultOf(detokenize()))
}
