package rpc

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// minBorrowedBytes is the length from which avoiding the copy of a field pays.
const minBorrowedBytes = 16 << 10

// BorrowedMessage receives a message without copying its largest field. A bytes field of 16 KiB or
// more stays in the receive buffer, which Free returns to its pool. The handler must not write to
// the field, and must not use it after Free. The message is checked and counted like any other. If
// RecvMsg returned an error, the handler must not touch the message, because it may still be
// received.
type BorrowedMessage struct {
	Message proto.Message // receives the message; set it before RecvMsg
	buffer  mem.Buffer    // holds the large field; nil: Message owns its bytes
}

// Free returns the buffer. It may be called twice.
func (b *BorrowedMessage) Free() {
	if b.buffer != nil {
		b.buffer.Free()
		b.buffer = nil
	}
}

// decode decodes buffer into b and keeps it for the large field. It returns false, and keeps
// nothing, if the message has no such field or must be decoded like others, for example because it
// is malformed.
func (b *BorrowedMessage) decode(buffer mem.Buffer) bool {
	raw, m := buffer.ReadOnlyData(), b.Message.ProtoReflect()
	field, from, begin, end := findLargeField(raw, m.Descriptor())
	if field == nil || len(raw)-(end-from) > minBorrowedBytes {
		return false
	}
	rest := append(append([]byte(nil), raw[:from]...), raw[end:]...)
	if proto.Unmarshal(rest, b.Message) != nil {
		return false
	}
	m.Set(field, protoreflect.ValueOfBytes(raw[begin:end:end]))
	b.buffer = buffer
	return true
}

// findLargeField returns the field whose bytes may stay in the buffer, where its tag starts, and
// where its bytes begin and end. It is the first large field that occurs only once, because the
// last occurrence counts, and that is in no oneof, because the members of a oneof replace each
// other. field is nil if none exists.
func findLargeField(raw []byte, md protoreflect.MessageDescriptor) (field protoreflect.FieldDescriptor, from, begin, end int) {
	for pos := 0; pos < len(raw); {
		number, kind, n := protowire.ConsumeTag(raw[pos:])
		if n < 0 {
			return nil, 0, 0, 0
		}
		size := protowire.ConsumeFieldValue(number, kind, raw[pos+n:])
		if size < 0 || field != nil && field.Number() == number {
			return nil, 0, 0, 0
		}
		if field == nil && size >= minBorrowedBytes && kind == protowire.BytesType && borrowable(md.Fields().ByNumber(number)) {
			value, _ := protowire.ConsumeBytes(raw[pos+n:])
			field, from, end = md.Fields().ByNumber(number), pos, pos+n+size
			begin = end - len(value)
		}
		pos += n + size
	}
	return field, from, begin, end
}

// borrowable reports whether a field's bytes may stay in the buffer.
func borrowable(fd protoreflect.FieldDescriptor) bool {
	return fd != nil && fd.Kind() == protoreflect.BytesKind && !fd.IsList() &&
		(fd.ContainingOneof() == nil || fd.ContainingOneof().IsSynthetic())
}

// WithZeroCopyRequest is a call option that sends the largest bytes field of a request, of 16 KiB
// or more, without copying it. The caller must not change these bytes, even after a call that
// failed, because the transport may still be sending them.
func WithZeroCopyRequest() grpc.CallOption {
	return grpc.ForceCodecV2(zeroCopyCodec{FrameCodec().(frameCodec)})
}

// zeroCopyCodec does not copy the largest bytes field of a message.
type zeroCopyCodec struct{ frameCodec }

func (c zeroCopyCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return c.frameCodec.Marshal(v)
	}
	var large protoreflect.FieldDescriptor
	size := minBorrowedBytes - 1
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if borrowable(fd) && len(value.Bytes()) > size {
			large, size = fd, len(value.Bytes())
		}
		return true
	})
	if large == nil {
		return c.frameCodec.Marshal(v)
	}
	others := m.ProtoReflect().New()
	others.SetUnknown(m.ProtoReflect().GetUnknown())
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if fd != large {
			others.Set(fd, value)
		}
		return true
	})
	head, err := proto.Marshal(others.Interface())
	if err != nil {
		return nil, err
	}
	head = protowire.AppendVarint(protowire.AppendTag(head, large.Number(), protowire.BytesType), uint64(size))
	return mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(m.ProtoReflect().Get(large).Bytes())}, nil
}
