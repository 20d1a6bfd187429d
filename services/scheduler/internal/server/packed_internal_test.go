package server

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestPackedNumbersCountsTokenIDs(t *testing.T) {
	out := &pb.TokenizeResponse{TokenIds: []uint32{0, 1, 127, 128, 1 << 20}, Pieces: [][]byte{{1}, {2, 3}}, Rendered: "abc"}
	raw, err := proto.Marshal(out)
	require.NoError(t, err)
	require.EqualValues(t, 5, packedNumbers(raw, tokenIDsField))
	in := &pb.DetokenizeRequest{Model: "m", TokenIds: []uint32{7, 300}, RenderSpecial: proto.Bool(true)}
	raw, err = proto.Marshal(in)
	require.NoError(t, err)
	require.EqualValues(t, 2, packedNumbers(raw, detokenizedField))
	raw = protowire.AppendVarint(protowire.AppendTag(raw, detokenizedField, protowire.VarintType), 5) // not packed
	require.EqualValues(t, 3, packedNumbers(raw, detokenizedField))
	require.EqualValues(t, 3, packedNumbers(append(raw, 0xff), detokenizedField), "up to the first malformed field")
	require.EqualValues(t, tokenIDsField, out.ProtoReflect().Descriptor().Fields().ByName("token_ids").Number())
	require.EqualValues(t, detokenizedField, in.ProtoReflect().Descriptor().Fields().ByName("token_ids").Number())
}
