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
	if at, field, ok := findUnknown(r, ""); ok {
		return Fault{
			Code: codes.InvalidArgument, Domain: domain, Reason: reason.UnknownField,
			Message: fmt.Sprintf("%s has a field %d that this server does not know: "+
				"use a server that knows it, or leave it out", at, field),
			Metadata: map[string]string{"message": at, "field": strconv.Itoa(int(field))},
		}.Err()
	}
	return nil
}

// findUnknown returns the first message with an unknown field, as "full.Name" or "full.Name at path", and its number.
func findUnknown(m protoreflect.Message, path string) (at string, field protowire.Number, found bool) {
	if raw := m.GetUnknown(); len(raw) > 0 {
		field, _, _ = protowire.ConsumeField(raw)
		return place(m.Descriptor(), path), field, true
	}
	for _, fd := range holders(m.Descriptor()) {
		if !m.Has(fd) {
			continue
		}
		below := join(path, string(fd.Name()))
		switch v := m.Get(fd); {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				at, field, found = findUnknown(v.Message(), fmt.Sprintf("%s[%v]", below, k))
				return !found
			})
		case fd.IsList():
			for i := 0; i < v.List().Len() && !found; i++ {
				at, field, found = findUnknown(v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", below, i))
			}
		default:
			at, field, found = findUnknown(v.Message(), below)
		}
		if found {
			return at, field, true
		}
	}
	return "", 0, false
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
	if field, ok := findInvalidUTF8(raw, md, ""); ok {
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

// findInvalidUTF8 walks well-formed bytes in order and returns the path of the first string field that is not UTF-8.
func findInvalidUTF8(raw []byte, md protoreflect.MessageDescriptor, path string) (string, bool) {
	seen := map[protowire.Number]int{}
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return "", false
		}
		size := protowire.ConsumeFieldValue(num, typ, raw[n:])
		if size < 0 {
			return "", false
		}
		value := raw[n : n+size]
		raw = raw[n+size:]
		fd := md.Fields().ByNumber(num)
		if fd == nil || typ != protowire.BytesType {
			continue
		}
		body, _ := protowire.ConsumeBytes(value)
		below := join(path, string(fd.Name()))
		if fd.IsList() {
			below += "[" + strconv.Itoa(seen[num]) + "]"
			seen[num]++
		}
		switch {
		case fd.Kind() == protoreflect.StringKind && !utf8.Valid(body):
			return below, true
		case fd.Kind() == protoreflect.MessageKind:
			if at, ok := findInvalidUTF8(body, fd.Message(), below); ok {
				return at, true
			}
		}
	}
	return "", false
}

// place names a message and where it is in its request.
func place(md protoreflect.MessageDescriptor, path string) string {
	if path == "" {
		return string(md.FullName())
	}
	return fmt.Sprintf("%s at %s", md.FullName(), path)
}

// join appends a name to a path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
