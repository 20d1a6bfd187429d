package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// A scheduler that starts over workers with cached prefixes, as after a crash, learns them from the
// workers' reports and sends each prompt to the worker that has its prefix.
func TestNewSchedulerRoutesByCachedPrefixes(t *testing.T) {
	t.Parallel()
	workers := []*server{startWorker(t, "w1", paced...), startWorker(t, "w2", paced...)}
	prompts := []*pb.GenerateRequest{ask(long, 1), ask(long, 1)}
	for i, text := range []string{"Once upon a time there was a little mill. ", "The big red ball rolled down the hill. "} {
		prompts[i].Input = &pb.GenerateRequest_Prompt{Prompt: strings.Repeat(text, 40)}
		require.NoError(t, generate(within(t), workers[i].infer, prompts[i]).err)
	}
	scheduler := startScheduler(t, workers)
	scheduler.untilServed(t, long, 2)
	for _, i := range []int{1, 0, 0, 1, 1, 1} {
		out := generate(within(t), scheduler.infer, prompts[i])
		require.NoError(t, out.err)
		require.Equal(t, []string{"w1", "w2"}[i], out.started.GetWorkerId())
		require.Positive(t, out.started.GetCachedTokens())
	}
}
