package rpc

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/millrace/millrace/services/internal/ratelog"
	"github.com/millrace/millrace/services/internal/reason"
)

// ownPrefix is the package prefix of the messages whose unknown fields are refused. A standard
// service may gain fields that older servers must ignore.
const ownPrefix = "millrace."

// Decode decodes raw into m as a server of this package does. It returns INVALID_ARGUMENT in the
// given domain for malformed bytes, and for fields at any depth that m's type does not have. It
// decodes nothing, and returns the same code, if raw has more elements than a request may have.
func Decode(raw []byte, m proto.Message, domain string) error {
	return DecodeBy(proto.Unmarshal, raw, m, domain)
}

// DecodeBy is Decode with a replacement for proto.Unmarshal.
func DecodeBy(unmarshal func(raw []byte, m proto.Message) error, raw []byte, m proto.Message, domain string) error {
	if md := m.ProtoReflect().Descriptor(); tooManyElements(raw, md) {
		return tooManyElementsError(md, domain)
	}
	if err := unmarshal(raw, m); err != nil {
		return malformed(raw, m, err, domain)
	}
	return check(m, domain)
}

// check refuses a received message that has unknown fields or that serverCodec did not decode.
func check(m proto.Message, domain string) error {
	r := m.ProtoReflect()
	if bytes.HasPrefix(r.GetUnknown(), []byte(tooManyMark)) {
		return tooManyElementsError(r.Descriptor(), domain)
	}
	if raw, marked := bytes.CutPrefix(r.GetUnknown(), []byte(malformedMark)); marked {
		return malformed(raw, m, proto.Unmarshal(raw, r.New().Interface()), domain) // fails again
	}
	if !strings.HasPrefix(string(r.Descriptor().FullName()), ownPrefix) {
		return nil
	}
	if found := findUnknown(r); found != nil {
		where, field := found.String(), found.field
		return Error{
			Code: codes.InvalidArgument, Domain: domain, Reason: reason.UnknownField,
			Message: fmt.Sprintf("%s has a field %d that this server does not have: "+
				"use a newer server, or omit the field", where, field),
			Metadata: map[string]string{"message": where, "field": strconv.Itoa(int(field))},
		}.Err()
	}
	return nil
}

// unknownField is a field that its message type does not have.
type unknownField struct {
	message protoreflect.MessageDescriptor
	field   protowire.Number
	path    path // of the message
}

// String returns "full.Name" or "full.Name at path".
func (u *unknownField) String() string {
	if len(u.path) == 0 {
		return string(u.message.FullName())
	}
	return fmt.Sprintf("%s at %s", u.message.FullName(), u.path)
}

// findUnknown returns the first unknown field, or nil. It builds a path only when it has found one:
// a google.protobuf.Struct nests deeply and has keys of any length, so the paths of all messages
// would take more memory than the request.
func findUnknown(m protoreflect.Message) (found *unknownField) {
	if raw := m.GetUnknown(); len(raw) > 0 {
		field, _, _ := protowire.ConsumeField(raw)
		return &unknownField{message: m.Descriptor(), field: field}
	}
	for _, fd := range messageFields(m.Descriptor()) {
		if !m.Has(fd) {
			continue
		}
		key := ""
		switch v := m.Get(fd); {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if found = findUnknown(v.Message()); found != nil {
					key = "[" + ratelog.ClipAt(k.String(), maxKey) + "]"
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

// path holds field names, innermost first.
type path []string

// maxKey bounds the bytes of a map key in a path.
const maxKey = 64

// String returns the path, outermost first, clipped.
func (p path) String() string {
	var out strings.Builder
	for i := len(p) - 1; i >= 0 && out.Len() <= ratelog.MaxText; i-- {
		if out.Len() > 0 {
			out.WriteByte('.')
		}
		out.WriteString(p[i])
	}
	return ratelog.Clip(out.String())
}

// messageFieldCache holds the result of messageFields by message descriptor.
var messageFieldCache sync.Map

// messageFields returns the fields of a type that hold messages, which may have unknown fields of
// their own.
func messageFields(md protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	if cached, ok := messageFieldCache.Load(md); ok {
		return cached.([]protoreflect.FieldDescriptor)
	}
	found := []protoreflect.FieldDescriptor{}
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		value := fd
		if fd.IsMap() {
			value = fd.MapValue()
		}
		if value.Message() != nil {
			found = append(found, fd)
		}
	}
	messageFieldCache.Store(md, found)
	return found
}

// malformed returns the status of bytes that are not a message of m's type. It names the place
// where that is known.
func malformed(raw []byte, m proto.Message, cause error, domain string) error {
	md := m.ProtoReflect().Descriptor()
	meta := map[string]string{"message": string(md.FullName())}
	// The library varies the space after its prefix so that texts are not compared.
	text := strings.TrimLeft(strings.TrimPrefix(cause.Error(), "proto:"), " \u00a0")
	what := "is not a valid protobuf message: " + text
	if where := findInvalidUTF8(raw, md); where != nil {
		field := where.String()
		meta["field"] = field
		what = fmt.Sprintf("has text that is not UTF-8 in field %s: encode it as UTF-8, or send token ids", field)
	}
	f := Error{
		Code: codes.InvalidArgument, Domain: domain, Reason: reason.MalformedMessage,
		Message:  fmt.Sprintf("%s %s", md.FullName(), strings.ToValidUTF8(what, "\ufffd")),
		Metadata: meta,
	}
	if field := meta["field"]; field != "" {
		f.Violations = []Violation{{Field: field, Description: "must be valid UTF-8"}}
	}
	return f.Err()
}

// findInvalidUTF8 returns the path of the first string field of a well-formed message that is not
// UTF-8, or nil.
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
		var inPath path
		var found bool
		if inner := fd.Message(); inner != nil {
			inPath = findInvalidUTF8(body, inner)
			found = inPath != nil
		} else {
			found = fd.Kind() == protoreflect.StringKind && !utf8.Valid(body)
		}
		if found {
			name := string(fd.Name())
			if fd.IsList() {
				name += "[" + strconv.Itoa(seen[num]) + "]"
			}
			return append(inPath, name)
		}
		if fd.IsList() {
			seen[num]++
		}
	}
	return nil
}

// uncompressed refuses calls whose messages are compressed before any is read. A kilobyte may
// become a megabyte, but the budgets count the bytes that arrive. It does not rely on the absence
// of compressors in the program, because libraries register their own.
func uncompressed(ctx context.Context, domain string) error {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
	if !ok {
		return nil
	}
	compression := stream.RecvCompress()
	if compression == "" || compression == encoding.Identity {
		return nil
	}
	return Error{
		Code: codes.Unimplemented, Domain: domain, Reason: reason.NotBuilt,
		Message:  fmt.Sprintf("the request is compressed with %.32q, and this server accepts no compression: send it uncompressed", compression),
		Metadata: map[string]string{"compression": clip(compression)},
	}.Err()
}
