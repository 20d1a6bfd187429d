package cli_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestChatFlagsReachTheRequest(t *testing.T) {
	var a answers
	var tokenized *pb.TokenizeRequest
	r := serve(t, &fake{generate: a.generate, tokenize: func(ctx context.Context, in *pb.TokenizeRequest) (*pb.TokenizeResponse, error) {
		tokenized = in
		return bytewise(ctx, in)
	}})
	flags := []string{
		"--template", "tool_use", "--parse-special-in-content", "--template-arg", "enable_thinking=false",
		"--template-arg", ` effort="low"`, "--template-arg", `list=[1, null]`, "--template-arg", "enable_thinking=true",
	}
	args, err := structpb.NewStruct(map[string]any{"enable_thinking": true, "effort": "low", "list": []any{1, nil}})
	require.NoError(t, err)
	want := &pb.Chat{
		Messages:       []*pb.ChatMessage{{Role: "user", Content: "hi"}},
		TemplateKwargs: args, TemplateName: proto.String("tool_use"), ParseSpecialInContent: proto.Bool(true),
	}
	r.in = strings.NewReader("hi\nagain\n")
	require.Equal(t, 0, r.run(t, append([]string{"chat", "-q"}, flags...)...), r.err.String())
	require.Equal(t, 0, r.run(t, append([]string{"generate", "-q", "--chat", "hi"}, flags...)...), r.err.String())
	require.Equal(t, 0, r.run(t, append([]string{"tokenize", "--chat", "hi"}, flags...)...), r.err.String())
	require.Len(t, a.all, 3)
	require.True(t, proto.Equal(want, a.all[0].GetChat()), "chat: %v", a.all[0])
	require.True(t, proto.Equal(args, a.all[1].GetChat().GetTemplateKwargs()), "the second line of chat: %v", a.all[1])
	require.True(t, proto.Equal(want, a.all[2].GetChat()), "generate: %v", a.all[2])
	require.True(t, proto.Equal(want, tokenized.GetChat()), "tokenize: %v", tokenized)
}

func TestChatFlagsAreRefusedWhereTheyDoNothing(t *testing.T) {
	r := serve(t, &fake{tokenize: bytewise})
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"generate", "hi", "--template-arg", "a=1"}, "--template-arg needs --chat"},
		{[]string{"tokenize", "hi", "--template", "rag"}, "--template needs --chat"},
		{[]string{"tokenize", "hi", "--parse-special-in-content"}, "--parse-special-in-content needs --chat"},
		{[]string{"generate", "--chat", "--token-ids", "1"}, "not both"},
		{[]string{"tokenize", "--chat", "hi", "--template-arg", "a"}, "is not name=JSON"},
		{[]string{"tokenize", "--chat", "hi", "--template-arg", "=1"}, "is not name=JSON"},
		{[]string{"tokenize", "--chat", "hi", "--template-arg", "effort=low"}, `a text needs quotes, as in --template-arg 'effort="low"'`},
	} {
		r.err = buffer{}
		require.Equal(t, 2, r.run(t, tc.args...), tc.args)
		require.Contains(t, r.err.String(), tc.want, tc.args)
	}
}

func TestModelsListNamedTemplates(t *testing.T) {
	m := model("m")
	m.Capabilities.ChatTemplates = []string{"rag", "tool_use"}
	r := serve(t, &fake{models: []*pb.ModelInfo{m}})
	require.Equal(t, 0, r.run(t, "models"), r.err.String())
	require.Contains(t, r.out.String(), "\nm: chat templates for --template: rag, tool_use\n")
}
