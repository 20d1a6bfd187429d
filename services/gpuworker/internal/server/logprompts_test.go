package server

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// logged returns the log of a worker that answers three prompts.
func logged(t *testing.T, prompts bool) string {
	t.Helper()
	var log bytes.Buffer
	w := startWith(t, simDevice(t, sim.Options{}), func(c *setup) {
		c.logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: &log})
		c.server.LogPrompts = prompts
	}, "stories")
	long := "Lily\n[ERROR] forged\x1b" + strings.Repeat("é", maxLoggedBytes/2) + "hidden"
	for _, in := range []*pb.GenerateRequest{
		{Input: &pb.GenerateRequest_Prompt{Prompt: long[:200]}},
		{Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: []uint32{1, 403, 407}}}},
	} {
		in.Model, in.Stopping = "stories", &pb.Stopping{MaxTokens: ptr(int32(1))}
		require.NoError(t, w.generate(t.Context(), t, in).err)
	}
	w.server.logPrompt(t.Context(), &pb.GenerateRequest{Model: "stories", Input: &pb.GenerateRequest_Prompt{Prompt: long}})
	w.server.logPrompt(t.Context(), &pb.GenerateRequest{Model: "stories", Input: &pb.GenerateRequest_Chat{
		Chat: &pb.Chat{Messages: []*pb.ChatMessage{{Role: "user", Content: "who is Tom"}}},
	}})
	w.stop() // the log is complete
	return log.String()
}

func TestPromptsAreLoggedOnlyWithLogPrompts(t *testing.T) {
	without := logged(t, false)
	require.NotEmpty(t, without)
	for _, text := range []string{"Lily", "Tom", "token_ids", "403, 407"} { // times and request ids have 403 by themselves
		require.NotContains(t, without, text)
	}

	log := logged(t, true)
	require.Equal(t, 1, strings.Count(log, "[WARN]"), "it warns once")
	require.Equal(t, 4, strings.Count(log, "prompt: request_id="))
	for _, text := range []string{"Lily", "token_ids=[1, 403, 407]", "user: who is Tom"} {
		require.Contains(t, log, text)
	}
	require.NotContains(t, log, "hidden", "a line has the beginning of a long prompt")
	require.NotContains(t, log, "\x1b", "what terminals would obey is written out")
	require.NotContains(t, log, "\n[ERROR]", "no prompt begins a line")
}
