package rpc

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// lentBytes is the length from which a field's bytes are worth lending.
const lentBytes = 16 << 10

// Lent is a message that a handler receives as such to spare the copy of its largest field: the bytes of a field of 16 KiB or more lie
// in memory that is given to another message after Free, and so must not be used behind it, written to, or kept. It is checked and
// counted as the message itself would be. A handler that RecvMsg gave an error must leave it alone: it may still be received.
type Lent struct {
	Message proto.Message // what is received into; set it before
	whole   mem.Buffer    // what Message's bytes lie in; nil: it has its own
}

// Free ends the lending. It may be called twice.
func (l *Lent) Free() {
	if l.whole != nil {
		l.whole.Free()
		l.whole = nil
	}
}

// take decodes a message into l with its large field in whole, which it keeps. It is false, and has kept nothing, for a message that
// has no such field or that has to be decoded as others are: because it is none, say.
func (l *Lent) take(whole mem.Buffer) bool {
	raw, m := whole.ReadOnlyData(), l.Message.ProtoReflect()
	field, from, begin, end := largeField(raw, m.Descriptor())
	if field == nil || len(raw)-(end-from) > lentBytes {
		return false
	}
	rest := append(append([]byte(nil), raw[:from]...), raw[end:]...)
	if proto.Unmarshal(rest, l.Message) != nil {
		return false
	}
	m.Set(field, protoreflect.ValueOfBytes(raw[begin:end:end]))
	l.whole = whole
	return true
}

// largeField finds the field of a message whose bytes are lent, from its tag on, and where they begin and end. It is the first large
// one that does not come again, as the last one counts, and is in no oneof, whose members put each other out. nil: there is none.
func largeField(raw []byte, md protoreflect.MessageDescriptor) (field protoreflect.FieldDescriptor, from, begin, end int) {
	for at := 0; at < len(raw); {
		number, kind, n := protowire.ConsumeTag(raw[at:])
		if n < 0 {
			return nil, 0, 0, 0
		}
		size := protowire.ConsumeFieldValue(number, kind, raw[at+n:])
		if size < 0 || field != nil && field.Number() == number {
			return nil, 0, 0, 0
		}
		if field == nil && size >= lentBytes && kind == protowire.BytesType && lendable(md.Fields().ByNumber(number)) {
			value, _ := protowire.ConsumeBytes(raw[at+n:])
			field, from, end = md.Fields().ByNumber(number), at, at+n+size
			begin = end - len(value)
		}
		at += n + size
	}
	return field, from, begin, end
}

// lendable is whether a field's bytes can be lent.
func lendable(fd protoreflect.FieldDescriptor) bool {
	return fd != nil && fd.Kind() == protoreflect.BytesKind && !fd.IsList() &&
		(fd.ContainingOneof() == nil || fd.ContainingOneof().IsSynthetic())
}

// LendRequest is an option of a call whose request is sent with its largest bytes field, of 16 KiB or more, from where they lie. They
// must stay as they are, also behind a call that failed, which may still be sending them.
func LendRequest() grpc.CallOption {
	return grpc.ForceCodecV2(lendingCodec{FrameCodec().(frameCodec)})
}

// lendingCodec does not copy the largest field of what is sent.
type lendingCodec struct{ frameCodec }

func (c lendingCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return c.frameCodec.Marshal(v)
	}
	var large protoreflect.FieldDescriptor
	size := lentBytes - 1
	m.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if lendable(fd) && len(value.Bytes()) > size {
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
