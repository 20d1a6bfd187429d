package rpc

import (
	"fmt"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/millrace/millrace/services/internal/reason"
)

// maxElements bounds the messages, texts and map entries in all lists of one request together. An
// empty message takes two bytes on the wire and about a hundred when decoded, so a request of 16
// MiB would take a gigabyte before anything could refuse it, and seconds to walk. No request needs
// as many. Lists of numbers are not counted.
const maxElements = 1 << 16

// tooManyElements reports whether raw, a message of md's type, has more than maxElements elements.
// It decodes nothing. It counts malformed bytes up to the malformed place.
func tooManyElements(raw []byte, md protoreflect.MessageDescriptor) bool {
	if len(raw) <= 2*maxElements { // an element takes at least two bytes
		return false
	}
	left := maxElements
	countElements(raw, md, &left, maxNesting)
	return left < 0
}

// maxNesting bounds how deeply messages may nest. A request may contain google.protobuf.Struct,
// which has no bound of its own, and needs a few levels.
const maxNesting = 200

// countElements subtracts the elements of raw from left until that is negative. Messages nested
// deeper than depth make it negative.
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

// packable reports whether a list of fd holds numbers, many of which may be packed in one value.
func packable(fd protoreflect.FieldDescriptor) bool {
	switch fd.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind, protoreflect.GroupKind:
		return false
	default:
		return true
	}
}

// tooManyElementsError returns the status of a message with too many elements.
func tooManyElementsError(md protoreflect.MessageDescriptor, domain string) error {
	return Error{
		Code: codes.InvalidArgument, Domain: domain, Reason: reason.MalformedMessage,
		Message: fmt.Sprintf("%s has more than %d messages, texts and map entries in its lists, or nests deeper than %d: send fewer",
			md.FullName(), maxElements, maxNesting),
		Metadata: map[string]string{"message": string(md.FullName()), "max_elements": strconv.Itoa(maxElements)},
	}.Err()
}
