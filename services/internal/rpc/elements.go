package rpc

import (
	"fmt"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/millrace/millrace/services/internal/reason"
)

// maxElements bounds the messages, texts and map entries in all lists of one request together. An empty message takes two bytes on
// the wire and about a hundred decoded: a request of 16 MiB would become a gigabyte before anything could refuse it, and be walked
// for seconds. No request has a use for so many; lists of numbers are not counted.
const maxElements = 1 << 16

// crowded reports whether raw, a message of md's type, has more than maxElements elements. Nothing is decoded. Bytes that are no
// such message are looked at as far as they are one.
func crowded(raw []byte, md protoreflect.MessageDescriptor) bool {
	if len(raw) <= 2*maxElements { // an element takes two bytes at least
		return false
	}
	left := maxElements
	countElements(raw, md, &left, maxNesting)
	return left < 0
}

// maxNesting bounds how deep messages lie within each other where crowded looks. google.protobuf.Struct, which nests without a bound, may
// be in a request; a request has a use for a few levels.
const maxNesting = 200

// countElements takes the elements of raw off left, until it is negative. What is deeper than depth makes it negative.
func countElements(raw []byte, md protoreflect.MessageDescriptor, left *int, depth int) {
	if depth < 0 {
		*left = -1
		return
	}
	for len(raw) > 0 && *left >= 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(num, typ, raw[n:])
		if size < 0 {
			return
		}
		value := raw[n : n+size]
		raw = raw[n+size:]
		fd := md.Fields().ByNumber(num)
		if fd == nil || typ != protowire.BytesType {
			continue
		}
		if (fd.IsList() || fd.IsMap()) && !packable(fd) {
			*left--
		}
		if inner := fd.Message(); inner != nil {
			body, _ := protowire.ConsumeBytes(value)
			countElements(body, inner, left, depth-1)
		}
	}
}

// packable says whether a list of fd is one of numbers, many of which may lie in one value.
func packable(fd protoreflect.FieldDescriptor) bool {
	switch fd.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
		return false
	default:
		return true
	}
}

// tooMany is the status of a crowded message.
func tooMany(md protoreflect.MessageDescriptor, domain string) error {
	return Fault{
		Code: codes.InvalidArgument, Domain: domain, Reason: reason.MalformedMessage,
		Message: fmt.Sprintf("%s has more than %d messages, texts and map entries in its lists, or nests deeper than %d: send fewer",
			md.FullName(), maxElements, maxNesting),
		Metadata: map[string]string{"message": string(md.FullName()), "max_elements": strconv.Itoa(maxElements)},
	}.Err()
}
