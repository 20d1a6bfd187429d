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
	switch v := v.(type) {
	case *Frame:
		data := v.Data
		v.Data = nil
		return data, nil
	case proto.Message:
		return marshal(v)
	}
	return c.proto.Marshal(v)
}

// marshal encodes a message, a large one into memory of pieces.
func marshal(m proto.Message) (mem.BufferSlice, error) {
	size, options := proto.Size(m), proto.MarshalOptions{UseCachedSize: true}
	if mem.IsBelowBufferPoolingThreshold(size) {
		raw, err := options.Marshal(m)
		if err != nil {
			return nil, err
		}
		return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
	}
	piece := pieces.Get(size)
	raw, err := options.MarshalAppend((*piece)[:0], m)
	if err != nil {
		pieces.Put(piece)
		return nil, err
	}
	*piece = raw
	return mem.BufferSlice{mem.NewBuffer(piece, &pieces)}, nil
}

func (c frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *Frame:
		data.Ref()
		v.Data = data
		return nil
	case proto.Message:
		whole := Whole(data)
		defer whole.Free()
		return proto.Unmarshal(whole.ReadOnlyData(), v)
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
	lent, _ := v.(*Lent)
	m, ok := v.(proto.Message)
	switch {
	case lent != nil:
		m = lent.Message
	case !ok:
		return c.frameCodec.Unmarshal(data, v)
	}
	defer c.turns.take(data.Len())()
	whole := Whole(data)
	raw := whole.ReadOnlyData()
	if lent != nil && lent.take(whole) {
		return nil
	}
	defer whole.Free()
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
