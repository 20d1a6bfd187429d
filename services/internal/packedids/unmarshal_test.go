package packedids

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// sameAsProtobuf compares with proto.Unmarshal, into a message that held something else.
func sameAsProtobuf(t *testing.T, raw []byte, name string) {
	t.Helper()
	want, got := &pb.GenerateRequest{}, &pb.GenerateRequest{Model: "before", Priority: proto.Int32(3)}
	wantErr, err := proto.Unmarshal(raw, want), Unmarshal(raw, got)
	require.Equal(t, wantErr == nil, err == nil, name)
	if wantErr != nil {
		require.Equal(t, text(wantErr), text(err), name)
		return
	}
	require.True(t, proto.Equal(want, got), name)
}

// text returns an error's text without the spaces that protobuf varies.
func text(err error) string { return strings.ReplaceAll(err.Error(), "\u00a0", " ") }

// ofIDs returns a request of ids. Its encoding is long enough.
func ofIDs(ids []uint32) *pb.GenerateRequest {
	seed := uint64(7)
	return &pb.GenerateRequest{
		Model: "m", Input: &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids}}, Sampling: &pb.Sampling{Seed: &seed},
	}
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.Marshal(m)
	require.NoError(t, err)
	return raw
}

// drawIDs draws ids of all encoded lengths.
func drawIDs(random *rand.Rand, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = random.Uint32() >> random.IntN(32)
	}
	return ids
}

func TestUnmarshalAgreesWithProtobuf(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	edges := []uint32{0, 1, 127, 128, 16383, 16384, 1<<21 - 1, 1 << 21, 1<<28 - 1, 1 << 28, math.MaxUint32}
	for _, id := range edges {
		ids := slices.Repeat([]uint32{id}, minBytes+random.IntN(9))
		sameAsProtobuf(t, encode(t, ofIDs(ids)), "one id, repeated")
		_, _, list, plain := findIDs(encode(t, ofIDs(ids)))
		require.True(t, plain)
		got, ok := readIDs(list)
		require.True(t, ok, "%d", id)
		require.Equal(t, ids, got)
	}
	for n := range 40 {
		for range 20 {
			ids := drawIDs(random, n)
			_, _, list, plain := findIDs(encode(t, ofIDs(ids)))
			require.Equal(t, n > 0, plain, "an empty list is not sent")
			got, ok := readIDs(list)
			require.True(t, ok)
			require.Equal(t, ids, append([]uint32{}, got...))
		}
		sameAsProtobuf(t, encode(t, ofIDs(drawIDs(random, minBytes+n))), "drawn")
	}
}

func TestUnmarshalLeavesOtherInputToProtobuf(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	plain := encode(t, ofIDs(drawIDs(random, 2*minBytes)))
	field := func(number protowire.Number, body []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), body)
	}
	list := func(packed []byte) []byte { return field(tokenIDsField.Number(), field(idsNumber, packed)) }
	unpacked := []byte(nil)
	for range minBytes {
		unpacked = protowire.AppendVarint(protowire.AppendTag(unpacked, idsNumber, protowire.VarintType), random.Uint64N(50000))
	}
	many := slices.Repeat([]byte{0x81, 0x01}, minBytes)
	for name, raw := range map[string][]byte{
		"twice":                         slices.Concat(plain, list([]byte{1, 2, 3})),
		"a prompt behind":               slices.Concat(plain, encode(t, &pb.GenerateRequest{Input: &pb.GenerateRequest_Prompt{Prompt: "p"}})),
		"a prompt before":               slices.Concat(encode(t, &pb.GenerateRequest{Input: &pb.GenerateRequest_Prompt{Prompt: "p"}}), plain),
		"not packed":                    field(tokenIDsField.Number(), unpacked),
		"two lists":                     field(tokenIDsField.Number(), slices.Concat(field(idsNumber, many), field(idsNumber, many))),
		"a field that nobody knows":     field(tokenIDsField.Number(), slices.Concat(field(idsNumber, many), field(99, []byte("x")))),
		"one beside":                    slices.Concat(list(many), field(999, []byte("x"))),
		"an id of more than 32 bits":    list(slices.Concat(many, []byte{0xff, 0xff, 0xff, 0xff, 0x7f}, many)),
		"an id of six bytes":            list(slices.Concat(many, []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x01}, many)),
		"an id of ten bytes":            list(slices.Concat(many, slices.Repeat([]byte{0xff}, 9), []byte{0x01}, many)),
		"zero in two bytes":             list(slices.Concat(many, []byte{0x80, 0x00}, many)),
		"a varint without an end":       list(slices.Concat(many, slices.Repeat([]byte{0xff}, 16))),
		"a varint cut off at the end":   list(slices.Concat(many, []byte{0xff})),
		"cut off":                       plain[:len(plain)-minBytes],
		"no input":                      encode(t, &pb.GenerateRequest{Model: string(slices.Repeat([]byte{'m'}, minBytes))}),
		"text":                          encode(t, &pb.GenerateRequest{Input: &pb.GenerateRequest_Prompt{Prompt: string(slices.Repeat([]byte{'m'}, minBytes))}}),
		"an id of more, within the end": list(slices.Concat(many, []byte{0xff, 0xff, 0xff, 0xff, 0x7f})),
	} {
		sameAsProtobuf(t, raw, name)
	}
}

func FuzzUnmarshal(f *testing.F) {
	random := rand.New(rand.NewPCG(7, 8))
	raw, err := proto.Marshal(ofIDs(drawIDs(random, 64)))
	require.NoError(f, err)
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		begin, end, list, plain := findIDs(raw)
		if !plain {
			return
		}
		ids, ok := readIDs(list)
		want := &pb.GenerateRequest{}
		if !ok || proto.Unmarshal(raw, want) != nil {
			return
		}
		require.Equal(t, append([]uint32{}, want.GetTokenIds().GetIds()...), append([]uint32{}, ids...))
		rest := &pb.GenerateRequest{}
		require.NoError(t, proto.Unmarshal(slices.Concat(raw[:begin], raw[end:]), rest))
		require.Nil(t, rest.GetInput())
	})
}

func BenchmarkUnmarshal(b *testing.B) {
	random := rand.New(rand.NewPCG(9, 10))
	ids := make([]uint32, 55_000)
	for i := range ids {
		ids[i] = uint32(random.IntN(32000))
	}
	raw, err := proto.Marshal(ofIDs(ids))
	require.NoError(b, err)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if err := Unmarshal(raw, &pb.GenerateRequest{}); err != nil {
			b.Fatal(err)
		}
	}
}
