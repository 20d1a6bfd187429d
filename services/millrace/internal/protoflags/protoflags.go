package protoflags

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// ErrValue is a value that is not of its field's kind.
var ErrValue = errors.New("wrong value")

// Register adds a flag for every field of m that usage has a text for, and panics on a text without a field. Parsing
// sets the fields of m.
func Register(fs *pflag.FlagSet, m proto.Message, usage map[string]string) {
	for field, text := range usage {
		RegisterAs(fs, m, field, Flag(field), text)
	}
}

// RegisterAs adds a flag of another name for one field, as Register does.
func RegisterAs(fs *pflag.FlagSet, m proto.Message, field, flag, text string) {
	r := m.ProtoReflect()
	fd := r.Descriptor().Fields().ByName(protoreflect.Name(field))
	if fd == nil {
		panic(fmt.Sprintf("%s has no field %q", r.Descriptor().FullName(), field))
	}
	f := fs.VarPF(&value{m: r, fd: fd}, flag, "", text)
	if fd.Kind() == protoreflect.BoolKind {
		f.NoOptDefVal = "true"
	}
}

// Flag is the flag's name for a field's.
func Flag(field string) string { return strings.ReplaceAll(field, "_", "-") }

// Set gives field, spelled with dashes or underscores, of m a value. An unknown field is ErrValue.
func Set(m proto.Message, field, text string) error {
	r := m.ProtoReflect()
	fd := r.Descriptor().Fields().ByName(protoreflect.Name(strings.ReplaceAll(field, "-", "_")))
	if fd == nil {
		return fmt.Errorf("%w: there is no setting %q", ErrValue, field)
	}
	r.Clear(fd)
	return (&value{m: r, fd: fd}).Set(text)
}

// value is one field as a flag.
type value struct {
	m  protoreflect.Message
	fd protoreflect.FieldDescriptor
}

// String is what --help shows as default: nothing, the contract's defaults are in the texts.
func (v *value) String() string { return "" }

// Type is what --help shows as the value's kind.
func (v *value) Type() string {
	switch {
	case v.fd.IsMap():
		return "id=number,..."
	case isIDs(v.fd):
		return "ids"
	}
	switch v.fd.Kind() {
	case protoreflect.EnumKind:
		return strings.Join(names(v.fd.Enum()), "|")
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return "number"
	case protoreflect.Int32Kind, protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return "n"
	case protoreflect.BoolKind:
		return "bool" // pflag shows none for it
	default:
		return "text"
	}
}

// Set parses text. Lists and maps grow with each call.
func (v *value) Set(text string) error {
	switch {
	case v.fd.IsMap():
		return v.setMap(text)
	case isIDs(v.fd):
		ids, err := ParseIDs(text)
		if err != nil {
			return err
		}
		at, fd := v.m, v.fd
		if fd.Kind() == protoreflect.MessageKind {
			at = v.m.Mutable(fd).Message()
			fd = at.Descriptor().Fields().ByName("ids")
		}
		list := at.Mutable(fd).List()
		for _, id := range ids {
			list.Append(protoreflect.ValueOfUint32(id))
		}
		return nil
	case v.fd.IsList():
		v.m.Mutable(v.fd).List().Append(protoreflect.ValueOfString(text))
		return nil
	}
	if v.fd.Kind() == protoreflect.EnumKind {
		number, err := enum(v.fd.Enum(), text)
		if err != nil {
			return err
		}
		v.m.Set(v.fd, protoreflect.ValueOfEnum(number))
		return nil
	}
	one, err := scalar(v.fd.Kind(), text)
	if err != nil {
		return err
	}
	v.m.Set(v.fd, one)
	return nil
}

func (v *value) setMap(text string) error {
	entries := v.m.Mutable(v.fd).Map()
	for _, entry := range strings.Split(text, ",") {
		key, number, found := strings.Cut(entry, "=")
		if !found {
			return fmt.Errorf("%w: %q is not id=number", ErrValue, entry)
		}
		k, err := scalar(v.fd.MapKey().Kind(), key)
		if err != nil {
			return err
		}
		n, err := scalar(v.fd.MapValue().Kind(), number)
		if err != nil {
			return err
		}
		entries.Set(k.MapKey(), n)
	}
	return nil
}

// isIDs says whether a field is a list of token ids, bare or in a message.
func isIDs(fd protoreflect.FieldDescriptor) bool {
	return fd.IsList() && fd.Kind() == protoreflect.Uint32Kind ||
		fd.Kind() == protoreflect.MessageKind && !fd.IsMap() && fd.Message().Name() == "TokenIds"
}

func scalar(kind protoreflect.Kind, text string) (protoreflect.Value, error) {
	text = strings.TrimSpace(text)
	switch kind {
	case protoreflect.FloatKind:
		f, err := strconv.ParseFloat(text, 32)
		if err != nil {
			return protoreflect.Value{}, fmt.Errorf("%w: %q is not a number", ErrValue, text)
		}
		return protoreflect.ValueOfFloat32(float32(f)), nil
	case protoreflect.DoubleKind:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return protoreflect.Value{}, fmt.Errorf("%w: %q is not a number", ErrValue, text)
		}
		return protoreflect.ValueOfFloat64(f), nil
	case protoreflect.Int32Kind:
		i, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return protoreflect.Value{}, fmt.Errorf("%w: %q is not a whole number of 32 bits", ErrValue, text)
		}
		return protoreflect.ValueOfInt32(int32(i)), nil
	case protoreflect.Uint32Kind:
		i, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return protoreflect.Value{}, fmt.Errorf("%w: %q is not a whole number of 32 bits, 0 or more", ErrValue, text)
		}
		return protoreflect.ValueOfUint32(uint32(i)), nil
	case protoreflect.Uint64Kind:
		i, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return protoreflect.Value{}, fmt.Errorf("%w: %q is not a whole number of 64 bits, 0 or more", ErrValue, text)
		}
		return protoreflect.ValueOfUint64(i), nil
	case protoreflect.BoolKind:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return protoreflect.Value{}, fmt.Errorf("%w: %q is not true or false", ErrValue, text)
		}
		return protoreflect.ValueOfBool(b), nil
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text), nil
	default:
		return protoreflect.Value{}, fmt.Errorf("%w: a field of kind %s cannot be set here", ErrValue, kind)
	}
}

// ParseIDs reads token ids separated by commas or white space; none is an empty list.
func ParseIDs(text string) ([]uint32, error) {
	ids := []uint32{}
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) }) {
		id, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%w: %q is not a token id", ErrValue, word)
		}
		ids = append(ids, uint32(id))
	}
	return ids, nil
}
