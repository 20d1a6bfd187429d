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

// Who sends a long answer to be gone on with has it computed again, as if it were a prompt.
func TestTokensThatAreBroughtAreCountedAsThoseOfThePrompt(t *testing.T) {
	t.Parallel()
	const tokens, brought = 400, 399
	k := keep(t, 1, func(f *keyFile) { f.add("web", nil, auth.Generate) })
	whole := generate(within(t), k.by(t, "web"), ask(long, tokens))
	require.NoError(t, whole.err)
	in := ask(long, tokens)
	in.Resume = []*pb.Resume{{TokenIds: whole.ids[:brought]}}
	rest := generate(within(t), k.by(t, "web"), in)
	require.NoError(t, rest.err)
	require.Equal(t, whole.ids[brought:], rest.ids)
	_, body := page(t, k.ofMeasures, "/metrics")
	require.InDelta(t, 2*whole.started.GetPromptTokens()+2*tokens, monitortest.Series(t, body)["millrace_key_tokens_total key=web"], 0)

	k.ofWorkers.add("short", func(k *auth.Key) { k.Limits.TokensPerMinute = 40 }, auth.Generate)
	k.ofWorkers.write(t)
	direct := pb.NewInferenceServiceClient(dial(t, k.workers[0].address, k.ofWorkers.as(t, "short")))
	require.Eventually(t, func() bool { return generate(within(t), direct, in).err == nil }, hang, 10*time.Millisecond)
	require.Equal(t, byWorker(codes.ResourceExhausted, "TOO_MANY_TOKENS"), faultOf(generate(within(t), direct, ask(long, 1)).err),
		"what was brought is nine minutes' worth")
}
