package load_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/load"
)

func TestAnEncodedRequestIsACallAsAnyOther(t *testing.T) {
	w := &worker{seen: make(chan *pb.GenerateRequest, 2)}
	g := generator(t, w, load.NewRecorder(nil))
	want := g.Maker.Request(1, load.Size{Prompt: 3, Output: 5})
	raw, err := proto.Marshal(want)
	require.NoError(t, err)
	in := load.Encoded{Data: mem.BufferSlice{mem.SliceBuffer(raw[:7]), mem.SliceBuffer(raw[7:])}, Prompt: 3}
	due := time.Now()
	out := load.CallEncoded(t.Context(), g.Conns[0], in, due)
	require.Equal(t, codes.OK, out.Code, out.Message)
	require.True(t, proto.Equal(want, <-w.seen))
	require.Equal(t, due, out.Due)
	require.Equal(t, []int{3, 5, 3}, []int{out.Prompt, out.Tokens, out.Messages})
	require.Positive(t, out.FirstToken)
	require.LessOrEqual(t, out.FirstToken, out.Total)
	w.refuse = func(*pb.GenerateRequest) bool { return true }
	out = load.CallEncoded(t.Context(), g.Conns[0], in, due)
	require.Equal(t, []any{codes.ResourceExhausted, "FULL", "no room"}, []any{out.Code, out.Reason, out.Message})
}
