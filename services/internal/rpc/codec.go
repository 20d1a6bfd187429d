package rpc

import (
	"context"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Frame is a message in its wire encoding. After RecvMsg it holds a reference to the transport's
// buffers, which ends with Free or when the frame is sent. Sending empties the frame. To send it
// twice, call Data.Ref first. It is not safe for concurrent use.
type Frame struct {
	Data mem.BufferSlice
}

// Free drops the reference and empties the frame. An empty frame may be freed.
func (f *Frame) Free() {
	f.Data.Free()
	f.Data = nil
}

// FrameCodec passes Frames through and handles everything else as protobuf. Clients select it with
// grpc.ForceCodecV2. Servers of this package always use it.
func FrameCodec() encoding.CodecV2 { return frameCodec{encoding.GetCodecV2(protocodec.Name)} }

// frameCodec does not copy Frames.
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

// marshal encodes a message, a large one into a pooled buffer.
func marshal(m proto.Message) (mem.BufferSlice, error) {
	size, options := proto.Size(m), proto.MarshalOptions{UseCachedSize: true}
	if mem.IsBelowBufferPoolingThreshold(size) {
		raw, err := options.Marshal(m)
		if err != nil {
			return nil, err
		}
		return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
	}
	piece := buffers.Get(size)
	raw, err := options.MarshalAppend((*piece)[:0], m)
	if err != nil {
		buffers.Put(piece)
		return nil, err
	}
	*piece = raw
	return mem.BufferSlice{mem.NewBuffer(piece, &buffers)}, nil
}

func (c frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *Frame:
		data.Ref()
		v.Data = data
		return nil
	case proto.Message:
		whole := Flatten(data)
		defer whole.Free()
		return proto.Unmarshal(whole.ReadOnlyData(), v)
	}
	return c.proto.Unmarshal(data, v)
}

// serverCodec never fails to decode, because grpc-go would answer INTERNAL without details before
// any handler or interceptor runs. It stores malformed bytes in the unknown fields of the message,
// after malformedMark. For a message with too many elements it stores only tooManyMark.
// checkedStream detects both.
type serverCodec struct {
	frameCodec
	decodeSlots decodeSlots
	unmarshal   func(raw []byte, m proto.Message) error
}

// The marks begin the unknown fields of a message that was not decoded. Real unknown fields cannot
// begin with them, because 7 is not a wire type.
const (
	malformedMark = "\x07malformed:"
	tooManyMark   = "\x07crowded"
)

func (c serverCodec) Unmarshal(data mem.BufferSlice, v any) error {
	borrowed, _ := v.(*BorrowedMessage)
	m, ok := v.(proto.Message)
	switch {
	case borrowed != nil:
		m = borrowed.Message
	case !ok:
		return c.frameCodec.Unmarshal(data, v)
	}
	defer c.decodeSlots.acquire(data.Len())()
	whole := Flatten(data)
	raw := whole.ReadOnlyData()
	if borrowed != nil && borrowed.decode(whole) {
		return nil
	}
	defer whole.Free()
	if tooManyElements(raw, m.ProtoReflect().Descriptor()) {
		proto.Reset(m)
		m.ProtoReflect().SetUnknown([]byte(tooManyMark))
		return nil
	}
	if err := c.unmarshal(raw, m); err != nil {
		proto.Reset(m)
		m.ProtoReflect().SetUnknown(append([]byte(malformedMark), raw...))
	}
	return nil
}

const (
	// largeBytes is the length from which decoding a message needs a slot. While it is decoded, a
	// message is in memory as it arrived, in one buffer and decoded, together up to six times its
	// length.
	largeBytes = 1 << 20
	// maxDecoding is the number of slots. Decoding never blocks, so more would not be faster.
	maxDecoding = 2
)

// decodeSlots is a semaphore for decoding large messages.
type decodeSlots chan struct{}

func newDecodeSlots() decodeSlots { return make(decodeSlots, maxDecoding) }

// acquire waits for a slot if a message of the given length needs one. The caller must call
// release.
func (s decodeSlots) acquire(bytes int) (release func()) {
	if bytes < largeBytes {
		return func() {}
	}
	s <- struct{}{}
	return func() { <-s }
}

// AcquireDecodeSlot waits until a handler may decode a message of the given length that it received
// as a Frame. The handler must not block until it calls release, which also releases the bytes of
// the Frame in the receive budget. Outside a handler it does nothing.
func AcquireDecodeSlot(ctx context.Context, bytes int) (release func()) {
	if c := callOf(ctx); c != nil {
		release := c.decodeSlots.acquire(bytes)
		return func() {
			release()
			c.releaseReceived()
		}
	}
	return func() {}
}
