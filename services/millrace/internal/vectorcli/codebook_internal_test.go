package vectorcli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

func TestPutNamesAreShortAndValid(t *testing.T) {
	digest := strings.Repeat("0123456789abcdef", 4)
	for path, want := range map[string]string{
		"/tmp/cb.safetensors":                                "cb-0123456789ab",
		"pq 8x8, v1.2.safetensors":                           "pq-8x8--v1-2-0123456789ab",
		"-é.safetensors":                                     "0123456789ab",
		"nul.safetensors":                                    "nul-0123456789ab",
		"con.v1.safetensors":                                 "con-v1-0123456789ab", // "con.v1" is a device of some systems
		"../_x.safetensors":                                  "_x-0123456789ab",
		strings.Repeat("long", 50) + codebookEnding:          strings.Repeat("long", 10) + "-0123456789ab",
		strings.Repeat("x", longestBase-1) + "-y.safetensor": strings.Repeat("x", longestBase-1) + "-0123456789ab",
	} {
		require.Equal(t, want, putName(path, digest), path)
	}
}

func TestCodebookListKeepsNamesWhole(t *testing.T) {
	digest := strings.Repeat("0123456789abcdef", 4)
	books := []*pb.CodebookInfo{{
		Name: digest, State: pb.CodebookState_CODEBOOK_STATE_ON_DISK, CodebookDigest: digest, WorkerIds: []string{"w1", "w2"}, Problem: "the file ends early",
		Shape: &pb.CodebookShape{Kind: pb.CodebookKind_CODEBOOK_KIND_FLAT, Dimension: 128, Codewords: 4096,
			CodewordType: pb.ElementType_ELEMENT_TYPE_F16, Metric: pb.VectorMetric_VECTOR_METRIC_L2},
	}}
	table := codebookTable(books, 80)
	require.Contains(t, table, "\n"+digest+"  unusable\n")
	require.Contains(t, table, "\n(not shown at this width: digest, verified, device, workers, shape)\n")
	require.Contains(t, codebookTable(books, 0), "flat 4096 x 128 f16, l2")
	require.NotContains(t, codebookTable(books, 0), "not shown")
}
