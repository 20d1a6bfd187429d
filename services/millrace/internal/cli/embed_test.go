package cli_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/internal/vectorfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
)

// lengths is a server whose vectors are the length of a text and 1. Its response holds two of them.
func lengths(calls *[]*pb.EmbedRequest) func(context.Context, *pb.EmbedRequest) (*pb.EmbedResponse, error) {
	return func(_ context.Context, in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
		*calls = append(*calls, in)
		if len(in.GetTexts()) > 2 {
			return nil, refusal(codes.InvalidArgument, reason.ResponseTooLarge, "too large")
		}
		out := &pb.EmbedResponse{Usage: &pb.Usage{PromptTokens: 3}, ModelDigest: strings.Repeat("ab", 32), ClassId: "c"}
		for _, text := range in.GetTexts() {
			out.Embeddings = append(out.Embeddings, &pb.Embedding{Values: []float32{float32(len(text)), 1}, Tokens: 3})
		}
		return out, nil
	}
}

func TestEmbedPrintsALineForEachText(t *testing.T) {
	var calls []*pb.EmbedRequest
	r := serve(t, &fake{models: []*pb.ModelInfo{model("m")}, embed: lengths(&calls)})
	require.Equal(t, 0, r.run(t, "embed", "--dimensions", "2", "--pooling", "mean", "--normalize=false", "a", "bcd", "ef"), r.err.String())
	lines := strings.Split(r.out.String(), "\n")
	require.Len(t, lines, 4)
	for i, length := range []int{1, 3, 2} {
		require.JSONEq(t, fmt.Sprintf(`{"index":%d,"tokens":3,"embedding":[%d,1]}`, i, length), lines[i])
	}
	require.Len(t, calls, 3, "the response of three texts is too large")
	require.EqualValues(t, 2, calls[1].GetDimensions())
	require.Equal(t, pb.Pooling_POOLING_MEAN, calls[1].GetPooling())
	require.False(t, calls[1].GetNormalize())
	require.Equal(t, strings.Repeat("ab", 32), calls[2].GetExpectModelDigest(), "all vectors are of one model")
	require.Equal(t, "c", calls[2].GetExpectClassId())
}

func TestEmbedWritesAnArray(t *testing.T) {
	var calls []*pb.EmbedRequest
	r := serve(t, &fake{embed: lengths(&calls)})
	r.in = strings.NewReader("a\r\nbcd\n ef \n")
	path := filepath.Join(t.TempDir(), "v.npy")
	require.Equal(t, 0, r.run(t, "embed", "-m", "m", "--batch", "1", "-o", path), r.err.String())
	require.Empty(t, r.out.String())
	require.Contains(t, r.err.String(), "3 vectors of 2")
	m, err := vectorfile.OpenRows(path)
	require.NoError(t, err)
	require.EqualValues(t, 3, m.Rows())
	require.NoError(t, m.Close())
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f, 0, 0, 0x40, 0x40, 0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x40, 0, 0, 0x80, 0x3f}, raw[len(raw)-24:])
}

func TestEmbedTakesTokenIds(t *testing.T) {
	var got [][]uint32
	r := serve(t, &fake{embed: func(_ context.Context, in *pb.EmbedRequest) (*pb.EmbedResponse, error) {
		require.Empty(t, in.GetTexts())
		out := &pb.EmbedResponse{}
		for _, text := range in.GetTokenIds() {
			got = append(got, text.GetIds())
			out.Embeddings = append(out.Embeddings, &pb.Embedding{Values: []float32{1}})
		}
		return out, nil
	}})
	require.Equal(t, 0, r.run(t, "embed", "-m", "m", "--batch", "2", "--token-ids", "5, 6", "7", "8"), r.err.String())
	require.Equal(t, [][]uint32{{5, 6}, {7}, {8}}, got)
}

func TestEmbedLeavesNoPartOfAFile(t *testing.T) {
	r := serve(t, &fake{embed: func(context.Context, *pb.EmbedRequest) (*pb.EmbedResponse, error) {
		return nil, refusal(codes.FailedPrecondition, reason.RerankerOnly, "it is a reranker")
	}})
	dir := t.TempDir()
	require.Equal(t, 5, r.run(t, "embed", "-m", "m", "-o", filepath.Join(dir, "v.npy"), "a"))
	require.Contains(t, r.err.String(), "millrace rerank")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	for says, args := range map[string][]string{
		"ends in .npy":                          {"-o", "v.txt", "a"},
		"text 2 is empty":                       {"a", ""},
		"text 2, with --token-ids: wrong value": {"--token-ids", "1,2", "x"},
		"give at least one token id":            {"--token-ids", "1,2", ""},
		"--batch is 0":                          {"--batch", "0", "a"},
		"text 1 is not UTF-8":                   {"\xff"},
	} {
		r.err = buffer{}
		require.Equal(t, 2, r.run(t, append([]string{"embed", "-m", "m"}, args...)...))
		require.Contains(t, r.err.String(), says)
	}
}

func TestRerankShowsTheBestFirst(t *testing.T) {
	var last *pb.RerankRequest
	r := serve(t, &fake{models: []*pb.ModelInfo{model("m")}, rerank: func(_ context.Context, in *pb.RerankRequest) (*pb.RerankResponse, error) {
		last = in
		return &pb.RerankResponse{Results: []*pb.RerankResult{{Index: 1, Score: 0.75, Tokens: 9}, {Index: 0, Score: 0.25, Tokens: 8, Truncated: true}}}, nil
	}})
	r.in = strings.NewReader(strings.Repeat("x", 80) + "\nb\x1b[31m\n")
	require.Equal(t, 0, r.run(t, "rerank", "--instruction", "i", "--top-n", "2", "q"), r.err.String())
	require.Regexp(t, `^SCORE +INDEX +DOCUMENT\n0.7500 +1 +b[^\x1b]*\n0.2500 +0 +x{59}…\n$`, r.out.String())
	require.Equal(t, "q", last.GetQuery())
	require.Equal(t, "i", last.GetInstruction())
	require.Len(t, last.GetDocuments(), 2)
	r.out = buffer{}
	require.Equal(t, 0, r.run(t, "rerank", "--json", "q", "a", "b"))
	require.Equal(t, "{\"index\":1,\"score\":0.75,\"tokens\":9}\n{\"index\":0,\"score\":0.25,\"tokens\":8,\"truncated\":true}\n", r.out.String())
	require.Equal(t, 2, r.run(t, "rerank"))
}
