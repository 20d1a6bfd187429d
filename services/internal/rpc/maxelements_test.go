package rpc_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// repeated returns a list of n copies of v.
func repeated[T any](n int, v T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// nested returns a request with deep levels of messages. It has more than 128 KiB, from where
// elements are counted.
func nested(deep int) *pb.GenerateRequest {
	v := structpb.NewStringValue(string(make([]byte, 1<<17)))
	for range deep/2 - 2 {
		v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
	}
	return &pb.GenerateRequest{Input: &pb.GenerateRequest_Chat{Chat: &pb.Chat{
		TemplateKwargs: &structpb.Struct{Fields: map[string]*structpb.Value{"a": v}}}}}
}

func TestDecodeRefusesTooManyElements(t *testing.T) {
	const most = 1 << 16
	for name, tc := range map[string]struct {
		in      *pb.GenerateRequest
		refused bool
	}{
		"as many messages as may be": {in: &pb.GenerateRequest{Resume: repeated(most, &pb.Resume{})}},
		"one message more":           {in: &pb.GenerateRequest{Resume: repeated(most+1, &pb.Resume{})}, refused: true},
		"millions of messages":       {in: &pb.GenerateRequest{Resume: repeated(5<<20, &pb.Resume{})}, refused: true},
		"too many messages inside": {refused: true, in: &pb.GenerateRequest{
			Input: &pb.GenerateRequest_Chat{Chat: &pb.Chat{Messages: repeated(most+1, &pb.ChatMessage{})}}}},
		"too many texts": {in: &pb.GenerateRequest{Stopping: &pb.Stopping{Stop: repeated(most+1, "")}}, refused: true},
		"too many of both together": {refused: true, in: &pb.GenerateRequest{
			Resume: repeated(most/2, &pb.Resume{}), Stopping: &pb.Stopping{Stop: repeated(most/2+1, "")}}},
		"a struct nested too deeply": {refused: true, in: nested(208)},
		"a struct nested deeply":     {in: nested(192)},
		"numbers, however many":      {in: &pb.GenerateRequest{Resume: []*pb.Resume{{TokenIds: repeated(3<<20, uint32(1))}}}},
		"one long text":              {in: &pb.GenerateRequest{Input: &pb.GenerateRequest_Prompt{Prompt: string(make([]byte, 3<<20))}}},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := proto.Marshal(tc.in)
			require.NoError(t, err)
			out := &pb.GenerateRequest{}
			err = rpc.Decode(raw, out, rpc.WorkerDomain)
			if !tc.refused {
				require.NoError(t, err)
				require.True(t, proto.Equal(tc.in, out))
				return
			}
			require.Equal(t, codes.InvalidArgument, status.Code(err))
			require.Equal(t, reason.MalformedMessage, rpc.Reason(err))
			require.Contains(t, status.Convert(err).Message(), "more than 65536")
			require.Empty(t, out.GetResume(), "nothing of it is decoded")
		})
	}
}

func TestServerRefusesTooManyElements(t *testing.T) {
	c := pb.NewInferenceServiceClient(pair(t, rpc.ServerConfig{}))
	_, err := first(within(t), c, &pb.GenerateRequest{Resume: repeated(1<<17, &pb.Resume{})})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.Equal(t, reason.MalformedMessage, rpc.Reason(err))
	require.Contains(t, status.Convert(err).Message(), "more than 65536")
	_, err = first(within(t), c, prompt("x"))
	require.NoError(t, err, "and it serves on")
}
