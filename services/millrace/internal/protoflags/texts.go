package protoflags

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Texts are the scalar fields of m that are set, by name, each as Set takes it and none with a loss. Messages in m, lists and maps
// are left out.
func Texts(m proto.Message) map[string]string {
	out := map[string]string{}
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.IsList() || fd.IsMap() || fd.Kind() == protoreflect.MessageKind {
			return true
		}
		out[string(fd.Name())] = text(fd, v)
		return true
	})
	return out
}

func text(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch fd.Kind() {
	case protoreflect.EnumKind:
		return name(fd.Enum(), v.Enum())
	case protoreflect.FloatKind:
		return strconv.FormatFloat(v.Float(), 'g', -1, 32)
	case protoreflect.DoubleKind:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	default:
		return fmt.Sprint(v.Interface())
	}
}
