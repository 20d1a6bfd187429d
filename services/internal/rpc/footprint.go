package rpc

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What decoded values take beside their own bytes, roughly, as the Go runtime rounds.
const (
	messageBytes = 64 // of a message with a few fields
	headerBytes  = 16 // of a text in a list, or of a pointer to a message and what the list has in reserve
	entryBytes   = 48 // of an entry of a map
)

// footprint is about the memory that a decoded message takes. On the wire it may be far smaller: a token id of one byte is four
// bytes when decoded, and an empty message of two bytes is a whole one.
func footprint(m proto.Message) int64 { return footprintOf(m.ProtoReflect()) }

func footprintOf(m protoreflect.Message) int64 {
	sum := messageBytes + int64(len(m.GetUnknown()))
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				sum += entryBytes + valueBytes(fd.MapKey(), k.Value()) + valueBytes(fd.MapValue(), v)
				return true
			})
		case fd.IsList():
			sum += listBytes(fd, v.List())
		default:
			sum += valueBytes(fd, v)
		}
		return true
	})
	return sum
}

func listBytes(fd protoreflect.FieldDescriptor, list protoreflect.List) int64 {
	n := int64(list.Len())
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return n
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Uint32Kind, protoreflect.Fixed32Kind,
		protoreflect.Sfixed32Kind, protoreflect.FloatKind, protoreflect.EnumKind:
		return 4 * n
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
		sum := headerBytes * n
		for i := range list.Len() {
			sum += valueBytes(fd, list.Get(i))
		}
		return sum
	default:
		return 8 * n
	}
}

// valueBytes is what a single value takes outside of the message or list that it is in.
func valueBytes(fd protoreflect.FieldDescriptor, v protoreflect.Value) int64 {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return int64(len(v.String()))
	case protoreflect.BytesKind:
		return int64(len(v.Bytes()))
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return footprintOf(v.Message())
	default:
		return 0
	}
}
