package rpc

import (
	"bytes"
	"strconv"

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
	// oversize is the size of a message that serverCodec did not keep.
	oversize int
}

// Free gives the reference back and empties the frame; an empty frame may be freed.
func (f *Frame) Free() {
	f.Data.Free()
	f.Data = nil
}

// Oversize is the size of a received message that was above the server's limit and is not in the frame, else 0. Streams that check
// what they receive refuse it by themselves; see Bare.
func (f *Frame) Oversize() int { return f.oversize }

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
// interceptor could: bytes that are not the message are kept as its unknown fields behind malformedMark, and of a message
// above max only the size is kept, behind oversizeMark; of one with too many elements nothing but crowdedMark. checkedStream
// finds them all.
type serverCodec struct {
	frameCodec
	max int
}

// The marks begin the unknown fields of a message that serverCodec did not decode. Unknown fields proper begin with neither,
// as 7 is no wire type.
const (
	oversizeMark  = "\x07oversize:"
	malformedMark = "\x07malformed:"
	crowdedMark   = "\x07crowded"
)

func (c serverCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*Frame); ok && data.Len() > c.max {
		f.oversize = data.Len()
		return nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return c.frameCodec.Unmarshal(data, v)
	}
	if n := data.Len(); n > c.max {
		proto.Reset(m)
		m.ProtoReflect().SetUnknown([]byte(oversizeMark + strconv.Itoa(n)))
		return nil
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	if crowded(whole.ReadOnlyData(), m.ProtoReflect().Descriptor()) {
		proto.Reset(m)
		m.ProtoReflect().SetUnknown([]byte(crowdedMark))
		return nil
	}
	if err := c.frameCodec.Unmarshal(mem.BufferSlice{whole}, v); err != nil {
		proto.Reset(m)
		m.ProtoReflect().SetUnknown(append([]byte(malformedMark), data.Materialize()...))
	}
	return nil
}

// oversize is the size of a received message that was above the codec's limit, else 0.
func oversize(v any) int {
	switch m := v.(type) {
	case *Frame:
		return m.oversize
	case proto.Message:
		if digits, ok := bytes.CutPrefix(m.ProtoReflect().GetUnknown(), []byte(oversizeMark)); ok {
			n, err := strconv.Atoi(string(digits))
			if err == nil {
				return n
			}
		}
	}
	return 0
}
