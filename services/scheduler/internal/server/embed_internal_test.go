package server

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestUsageOfAResponseIsRead(t *testing.T) {
	usage := &pb.Usage{PromptTokens: 300, CachedTokens: 7}
	for _, m := range []proto.Message{
		&pb.EmbedResponse{Usage: usage, Embeddings: []*pb.Embedding{{Values: []float32{1, 2}, Tokens: 9}}},
		&pb.RerankResponse{Usage: usage, Results: []*pb.RerankResult{{Index: 3, Score: 1}}},
	} {
		raw, err := proto.Marshal(m)
		require.NoError(t, err)
		require.EqualValues(t, 300, usageTokens(raw))
		require.Zero(t, usageTokens(raw[:len(raw)/8]), "up to the first malformed field")
		require.EqualValues(t, usageField, m.ProtoReflect().Descriptor().Fields().ByName("usage").Number())
	}
	require.Zero(t, usageTokens(nil))
	require.EqualValues(t, promptTokensField, usage.ProtoReflect().Descriptor().Fields().ByName("prompt_tokens").Number())
}

func TestTextsAreRoutedByTheirTokens(t *testing.T) {
	ids := func(n int) *pb.TokenIds { return &pb.TokenIds{Ids: make([]uint32, n)} }
	raw := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		require.NoError(t, err)
		return b
	}
	r, err := embedding(t.Context(), raw(&pb.EmbedRequest{
		Model: "m", TokenIds: []*pb.TokenIds{ids(100), ids(7), ids(40)}, FairnessId: proto.String("a"), Priority: proto.Int32(2),
	}))
	require.NoError(t, err)
	require.EqualValues(t, 147, r.Route.Prompt)
	require.EqualValues(t, 147, r.Route.Tokens)
	require.EqualValues(t, 100, r.Route.Length, "of the longest text")
	require.EqualValues(t, 3, r.Route.Sequences)
	require.Equal(t, "a", r.Route.Tenant)
	require.EqualValues(t, 2, r.Route.Priority)
	many := &pb.EmbedRequest{Model: "m", Truncate: proto.Bool(true)}
	for range 320 {
		many.Texts = append(many.GetTexts(), strings.Repeat("a", 40))
	}
	r, err = embedding(t.Context(), raw(many))
	require.NoError(t, err)
	require.EqualValues(t, 10*atOnce, r.Route.Prompt, "a worker computes a part at once")
	require.EqualValues(t, 3200, r.Route.Tokens)
	require.EqualValues(t, math.MaxInt64, r.Route.Length, "a text is cut where the longest context ends")
	require.EqualValues(t, textSlots, r.Route.Sequences)
	r, err = reranking(t.Context(), raw(&pb.RerankRequest{Model: "m", Query: strings.Repeat("a", 200), Documents: []string{"", strings.Repeat("a", 400)}}))
	require.NoError(t, err)
	require.EqualValues(t, 1000/leastBytesPerToken, r.Route.Length)
	require.EqualValues(t, (600+1000)/bytesPerToken, r.Route.Prompt)
	for _, decode := range []func() error{
		func() error { _, err := embedding(t.Context(), raw(&pb.EmbedRequest{})); return err },
		func() error { _, err := reranking(t.Context(), raw(&pb.RerankRequest{})); return err },
		func() error { _, err := embedding(t.Context(), []byte{0xff}); return err },
		func() error { _, err := reranking(t.Context(), []byte{0xff}); return err },
	} {
		require.Equal(t, codes.InvalidArgument, status.Code(decode()))
	}
}
