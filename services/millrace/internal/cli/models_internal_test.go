package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestModelsShowHowFilesRecommendToSample(t *testing.T) {
	temperature, k, p := float32(0.6), int32(20), float32(0.95)
	advised := &pb.ModelCapabilities{Sampling: &pb.Sampling{Temperature: &temperature, TopK: &k, TopP: &p}}
	table := modelTable([]*pb.ModelInfo{
		{Name: "plain", Capabilities: &pb.ModelCapabilities{}},
		{Name: "advised", Capabilities: advised},
		{Name: "followed", Capabilities: advised, Loaded: &pb.LoadResult{SamplingDefaults: true}},
	})
	require.Contains(t, table, "\nadvised: its file recommends --temperature 0.6 --top-k 20 --top-p 0.95\n")
	require.Contains(t, table, "\nfollowed: unset knobs have --temperature 0.6 --top-k 20 --top-p 0.95, as its file recommends\n")
	require.Equal(t, 1, strings.Count(table, "plain"))
}

func TestModelsShowWhatTheyAreMadeFor(t *testing.T) {
	table := modelTable([]*pb.ModelInfo{
		{Name: "plain", Capabilities: &pb.ModelCapabilities{EmbeddingWidth: 64, Rerank: true}},
		{Name: "vectors", Capabilities: &pb.ModelCapabilities{EmbeddingWidth: 64, Pooling: pb.Pooling_POOLING_LAST.Enum()}},
		{Name: "scores", Capabilities: &pb.ModelCapabilities{Rerank: true, RerankOnly: true}},
	})
	require.Contains(t, table, "\nvectors: makes vectors of 64, pooling last; millrace embed uses it\n")
	require.Contains(t, table, "\nscores: a reranker; millrace rerank uses it\n")
	require.Equal(t, 1, strings.Count(table, "plain"))
}
