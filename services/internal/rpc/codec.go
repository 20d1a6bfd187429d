package rpc

import (
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Frame is a message as it is on the wire, not decoded. Received into, it holds a reference to the transport's buffers
// that it owns until Free or until it is sent; sending gives the reference away and empties the frame. To send it
// twice, take another reference first: Data.Ref. Not safe for concurrent use.
type Frame struct {
	Data mem.BufferSlice
}

// Free gives the reference back and empties the frame; an empty frame may be freed.
func (f *Frame) Free() {
	f.Data.Free()
	f.Data = nil
}

// FrameCodec passes Frames through and decodes everything else as protobuf. Clients name it with grpc.ForceCodecV2;
// servers of this package always use it.
func FrameCodec() encoding.CodecV2 { return frameCodec{encoding.GetCodecV2(protocodec.Name)} }

// frameCodec copies nothing for Frames.
type frameCodec struct{ proto encoding.CodecV2 }

func (frameCodec) Name() string { return protocodec.Name }

func (c frameCodec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*Frame); ok {
		data := f.Data
		f.Data = nil
		return data, nil
	}
	return c.proto.Marshal(v)
}

func (c frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*Frame); ok {
		data.Ref()
		f.Data = data
		return nil
	}
	return c.proto.Unmarshal(data, v)
}

// serverCodec never fails to decode, because grpc-go would answer INTERNAL without details before any handler or
// interceptor could: bytes that are not the message are kept as its unknown fields behind malformedMark, and of a message with too
// many elements nothing but crowdedMark. checkedStream finds both.
type serverCodec struct {
	frameCodec
	turns     turns
	unmarshal func(raw []byte, m proto.Message) error
}

// The marks begin the unknown fields of a message that serverCodec did not decode. Unknown fields proper begin with neither,
// as 7 is no wire type.
const (
	malformedMark = "\x07malformed:"
	crowdedMark   = "\x07crowded"
)

func (c serverCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return c.frameCodec.Unmarshal(data, v)
	}
	defer c.turns.take(data.Len())()
	whole := Whole(data)
	defer whole.Free()
	raw := whole.ReadOnlyData()
	if crowded(raw, m.ProtoReflect().Descriptor()) {
		proto.Reset(m)
		m.ProtoReflect().SetUnknown([]byte(crowdedMark))
		return nil
	}
	if err := c.unmarshal(raw, m); err != nil {
		proto.Reset(m)
		m.ProtoReflect().SetUnknown(append([]byte(malformedMark), raw...))
	}
	return nil
}
