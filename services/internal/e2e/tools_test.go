package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// withTemplate returns a model file with a chat template in its metadata.
func withTemplate(t *testing.T, file []byte, template string) []byte {
	t.Helper()
	const header, alignment = 24, 32
	var add []byte
	text := func(s string) {
		add = binary.LittleEndian.AppendUint64(add, uint64(len(s)))
		add = append(add, s...)
	}
	for i, key := range []string{"tokenizer.chat_template", "test.padding"} {
		text(key)
		add = binary.LittleEndian.AppendUint32(add, 8) // a string
		if i == 1 {
			template = strings.Repeat(" ", (2*alignment-(len(add)+8)%alignment)%alignment)
		}
		text(template)
	}
	out := bytes.Clone(file[:header])
	binary.LittleEndian.PutUint64(out[16:], binary.LittleEndian.Uint64(out[16:])+2)
	return append(append(out, add...), file[header:]...)
}

// toolTemplates show a format each, and end the reasoning, so that an answer is a call.
var toolTemplates = map[string]string{
	"hermes":      `{#- <tool_call>{"name": , "arguments": } </think> #}{{ messages[-1].content }}{% for t in tools %}{{ t.function.name }}{% endfor %}</think>`,
	"qwen3_coder": `{#- <tool_call> <function= <parameter= </think> #}{{ messages[-1].content }}{% for t in tools %}{{ t.function.name }}{% endfor %}</think>`,
	"mistral":     `{#- [THINK] [TOOL_CALLS] [ARGS] #}{{ messages[-1].content }}{% for t in tools %}{{ t.function.name }}{% endfor %}[/THINK]`,
}

// A worker drains under streams of tool calls, and one dies. They go on with the same tokens, arguments and ids of calls.
func TestToolCallsOutliveTheirWorker(t *testing.T) {
	t.Parallel()
	models := t.TempDir()
	file, err := os.ReadFile(filepath.Join(modelsDir, stories+".gguf"))
	require.NoError(t, err)
	args := []string{"--device", "cpu"}
	var names []string
	for name, template := range toolTemplates {
		require.NoError(t, os.WriteFile(filepath.Join(models, name+".gguf"), withTemplate(t, file, template), 0o600))
		args, names = append(args, "--load", name), append(names, name)
	}
	workers := map[string]*server{"w1": startWorkerOf(t, models, "w1", args...), "w2": startWorkerOf(t, models, "w2", args...)}
	s := startScheduler(t, []*server{workers["w1"], workers["w2"]}, patient...)
	schema := `{"type":"object","properties":{"stops":{"type":"array","minItems":40,"maxItems":44,"items":{"type":"object",
		"properties":{"city":{"enum":["Oslo","Rome","Lima"]},"days":{"type":"integer","minimum":1,"maximum":30}},"required":["city","days"],"additionalProperties":false}}},
		"required":["stops"],"additionalProperties":false}`
	var requests []*pb.GenerateRequest
	for i, name := range names {
		s.untilServed(t, name, 2)
		in := ask(name, 900)
		in.Stopping.IgnoreEos = nil
		in.Sampling = &pb.Sampling{Seed: ptr(uint64(70 + i))}
		in.Input = &pb.GenerateRequest_Chat{Chat: &pb.Chat{
			Messages:   []*pb.ChatMessage{{Role: "user", Content: "Where to?"}},
			Tools:      []*pb.Tool{{Name: "trip", Parameters: &schema}},
			ToolChoice: &pb.ToolChoice{Mode: pb.ToolMode_TOOL_MODE_REQUIRED, Parallel: ptr(false)},
		}}
		held(in).Stopping.MaxTokens = ptr(int32(900))
		requests = append(requests, in)
	}
	want := undisturbed(t, workers["w1"], requests)
	outlive := func(lose func(worker string)) {
		next, before := 0, s.resumes()
		calls := beginAll(t, s, len(requests), func() *pb.GenerateRequest { next++; return requests[next-1] })
		lose(calls[0].started.GetWorkerId())
		for i, c := range calls {
			got := c.end()
			requireSame(t, want[i], got, names[i])
			require.Len(t, got.calls, 1, names[i])
			if got.finished.GetReason() == pb.FinishReason_FINISH_REASON_STOP {
				var trip struct{ Stops []struct{ City string } }
				require.NoError(t, json.Unmarshal([]byte(got.text), &trip), fmt.Sprint(names[i], " ", got.text))
				require.GreaterOrEqual(t, len(trip.Stops), 40)
			}
		}
		require.Eventually(t, func() bool { return s.resumes() > before }, hang, 10*time.Millisecond, "none was continued: nothing is proven")
	}
	outlive(func(worker string) {
		_, err := s.fleet.DrainWorker(within(t), &pb.DrainWorkerRequest{WorkerId: worker})
		require.NoError(t, err)
	})
	for name := range workers {
		_, err := s.fleet.UndrainWorker(within(t), &pb.UndrainWorkerRequest{WorkerId: name})
		require.NoError(t, err)
	}
	for _, name := range names {
		s.untilServed(t, name, 2)
	}
	outlive(func(worker string) { workers[worker].kill() })
}
