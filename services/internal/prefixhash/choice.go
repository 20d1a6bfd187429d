package prefixhash

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// choose changes state 0 by the template fields of a chat. A chat that sets none of them leaves it
// unchanged.
func (c *chain) choose(chat *pb.Chat) {
	name, special, args := chat.GetTemplateName(), chat.GetParseSpecialInContent(), chat.GetTemplateKwargs()
	if name == "" && !special && len(args.GetFields()) == 0 {
		return
	}
	raw := append([]byte(name), afterRole...)
	if special {
		raw = append(raw, 1)
	} else {
		raw = append(raw, 0)
	}
	raw = appendMapping(raw, args)
	_, _ = c.digest.Write(raw) // never fails
	c.digest.ResetWithSeed(c.digest.Sum64())
}

// tools changes state 0 by the tools of a chat, which templates write before the messages. A chat without tools leaves it
// unchanged.
func (c *chain) tools(tools []*pb.Tool) {
	if len(tools) == 0 {
		return
	}
	var raw []byte
	for _, t := range tools {
		raw = appendText(appendText(appendText(raw, t.GetName()), t.GetDescription()), t.GetParameters())
	}
	_, _ = c.digest.Write(raw) // never fails
	c.digest.ResetWithSeed(c.digest.Sum64())
}

// calls appends the reasoning, the calls and the answered call of a message that has one of them.
func (c *chain) calls(m *pb.ChatMessage) {
	if len(m.GetToolCalls()) == 0 && m.GetReasoning() == "" && m.GetToolCallId() == "" {
		return
	}
	c.add(m.GetReasoning())
	c.add(afterRole)
	c.add(m.GetToolCallId())
	for _, call := range m.GetToolCalls() {
		for _, text := range []string{call.GetId(), call.GetName(), call.GetArguments()} {
			c.add(afterRole)
			c.add(text)
		}
	}
	c.add(afterContent)
}

func appendValue(raw []byte, v *structpb.Value) []byte {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_BoolValue:
		if kind.BoolValue {
			return append(raw, 't')
		}
		return append(raw, 'f')
	case *structpb.Value_NumberValue:
		return binary.LittleEndian.AppendUint64(append(raw, 'n'), math.Float64bits(kind.NumberValue))
	case *structpb.Value_StringValue:
		return appendText(raw, kind.StringValue)
	case *structpb.Value_ListValue:
		raw = binary.LittleEndian.AppendUint32(append(raw, 'l'), uint32(len(kind.ListValue.GetValues())))
		for _, item := range kind.ListValue.GetValues() {
			raw = appendValue(raw, item)
		}
		return raw
	case *structpb.Value_StructValue:
		return appendMapping(raw, kind.StructValue)
	}
	return append(raw, 'z')
}

func appendText(raw []byte, s string) []byte {
	raw = binary.LittleEndian.AppendUint32(append(raw, 's'), uint32(len(s)))
	return append(raw, s...)
}

func appendMapping(raw []byte, m *structpb.Struct) []byte {
	raw = binary.LittleEndian.AppendUint32(append(raw, 'm'), uint32(len(m.GetFields())))
	for _, key := range slices.Sorted(maps.Keys(m.GetFields())) {
		raw = appendValue(appendText(raw, key), m.GetFields()[key])
	}
	return raw
}
