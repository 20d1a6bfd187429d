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
