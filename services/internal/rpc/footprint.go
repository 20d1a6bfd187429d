package rpc

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Approximate memory of decoded values in addition to their bytes, with the rounding of Go's
// allocator.
const (
	messageBytes = 64 // a message with a few fields
	headerBytes  = 16 // a text in a list, or a pointer to a message with the list's spare capacity
	entryBytes   = 48 // an entry of a map
)

// footprint estimates the memory of a decoded message. The wire encoding may be far smaller: a
// token id of one byte takes four bytes when decoded, and an empty message of two bytes takes about
// a hundred.
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

// valueBytes estimates what a value takes outside of the message or list that contains it.
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
