package generate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/tools"
)

func noMark(int32) string { return "" }

// parted is a request whose answer has a reasoning between tags.
func parted(r Request) Request {
	r.Parts = func() *tools.Parser {
		return tools.Detect("</think>").Parser(func(string) bool { return false }, tools.Answer{})
	}
	r.Mark, r.PromptTopN, r.Sequences = noMark, -1, 1
	return r
}

// TestPartsDivideTheText runs answers with parts, whole and resumed after every token.
func TestPartsDivideTheText(t *testing.T) {
	for name, tc := range map[string]struct {
		script             string
		request            Request
		reasoning, content string
		reason             int // tokens of reasoning
	}{
		"reasoning and text":   {"<think>\nHm.</think>\n\nYes e!", Request{MaxTokens: 27}, "Hm.", "Yes e!", 12},
		"cut in the reasoning": {"<think>\nHm.", Request{MaxTokens: 10}, "Hm", "", 3},
		"a stop string":        {"<think>no</think>a no!", Request{MaxTokens: 40, Stop: []string{"no"}}, "no", "a ", 10},
		"a stop token":         {"<think>a</think>b$", Request{MaxTokens: 40, StopIDs: []int32{'$'}}, "a", "b", 9},
		"an included token":    {"b$", Request{MaxTokens: 40, StopIDs: []int32{'$'}, IncludeStop: true}, "", "b$", 0},
		"a mark that is cut":   {"<think>a</thi", Request{MaxTokens: 13}, "a</thi", "", 6},
	} {
		t.Run(name, func(t *testing.T) {
			bytes := tc.script // tokens are bytes
			whole := newRecorder()
			_, err := runScript(t, bytes, parted(tc.request), whole)
			require.NoError(t, err)
			require.Equal(t, tc.reasoning+tc.content, whole.textOf(0))
			require.Equal(t, map[tools.Kind]int{tools.Reasoning: len(tc.reasoning), tools.Content: len(tc.content)}, whole.kinds)
			require.Equal(t, tc.reason, whole.finished[0].Reasoning)
			for k := range whole.finished[0].Generated {
				r := parted(tc.request)
				r.Resume = []Resume{{}}
				for _, b := range []byte(bytes[:k]) {
					r.Resume[0].IDs = append(r.Resume[0].IDs, int32(b))
				}
				rest := newRecorder()
				rest.first = map[int]int{0: k}
				_, err := runScript(t, bytes, r, rest)
				require.NoError(t, err)
				require.True(t, strings.HasSuffix(whole.textOf(0), rest.textOf(0)))
				require.Equal(t, tc.reason, rest.finished[0].Reasoning, "after %d", k)
				require.LessOrEqual(t, rest.kinds[tools.Reasoning], len(tc.reasoning))
			}
		})
	}
}
