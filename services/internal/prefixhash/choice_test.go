package prefixhash

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// choosing returns a chat of one chunk whose template fields change sets.
func choosing(change func(*pb.Chat)) *pb.GenerateRequest {
	chat := &pb.Chat{Messages: []*pb.ChatMessage{{Role: "user", Content: strings.Repeat("x", 300)}}}
	change(chat)
	return &pb.GenerateRequest{Input: &pb.GenerateRequest_Chat{Chat: chat}}
}

func kwargs(t *testing.T, fields map[string]any) func(*pb.Chat) {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	require.NoError(t, err)
	return func(c *pb.Chat) { c.TemplateKwargs = s }
}

func keyOf(t *testing.T, in *pb.GenerateRequest) uint64 {
	t.Helper()
	prefixes, total := Of(in)
	require.Equal(t, 306, total)
	require.Len(t, prefixes, 1)
	return prefixes[0].Key
}

func TestKeysDifferByTemplateFields(t *testing.T) {
	seen := map[uint64]string{}
	for name, change := range map[string]func(*pb.Chat){
		"nothing":        func(*pb.Chat) {},
		"a name":         func(c *pb.Chat) { c.TemplateName = proto.String("tool_use") },
		"another name":   func(c *pb.Chat) { c.TemplateName = proto.String("rag") },
		"special tokens": func(c *pb.Chat) { c.ParseSpecialInContent = proto.Bool(true) },
		"true":           kwargs(t, map[string]any{"a": true}),
		"false":          kwargs(t, map[string]any{"a": false}),
		"null":           kwargs(t, map[string]any{"a": nil}),
		"another key":    kwargs(t, map[string]any{"b": nil}),
		"a number":       kwargs(t, map[string]any{"a": 1}),
		"a text":         kwargs(t, map[string]any{"a": "1"}),
		"a list":         kwargs(t, map[string]any{"a": []any{"1"}}),
		"a list of none": kwargs(t, map[string]any{"a": []any{}}),
		"a mapping":      kwargs(t, map[string]any{"a": map[string]any{"b": nil}}),
		"two":            kwargs(t, map[string]any{"a": true, "b": false}),
		"two, swapped":   kwargs(t, map[string]any{"a": false, "b": true}),
		"a tool":         func(c *pb.Chat) { c.Tools = []*pb.Tool{{Name: "a"}} },
		"another tool":   func(c *pb.Chat) { c.Tools = []*pb.Tool{{Name: "b"}} },
		"a description":  func(c *pb.Chat) { c.Tools = []*pb.Tool{{Name: "a", Description: "b"}} },
		"a schema":       func(c *pb.Chat) { c.Tools = []*pb.Tool{{Name: "a", Parameters: proto.String("b")}} },
	} {
		key := keyOf(t, choosing(change))
		require.Empty(t, seen[key], "%s has the key of %s", name, seen[key])
		seen[key] = name
	}
}

// What a message has beside its content is a part of its canonical bytes.
func TestCallsAreCanonicalBytes(t *testing.T) {
	seen := map[uint64]bool{}
	for _, m := range []*pb.ChatMessage{
		{}, {Reasoning: proto.String("a")}, {ToolCallId: proto.String("a")}, {ToolCalls: []*pb.ToolCall{{Id: "a"}}}, {ToolCalls: []*pb.ToolCall{{Name: "a"}}},
		{ToolCalls: []*pb.ToolCall{{Arguments: "a"}}},
	} {
		m.Role = "assistant"
		prefixes, _ := Of(&pb.GenerateRequest{Input: &pb.GenerateRequest_Chat{Chat: &pb.Chat{Messages: []*pb.ChatMessage{
			m, {Role: "user", Content: strings.Repeat("x", 300)},
		}}}})
		require.Len(t, prefixes, 1)
		require.False(t, seen[prefixes[0].Key])
		seen[prefixes[0].Key] = true
	}
}

func TestUnsetTemplateFieldsKeepKeys(t *testing.T) {
	// A default value is as good as none, and the order of a map does not matter.
	none := keyOf(t, choosing(func(*pb.Chat) {}))
	require.Equal(t, none, keyOf(t, choosing(func(c *pb.Chat) {
		c.TemplateName, c.ParseSpecialInContent, c.TemplateKwargs = proto.String(""), proto.Bool(false), &structpb.Struct{}
	})))
	many := map[string]any{}
	for _, c := range "abcdefghijklmnopqrstuvwxyz" {
		many[string(c)] = map[string]any{"x": 1, "y": string(c), "z": []any{nil, true}}
	}
	want := keyOf(t, choosing(kwargs(t, many)))
	for range 20 {
		require.Equal(t, want, keyOf(t, choosing(kwargs(t, many))))
	}
}

func TestTemplateKeysMatchTheDocument(t *testing.T) {
	half := "\x00\x00\x00\x00\x00\x00\xe0\x3f"
	require.Equal(t, uint64(0x3fe0000000000000), math.Float64bits(0.5))
	choice := "rag\x1f\x01m\x02\x00\x00\x00s\x01\x00\x00\x00an" + half + "s\x02\x00\x00\x00bcl\x03\x00\x00\x00ztm\x00\x00\x00\x00"
	state := slowXXH64([]byte(choice), slowXXH64(nil, 3))
	raw := "user\x1f" + strings.Repeat("x", 251)
	in := choosing(kwargs(t, map[string]any{"a": 0.5, "bc": []any{nil, true, map[string]any{}}}))
	in.GetChat().TemplateName, in.GetChat().ParseSpecialInContent = proto.String("rag"), proto.Bool(true)
	require.Equal(t, slowXXH64([]byte(raw), state), keyOf(t, in))
}
