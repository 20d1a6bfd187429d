package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
)

// requireTextsCounted proves that the tokens of Tokenize and Detokenize count for the key "texts" of a scheduler, and for a key of
// a worker.
func requireTextsCounted(t *testing.T, k *keyed) {
	t.Helper()
	by := k.by(t, "texts")
	ids, err := by.Tokenize(within(t), &pb.TokenizeRequest{Model: long, Input: &pb.TokenizeRequest_Text{Text: "Once upon a time"}})
	require.NoError(t, err)
	back := &pb.DetokenizeRequest{Model: long, TokenIds: ids.GetTokenIds()}
	_, err = by.Detokenize(within(t), back)
	require.NoError(t, err)
	_, body := page(t, k.ofMeasures, "/metrics")
	require.Greater(t, len(ids.GetTokenIds()), 3)
	require.InDelta(t, 2*len(ids.GetTokenIds()), monitortest.Series(t, body)["millrace_key_tokens_total key=texts"], 0)

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
