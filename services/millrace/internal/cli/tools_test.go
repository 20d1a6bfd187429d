package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// calls answers a message of the user with two calls, and the result of a tool with a text.
func (a *answers) calls(in *pb.GenerateRequest, s generating) error {
	messages := in.GetChat().GetMessages()
	a.all = append(a.all, in)
	if err := s.Send(begun(in)); err != nil {
		return err
	}
	if messages[len(messages)-1].GetRole() == "tool" {
		return say(s, 0, "it is "+messages[len(messages)-1].GetContent())
	}
	for i, t := range []*pb.Tokens{
		{Text: "Hm.I look.", Parts: []*pb.Part{{Kind: pb.PartKind_PART_KIND_REASONING, TextBytes: 3}, {Kind: pb.PartKind_PART_KIND_CONTENT, TextBytes: 7}}},
		{Text: `{"city": `, Parts: []*pb.Part{{Kind: pb.PartKind_PART_KIND_TOOL_CALL, TextBytes: 9, Call: &pb.CallStart{Id: "c1", Name: "weather"}}}},
		{Text: `"Oslo"}{}`, Parts: []*pb.Part{
			{Kind: pb.PartKind_PART_KIND_TOOL_CALL, TextBytes: 7},
			{Kind: pb.PartKind_PART_KIND_TOOL_CALL, TextBytes: 2, CallIndex: 1, Call: &pb.CallStart{Id: "c2", Name: "now"}},
		}},
	} {
		t.TokenIndex, t.TokenIds = uint32(i), []uint32{uint32(i)}
		if err := s.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: t}}); err != nil {
			return err
		}
	}
	return s.Send(&pb.GenerateResponse{Event: &pb.GenerateResponse_Finished{Finished: &pb.Finished{Reason: pb.FinishReason_FINISH_REASON_STOP}}})
}

const called = "Hm.\nI look.\nweather({\"city\": \"Oslo\"})\nnow({})\n"

func toolsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tools.json")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestToolsOfAFileAreOffered(t *testing.T) {
	var a answers
	r := serve(t, &fake{generate: a.calls})
	path := toolsFile(t, `[{"type":"function","function":{"name":"weather","description":"Says it.","parameters":{"type":"object"},"strict":true}},{"name":"now","input_schema":{}}]`)
	require.Equal(t, 0, r.run(t, "generate", "-q", "--chat", "--tools", path, "--tool-format", "hermes", "weather?"), r.err.String())
	require.Equal(t, called, r.out.String())
	chat := a.all[0].GetChat()
	require.Equal(t, "hermes", chat.GetToolFormat())
	require.True(t, proto.Equal(&pb.Tool{Name: "weather", Description: "Says it.", Parameters: proto.String(`{"type":"object"}`), Strict: proto.Bool(true)}, chat.GetTools()[0]))
	require.Equal(t, "{}", chat.GetTools()[1].GetParameters())
	for text, want := range map[string]string{`{}`: "no JSON list", `[{}]`: "function 0", `[`: "no JSON list"} {
		require.Equal(t, 2, r.run(t, "generate", "--chat", "--tools", toolsFile(t, text), "x"))
		require.Contains(t, r.err.String(), want)
	}
	require.Equal(t, 2, r.run(t, "generate", "--tools", path, "x"))
	require.Contains(t, r.err.String(), "--tools needs --chat")
}

// After calls, the next lines of a conversation are their results.
func TestLinesAfterCallsAreResults(t *testing.T) {
	var a answers
	r := serve(t, &fake{generate: a.calls})
	r.in = strings.NewReader("weather?\nsunny\nnoon\n/quit\n")
	require.Equal(t, 0, r.run(t, "chat", "-q", "--tools", toolsFile(t, `[{"name":"weather"},{"name":"now"}]`)), r.err.String())
	require.Equal(t, called+"it is noon\n", r.out.String())
	require.Len(t, a.all, 2)
	messages := a.all[1].GetChat().GetMessages()
	require.Equal(t, []string{"user: weather?", "assistant: I look.", "tool: sunny", "tool: noon"}, talk(a.all[1]))
	require.JSONEq(t, `{"city": "Oslo"}`, messages[1].GetToolCalls()[0].GetArguments())
	require.Equal(t, "c1", messages[2].GetToolCallId())
	require.Equal(t, "c2", messages[3].GetToolCallId())
}
