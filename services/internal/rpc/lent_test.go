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

// encodeRequest is one of so many bytes of rows.
func encodeRequest(rows int) *pb.EncodeRequest {
	return &pb.EncodeRequest{
		Codebook: "a/b", ExpectCodebookDigest: proto.String("d"), ElementType: pb.ElementType_ELEMENT_TYPE_F16,
		Rows: bytes.Repeat([]byte{1, 2, 3}, rows/3+1)[:rows], Neighbours: proto.Uint32(3), ReturnDistances: proto.Bool(true),
	}
}

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	require.NoError(t, err)
	return raw
}

// framed are the bytes as they come, in frames.
func framed(raw []byte) (data mem.BufferSlice) {
	for frame := range slices.Chunk(raw, 16<<10) {
		data = append(data, mem.SliceBuffer(frame))
	}
	return data
}

func testCodec() serverCodec {
	return serverCodec{FrameCodec().(frameCodec), newTurns(), proto.Unmarshal}
}

// liesIn is whether part lies in the memory of whole.
func liesIn(part, whole []byte) bool {
	at, from := uintptr(unsafe.Pointer(unsafe.SliceData(part))), uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	return at >= from && at+uintptr(len(part)) <= from+uintptr(len(whole))
}

// lentAs decodes bytes into a message that is lent, and requires what decoding them otherwise gives.
func lentAs(t testing.TB, raw []byte, got, want proto.Message) *Lent {
	t.Helper()
	lent := &Lent{Message: got}
	require.NoError(t, testCodec().Unmarshal(framed(raw), lent))
	require.NoError(t, testCodec().Unmarshal(framed(raw), want))
	require.True(t, proto.Equal(want, got))
	return lent
}

func TestTheLargeFieldOfAMessageIsLent(t *testing.T) {
	for _, rows := range []int{lentBytes, 100_000, 1<<20 + 1, 4<<20 - 100, 5 << 20} {
		got := &pb.EncodeRequest{}
		lent := lentAs(t, encoded(t, encodeRequest(rows)), got, &pb.EncodeRequest{})
		whole := lent.whole.ReadOnlyData()
		require.True(t, liesIn(got.GetRows(), whole), "%d", rows)
		require.Equal(t, len(got.GetRows()), cap(got.GetRows()), "what is appended to them lies elsewhere")
		require.EqualValues(t, cap(whole), sizeOf(lent), "the memory that it keeps others from is counted")
		lent.Free()
		lent.Free()
	}
}

func TestWhatCannotBeLentIsDecodedAsOtherMessagesAre(t *testing.T) {
	raw := encoded(t, encodeRequest(lentBytes))
	field := func(number protowire.Number, n int) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), make([]byte, n))
	}
	for name, raw := range map[string][]byte{
		"nothing":               {},
		"small":                 encoded(t, encodeRequest(100)),
		"again behind":          slices.Concat(raw, field(4, 7)),
		"again, empty":          slices.Concat(raw, field(4, 0)),
		"two that are large":    slices.Concat(raw, field(4, lentBytes)),
		"a long name besides":   slices.Concat(raw, field(1, lentBytes)),
		"an unknown one":        field(99, lentBytes),
		"cut off":               raw[:len(raw)/2],
		"no text":               slices.Concat(raw, protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "\xff")),
		"no message":            slices.Concat(raw, []byte{0x0f}),
		"a number for the rows": slices.Concat(protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 5), field(1, lentBytes)),
	} {
		t.Run(name, func(t *testing.T) {
			lent := lentAs(t, raw, &pb.EncodeRequest{}, &pb.EncodeRequest{})
			require.Nil(t, lent.whole)
			require.Equal(t, sizeOf(lent.Message), sizeOf(lent))
			lent.Free()
		})
	}
	t.Run("a member of a oneof", func(t *testing.T) {
		m := &pb.TrainCodebookRequest{Event: &pb.TrainCodebookRequest_Rows{Rows: make([]byte, lentBytes)}}
		require.Nil(t, lentAs(t, encoded(t, m), &pb.TrainCodebookRequest{}, &pb.TrainCodebookRequest{}).whole)
	})
}

func TestAMessageThatIsLentIsCheckedAsOthersAre(t *testing.T) {
	raw := protowire.AppendVarint(protowire.AppendTag(encoded(t, encodeRequest(lentBytes)), 77, protowire.VarintType), 1)
	got := &pb.EncodeRequest{}
	lent := lentAs(t, raw, got, &pb.EncodeRequest{})
	require.NotNil(t, lent.whole)
	require.ErrorContains(t, check(got, WorkerDomain), "field 77")
	lent.Free()
}

func TestAFieldThatComesBeforeIsPutOutByTheLargeOne(t *testing.T) {
	raw := slices.Concat(encoded(t, &pb.EncodeRequest{Rows: []byte("before")}), encoded(t, encodeRequest(lentBytes)))
	lent := lentAs(t, raw, &pb.EncodeRequest{}, &pb.EncodeRequest{})
	require.NotNil(t, lent.whole)
	lent.Free()
}

func TestARequestIsSentFromWhereItsLargeFieldLies(t *testing.T) {
	codec := lendingCodec{FrameCodec().(frameCodec)}
	for _, rows := range []int{0, 100, lentBytes - 1, lentBytes, 1 << 20} {
		in := encodeRequest(rows)
		in.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 77, protowire.VarintType), 1))
		data, err := codec.Marshal(in)
		require.NoError(t, err)
		out := &pb.EncodeRequest{}
		require.NoError(t, proto.Unmarshal(data.Materialize(), out))
		require.True(t, proto.Equal(in, out), "%d", rows)
		require.Equal(t, rows >= lentBytes, liesIn(data[len(data)-1].ReadOnlyData(), in.GetRows()), "%d", rows)
		data.Free()
	}
	frame := &Frame{Data: framed([]byte("as it is"))}
	data, err := codec.Marshal(frame)
	require.NoError(t, err)
	require.Equal(t, "as it is", string(data.Materialize()))
	_, err = codec.Marshal(&pb.EncodeRequest{Codebook: "\xff", Rows: make([]byte, lentBytes)})
	require.Error(t, err)
}

func TestLargeMessagesAreWhatTheirBytesSay(t *testing.T) {
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

func FuzzLent(f *testing.F) {
	f.Add(encoded(f, encodeRequest(10)), uint16(3), []byte{})
	f.Add([]byte{}, uint16(0), encoded(f, encodeRequest(10)))
	f.Fuzz(func(t *testing.T, before []byte, more uint16, behind []byte) {
		rows := protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), make([]byte, lentBytes+int(more)))
		lentAs(t, slices.Concat(before, rows, behind), &pb.EncodeRequest{}, &pb.EncodeRequest{}).Free()
	})
}

func BenchmarkLent(b *testing.B) {
	data, codec := framed(encoded(b, encodeRequest(4<<20-100))), testCodec()
	b.SetBytes(int64(data.Len()))
	b.ReportAllocs()
	for b.Loop() {
		lent := Lent{Message: &pb.EncodeRequest{}}
		require.NoError(b, codec.Unmarshal(data, &lent))
		lent.Free()
	}
}
