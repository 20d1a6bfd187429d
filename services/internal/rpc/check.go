package rpc

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/millrace/millrace/services/internal/flood"
	"github.com/millrace/millrace/services/internal/reason"
)

// ours is the package prefix of the messages whose unknown fields are refused; a standard service may grow fields that
// old servers are meant to ignore.
const ours = "millrace."

// Decode decodes raw into m as a server of this package does: bytes that are not the message, and fields that m's type
// does not know at any depth, are INVALID_ARGUMENT in the given domain. So are more elements than a request may have, of which
// nothing is decoded.
func Decode(raw []byte, m proto.Message, domain string) error {
	return DecodeBy(proto.Unmarshal, raw, m, domain)
}

// DecodeBy is Decode by a function that does what proto.Unmarshal does.
func DecodeBy(unmarshal func(raw []byte, m proto.Message) error, raw []byte, m proto.Message, domain string) error {
	if md := m.ProtoReflect().Descriptor(); crowded(raw, md) {
		return tooMany(md, domain)
	}
	if err := unmarshal(raw, m); err != nil {
		return malformed(raw, m, err, domain)
	}
	return check(m, domain)
}

// check refuses a received message with unknown fields, or whose bytes serverCodec could or would not decode.
func check(m proto.Message, domain string) error {
	r := m.ProtoReflect()
	if bytes.HasPrefix(r.GetUnknown(), []byte(crowdedMark)) {
		return tooMany(r.Descriptor(), domain)
	}
	if raw, marked := bytes.CutPrefix(r.GetUnknown(), []byte(malformedMark)); marked {
		return malformed(raw, m, proto.Unmarshal(raw, r.New().Interface()), domain) // it fails again
	}
	if !strings.HasPrefix(string(r.Descriptor().FullName()), ours) {
		return nil
	}
	if found := findUnknown(r); found != nil {
		at, field := found.String(), found.field
		return Fault{
			Code: codes.InvalidArgument, Domain: domain, Reason: reason.UnknownField,
			Message: fmt.Sprintf("%s has a field %d that this server does not know: "+
				"use a server that knows it, or leave it out", at, field),
			Metadata: map[string]string{"message": at, "field": strconv.Itoa(int(field))},
		}.Err()
	}
	return nil
}

// unknown is a message with an unknown field.
type unknown struct {
	in    protoreflect.MessageDescriptor
	field protowire.Number
	path  path // to the message
}

// String is "full.Name" or "full.Name at path".
func (u *unknown) String() string {
	if len(u.path) == 0 {
		return string(u.in.FullName())
	}
	return fmt.Sprintf("%s at %s", u.in.FullName(), u.path)
}

// findUnknown returns the first message with an unknown field, or nil. A path is built only for a field that is found: a
// google.protobuf.Struct nests deeply and has keys of any length, so a path for each message would take more than the request.
func findUnknown(m protoreflect.Message) (found *unknown) {
	if raw := m.GetUnknown(); len(raw) > 0 {
		field, _, _ := protowire.ConsumeField(raw)
		return &unknown{in: m.Descriptor(), field: field}
	}
	for _, fd := range holders(m.Descriptor()) {
		if !m.Has(fd) {
			continue
		}
		key := ""
		switch v := m.Get(fd); {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if found = findUnknown(v.Message()); found != nil {
					key = "[" + flood.ClipAt(k.String(), maxKey) + "]"
				}
				return found == nil
			})
		case fd.IsList():
			for i := 0; i < v.List().Len() && found == nil; i++ {
				if found = findUnknown(v.List().Get(i).Message()); found != nil {
					key = "[" + strconv.Itoa(i) + "]"
				}
			}
		default:
			found = findUnknown(v.Message())
		}
		if found != nil {
			found.path = append(found.path, string(fd.Name())+key)
			return found
		}
	}
	return nil
}

// path is the names of fields from the innermost outwards.
type path []string

// maxKey is how many bytes of a map's key a path has.
const maxKey = 64

// String is the path from the outermost field inwards, clipped.
func (p path) String() string {
	var out strings.Builder
	for i := len(p) - 1; i >= 0 && out.Len() <= flood.MaxText; i-- {
		if out.Len() > 0 {
			out.WriteByte('.')
		}
		out.WriteString(p[i])
	}
	return flood.Clip(out.String())
}

// held are the holders of each message type that was asked for, a []protoreflect.FieldDescriptor by protoreflect.MessageDescriptor.
var held sync.Map

// holders are the fields of a type that hold messages, which alone may have unknown fields besides it.
func holders(md protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	if known, ok := held.Load(md); ok {
		return known.([]protoreflect.FieldDescriptor)
	}
	found := []protoreflect.FieldDescriptor{}
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		of := fd
		if fd.IsMap() {
			of = fd.MapValue()
		}
		if of.Message() != nil {
			found = append(found, fd)
		}
	}
	held.Store(md, found)
	return found
}

// malformed says where raw stops being a message of m's type.
func malformed(raw []byte, m proto.Message, cause error, domain string) error {
	md := m.ProtoReflect().Descriptor()
	meta := map[string]string{"message": string(md.FullName())}
	// The library varies the space behind its prefix so that nobody compares texts.
	text := strings.TrimLeft(strings.TrimPrefix(cause.Error(), "proto:"), " \u00a0")
	what := "is not a valid protobuf message: " + text
	if at := findInvalidUTF8(raw, md); at != nil {
		field := at.String()
		meta["field"] = field
		what = fmt.Sprintf("has text that is not UTF-8 in field %s: encode it as UTF-8, or send token ids", field)
	}
	f := Fault{
		Code: codes.InvalidArgument, Domain: domain, Reason: reason.MalformedMessage,
		Message:  fmt.Sprintf("%s %s", md.FullName(), strings.ToValidUTF8(what, "\ufffd")),
		Metadata: meta,
	}
	if field := meta["field"]; field != "" {
		f.Violations = []Violation{{Field: field, Description: "must be valid UTF-8"}}
	}
	return f.Err()
}

// findInvalidUTF8 walks well-formed bytes in order and returns the path of the first string field that is not UTF-8, or nil.
func findInvalidUTF8(raw []byte, md protoreflect.MessageDescriptor) path {
	seen := map[protowire.Number]int{}
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return nil
		}
		size := protowire.ConsumeFieldValue(num, typ, raw[n:])
		if size < 0 {
			return nil
		}
		value := raw[n : n+size]
		raw = raw[n+size:]
		fd := md.Fields().ByNumber(num)
		if fd == nil || typ != protowire.BytesType {
			continue
		}
		body, _ := protowire.ConsumeBytes(value)
		var within path
		var found bool
		if inner := fd.Message(); inner != nil {
			within = findInvalidUTF8(body, inner)
			found = within != nil
		} else {
			found = fd.Kind() == protoreflect.StringKind && !utf8.Valid(body)
		}
		if found {
			name := string(fd.Name())
			if fd.IsList() {
				name += "[" + strconv.Itoa(seen[num]) + "]"
			}
			return append(within, name)
		}
		if fd.IsList() {
			seen[num]++
		}
	}
	return nil
}
