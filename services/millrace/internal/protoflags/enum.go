package protoflags

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// unspecified ends the name of an enum's value 0; the text before it is the prefix of all its names.
const unspecified = "UNSPECIFIED"

// name is a value's as people write it: kmeans-plus-plus for CODEBOOK_INIT_KMEANS_PLUS_PLUS.
func name(of protoreflect.EnumDescriptor, number protoreflect.EnumNumber) string {
	zero := string(of.Values().ByNumber(0).Name())
	v := of.Values().ByNumber(number)
	if v == nil {
		return fmt.Sprint(number)
	}
	short := strings.TrimPrefix(string(v.Name()), strings.TrimSuffix(zero, unspecified))
	return strings.ReplaceAll(strings.ToLower(short), "_", "-")
}

// names are those of all values but 0, in their order.
func names(of protoreflect.EnumDescriptor) (out []string) {
	for i := range of.Values().Len() {
		if v := of.Values().Get(i); v.Number() != 0 {
			out = append(out, name(of, v.Number()))
		}
	}
	return out
}

// Name is an enum's value as Set takes it.
func Name(e protoreflect.Enum) string { return name(e.Descriptor(), e.Number()) }

// enum is the value of a name, in any case, with dashes or underscores.
func enum(of protoreflect.EnumDescriptor, text string) (protoreflect.EnumNumber, error) {
	want := strings.ReplaceAll(strings.ToLower(strings.TrimSpace(text)), "_", "-")
	for i := range of.Values().Len() {
		if v := of.Values().Get(i); v.Number() != 0 && name(of, v.Number()) == want {
			return v.Number(), nil
		}
	}
	return 0, fmt.Errorf("%w: %q is not one of %s", ErrValue, text, strings.Join(names(of), ", "))
}
