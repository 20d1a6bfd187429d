package relay

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestWithoutRemovesOneField(t *testing.T) {
	in := &pb.TokenizeRequest{Model: "m", Input: &pb.TokenizeRequest_Text{Text: "ab"}, FairnessId: proto.String("a"), AddSpecial: proto.Bool(true)}
	require.EqualValues(t, tenantField, in.ProtoReflect().Descriptor().Fields().ByName("fairness_id").Number())
	require.EqualValues(t, tenantField, (&pb.DetokenizeRequest{}).ProtoReflect().Descriptor().Fields().ByName("fairness_id").Number())
	raw, err := proto.Marshal(in)
	require.NoError(t, err)
	got := &pb.TokenizeRequest{}
	require.NoError(t, proto.Unmarshal(without(append(raw, raw...), tenantField), got), "also where it is twice")
	in.FairnessId = nil
	require.True(t, proto.Equal(in, got), "%v", got)
}
