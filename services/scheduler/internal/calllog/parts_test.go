package calllog_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/calllog"
)

// Parts are spans of the text, so a stream with calls is logged and resumed as any other.
func TestPartsAreForwardedAndTheirTextCounts(t *testing.T) {
	l := begun(t, &pb.GenerateRequest{Model: "m", Input: &pb.GenerateRequest_Chat{Chat: &pb.Chat{
		Messages: []*pb.ChatMessage{{Role: "user", Content: "hi"}}, Tools: []*pb.Tool{{Name: "f"}},
	}}})
	for i, parts := range [][]*pb.Part{
		{{Kind: pb.PartKind_PART_KIND_REASONING, TextBytes: 2}},
		{{Kind: pb.PartKind_PART_KIND_TOOL_CALL, Call: &pb.CallStart{Id: "call_1", Name: "f"}}},
		{{Kind: pb.PartKind_PART_KIND_TOOL_CALL, TextBytes: 2}},
	} {
		text := []string{"Hm", "", "{}"}[i]
		v, err := l.Record(marshal(t, &pb.GenerateResponse{Event: &pb.GenerateResponse_Tokens{Tokens: &pb.Tokens{
			TokenIndex: uint32(i), TokenIds: []uint32{uint32(7 + i)}, Text: text, Parts: parts,
		}}}))
		require.NoError(t, err)
		require.Equal(t, calllog.Verdict{Tokens: 1}, v, "it is sent unchanged")
	}
	original, rest := l.NextRequest(false, calllog.Elapsed{})
	next := &pb.GenerateRequest{}
	require.NoError(t, proto.Unmarshal(append(original, rest...), next))
	require.Len(t, next.GetChat().GetTools(), 1)
	require.Equal(t, []uint32{7, 8, 9}, next.GetResume()[0].GetTokenIds())
	require.EqualValues(t, 4, next.GetResume()[0].GetTextBytes())
}
