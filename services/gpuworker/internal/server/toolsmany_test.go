package server

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// The outputs of one request have calls with ids of their own, and go on with them after a break.
func TestOutputsHaveCallsOfTheirOwn(t *testing.T) {
	w := startTools(t)
	const outputs = 4
	for name := range shows {
		var in, again *pb.GenerateRequest
		var whole outcome
		ids := map[string]bool{}
		for seed := uint64(5); len(ids) == 0; seed++ { // an answer of the sim engine may end before its first call
			require.Less(t, seed, uint64(50), name)
			in = calling(name, seed)
			in.GetChat().Messages[0].Content += fmt.Sprint(seed)
			in.Sampling.NumSequences = ptr(int32(outputs))
			whole, again = w.generate(t.Context(), t, in), proto.CloneOf(in)
			require.NoError(t, whole.err)
			for o := range uint32(outputs) {
				again.Resume = append(again.Resume, &pb.Resume{OutputIndex: o, TokenIds: whole.ids[o][:len(whole.ids[o])/2]})
				for _, a := range answersOf(t, whole, o) {
					if a.kind == pb.PartKind_PART_KIND_TOOL_CALL {
						require.False(t, ids[a.id], "%s, output %d", name, o)
						ids[a.id] = true
					}
				}
			}
		}
		rest := w.generate(t.Context(), t, again)
		require.NoError(t, rest.err)
		for o := range uint32(outputs) {
			require.Equal(t, whole.ids[o][len(whole.ids[o])/2:], rest.ids[o], "%s, output %d", name, o)
			for _, a := range answersOf(t, rest, o) {
				require.True(t, a.id == "" || ids[a.id], "%s, output %d: a call that goes on has its id", name, o)
			}
		}
	}
}

// What a request asks of its grammar in vain ends it alone, with a reason, and a forged resume is refused before anything is computed.
func TestHostileOptionsEndTheirOwnCall(t *testing.T) {
	w := startTools(t)
	for name, tc := range map[string]struct {
		change func(*pb.GenerateRequest)
		reason string
	}{
		"no allowed token fits":     {func(in *pb.GenerateRequest) { in.Sampling.AllowedTokens = &pb.TokenIds{Ids: []uint32{300}} }, reason.NoTokenLeft},
		"more tokens than it has":   {func(in *pb.GenerateRequest) { in.Stopping.MinTokens = ptr(int32(299)) }, reason.NoTokenLeft},
		"an end that it forbids":    {func(in *pb.GenerateRequest) { in.Resume = []*pb.Resume{{TokenIds: []uint32{2}}} }, reason.InvalidArgument},
		"tokens that it forbids":    {func(in *pb.GenerateRequest) { in.Resume = []*pb.Resume{{TokenIds: []uint32{300, 301}}} }, reason.InvalidArgument},
		"a stop string in its text": {func(in *pb.GenerateRequest) { in.Stopping.Stop = []string{"{", "Oslo", "a"} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := calling("hermes", 1)
			in.GetChat().ToolChoice.Name = ptr("trip")
			tc.change(in)
			got := w.generate(t.Context(), t, in)
			if tc.reason == "" {
				require.NoError(t, got.err)
				require.Empty(t, got.finished[0].GetStop(), "stop strings are of the content alone")
				return
			}
			require.NotEqual(t, codes.OK, status.Code(got.err))
			require.Equal(t, tc.reason, rpc.Reason(got.err), "%v", got.err)
		})
	}
}
