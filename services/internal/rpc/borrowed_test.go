package rpc

import (
	"bytes"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// encodeRequest returns a request with the given number of bytes of rows.
func encodeRequest(rows int) *pb.EncodeRequest {
	return &pb.EncodeRequest{
		Codebook: "a/b", ExpectCodebookDigest: proto.String("d"), ElementType: pb.ElementType_ELEMENT_TYPE_F16,
		Rows: bytes.Repeat([]byte{1, 2, 3}, rows/3+1)[:rows], Neighbours: proto.Uint32(3), ReturnDistances: proto.Bool(true),
	}
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	require.NoError(t, err)
	return raw
}

// framed returns raw in buffers as the transport delivers it.
func framed(raw []byte) (data mem.BufferSlice) {
	for frame := range slices.Chunk(raw, 16<<10) {
		data = append(data, mem.SliceBuffer(frame))
	}
	return data
}

func testCodec() serverCodec {
	return serverCodec{FrameCodec().(frameCodec), newDecodeSlots(), proto.Unmarshal}
}

// liesIn reports whether part shares the memory of whole.
func liesIn(part, whole []byte) bool {
	at, from := uintptr(unsafe.Pointer(unsafe.SliceData(part))), uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	return at >= from && at+uintptr(len(part)) <= from+uintptr(len(whole))
}

// borrowedAs decodes raw into a BorrowedMessage, and requires the result of ordinary decoding.
func borrowedAs(t testing.TB, raw []byte, got, want proto.Message) *BorrowedMessage {
	t.Helper()
	borrowed := &BorrowedMessage{Message: got}
	require.NoError(t, testCodec().Unmarshal(framed(raw), borrowed))
	require.NoError(t, testCodec().Unmarshal(framed(raw), want))
	require.True(t, proto.Equal(want, got))
	return borrowed
}

func TestDecodeBorrowsTheLargeField(t *testing.T) {
	for _, rows := range []int{minBorrowedBytes, 100_000, 1<<20 + 1, 4<<20 - 100, 5 << 20} {
		got := &pb.EncodeRequest{}
		borrowed := borrowedAs(t, encode(t, encodeRequest(rows)), got, &pb.EncodeRequest{})
		whole := borrowed.buffer.ReadOnlyData()
		require.True(t, liesIn(got.GetRows(), whole), "%d", rows)
		require.Equal(t, len(got.GetRows()), cap(got.GetRows()), "what is appended to them lies elsewhere")
		require.EqualValues(t, cap(whole), sizeOf(borrowed), "the memory that it keeps others from is counted")
		borrowed.Free()
		borrowed.Free()
	}
}

func TestDecodeCopiesWhatItCannotBorrow(t *testing.T) {
	raw := encode(t, encodeRequest(minBorrowedBytes))
	field := func(number protowire.Number, n int) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), make([]byte, n))
	}
	for name, raw := range map[string][]byte{
		"nothing":               {},
		"small":                 encode(t, encodeRequest(100)),
		"again behind":          slices.Concat(raw, field(4, 7)),
		"again, empty":          slices.Concat(raw, field(4, 0)),
		"two that are large":    slices.Concat(raw, field(4, minBorrowedBytes)),
		"a long name besides":   slices.Concat(raw, field(1, minBorrowedBytes)),
		"an unknown one":        field(99, minBorrowedBytes),
		"cut off":               raw[:len(raw)/2],
		"no text":               slices.Concat(raw, protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "\xff")),
		"no message":            slices.Concat(raw, []byte{0x0f}),
		"a number for the rows": slices.Concat(protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 5), field(1, minBorrowedBytes)),
	} {
		t.Run(name, func(t *testing.T) {
			borrowed := borrowedAs(t, raw, &pb.EncodeRequest{}, &pb.EncodeRequest{})
			require.Nil(t, borrowed.buffer)
			require.Equal(t, sizeOf(borrowed.Message), sizeOf(borrowed))
			borrowed.Free()
		})
	}
	t.Run("a member of a oneof", func(t *testing.T) {
		m := &pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Rows{Rows: make([]byte, minBorrowedBytes)}}
		require.Nil(t, borrowedAs(t, encode(t, m), &pb.TrainCodebookRequest{}, &pb.TrainCodebookRequest{}).buffer)
	})
}

func TestBorrowedMessagesAreChecked(t *testing.T) {
	raw := protowire.AppendVarint(protowire.AppendTag(encode(t, encodeRequest(minBorrowedBytes)), 77, protowire.VarintType), 1)
	got := &pb.EncodeRequest{}
	borrowed := borrowedAs(t, raw, got, &pb.EncodeRequest{})
	require.NotNil(t, borrowed.buffer)
	require.ErrorContains(t, check(got, WorkerDomain), "field 77")
	borrowed.Free()
}

func TestBorrowedFieldReplacesAnEarlierOne(t *testing.T) {
	// The last occurrence of a field counts.
	raw := slices.Concat(encode(t, &pb.EncodeRequest{Rows: []byte("before")}), encode(t, encodeRequest(minBorrowedBytes)))
	borrowed := borrowedAs(t, raw, &pb.EncodeRequest{}, &pb.EncodeRequest{})
	require.NotNil(t, borrowed.buffer)
	borrowed.Free()
}

func TestZeroCopyRequestSharesItsField(t *testing.T) {
	codec := zeroCopyCodec{FrameCodec().(frameCodec)}
	for _, rows := range []int{0, 100, minBorrowedBytes - 1, minBorrowedBytes, 1 << 20} {
		in := encodeRequest(rows)
		in.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 77, protowire.VarintType), 1))
		data, err := codec.Marshal(in)
		require.NoError(t, err)
		out := &pb.EncodeRequest{}
		require.NoError(t, proto.Unmarshal(data.Materialize(), out))
		require.True(t, proto.Equal(in, out), "%d", rows)
		require.Equal(t, rows >= minBorrowedBytes, liesIn(data[len(data)-1].ReadOnlyData(), in.GetRows()), "%d", rows)
		data.Free()
	}
	frame := &Frame{Data: framed([]byte("as it is"))}
	data, err := codec.Marshal(frame)
	require.NoError(t, err)
	require.Equal(t, "as it is", string(data.Materialize()))
	_, err = codec.Marshal(&pb.EncodeRequest{Codebook: "\xff", Rows: make([]byte, minBorrowedBytes)})
	require.Error(t, err)
}

func TestLargeMessagesDecodeEqually(t *testing.T) {
	codec := FrameCodec()
	for _, n := range []int{0, 1000, 1 << 10, 5000, 4 << 20, 5 << 20} {
		in, out := encodeRequest(n), &pb.EncodeRequest{}
		data, err := codec.Marshal(in)
		require.NoError(t, err)
		require.Equal(t, proto.Size(in), data.Len())
		require.NoError(t, codec.Unmarshal(framed(data.Materialize()), out))
		data.Free()
		require.True(t, proto.Equal(in, out), "%d", n)
	}
	_, err := codec.Marshal(&pb.EncodeRequest{Codebook: "\xff", Rows: make([]byte, 5000)})
	require.Error(t, err)
}

func FuzzBorrowed(f *testing.F) {
	f.Add(encode(f, encodeRequest(10)), uint16(3), []byte{})
	f.Add([]byte{}, uint16(0), encode(f, encodeRequest(10)))
	f.Fuzz(func(t *testing.T, before []byte, more uint16, behind []byte) {
		rows := protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), make([]byte, minBorrowedBytes+int(more)))
		borrowedAs(t, slices.Concat(before, rows, behind), &pb.EncodeRequest{}, &pb.EncodeRequest{}).Free()
	})
}

func BenchmarkBorrowed(b *testing.B) {
	data, codec := framed(encode(b, encodeRequest(4<<20-100))), testCodec()
	b.SetBytes(int64(data.Len()))
	b.ReportAllocs()
	for b.Loop() {
		borrowed := BorrowedMessage{Message: &pb.EncodeRequest{}}
		require.NoError(b, codec.Unmarshal(data, &borrowed))
		borrowed.Free()
	}
}
