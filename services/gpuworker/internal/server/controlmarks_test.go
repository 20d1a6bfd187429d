package server

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/modeltest"
	"github.com/millrace/millrace/gpuworker/tools"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// loadMarks loads the shipped model with a template and every mark as a control token, in place of its last tokens.
func (w *worker) loadMarks(t *testing.T, name, template string) (marks map[uint32]string) {
	t.Helper()
	from := filepath.Join(w.dir, "stories.gguf")
	file, err := gguf.Open(from)
	require.NoError(t, err)
	pieces, _, err := file.Metadata().Strings("tokenizer.ggml.tokens")
	require.NoError(t, err)
	kinds, _, err := file.Metadata().Ints("tokenizer.ggml.token_type")
	require.NoError(t, err)
	require.NoError(t, file.Close())
	marks, types := map[uint32]string{}, make([]int32, len(kinds))
	for i, k := range kinds {
		types[i] = int32(k)
	}
	for i, tag := range tools.Marks() {
		id := len(pieces) - 1 - i
		pieces[id], types[id], marks[uint32(id)] = tag, 3, tag // a control token
	}
	modeltest.WithMetadata(t, from, filepath.Join(w.dir, name+".gguf"), map[string]any{
		"tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": types, "tokenizer.chat_template": template,
	})
	_, _, err = w.manager.Load(t.Context(), name, model.Options{}, nil)
	require.NoError(t, err)
	return marks
}

// Where marks are control tokens, calls have them, and no part shows one. A stream resumes inside them.
func TestCallsHaveControlTokens(t *testing.T) {
	w := start(t, simDevice(t, sim.Options{}))
	for name, need := range map[string][]string{
		"harmony": {"<|channel|>", "<|message|>"}, "gemma4": {"<|tool_call>", "<tool_call|>"}, "mistral": {"[TOOL_CALLS]", "[ARGS]"},
		"hermes": {"<tool_call>", "</tool_call>"},
	} {
		marks := w.loadMarks(t, name, shows[name]+turnsWithTools+ends[name])
		ended := 0
		for seed := range uint64(12) {
			in := calling(name, seed)
			in.GetChat().ToolChoice.Name = ptr("trip")
			whole := w.generate(t.Context(), t, in)
			require.NoError(t, whole.err)
			if whole.finished[0].GetReason() != pb.FinishReason_FINISH_REASON_STOP {
				continue
			}
			ended++
			var used []string
			for _, id := range whole.ids[0] {
				if tag := marks[id]; tag != "" {
					used = append(used, tag)
				}
			}
			require.Subset(t, used, need, name)
			for _, tag := range need {
				require.NotContains(t, whole.text[0], tag)
			}
			want := answersOf(t, whole, 0)
			require.Equal(t, "trip", want[len(want)-1].name)
			if ended > 1 {
				continue
			}
			for k := range len(whole.ids[0]) {
				again := proto.Clone(in).(*pb.GenerateRequest)
				again.Resume = []*pb.Resume{{TokenIds: whole.ids[0][:k]}}
				got := w.generate(t.Context(), t, again)
				require.NoError(t, got.err, "%s after %d", name, k)
				require.Equal(t, whole.ids[0][k:], got.ids[0])
				require.True(t, strings.HasSuffix(whole.text[0], got.text[0]))
			}
		}
		require.Positive(t, ended, name)
	}
}
