package codebookfile_test

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/internal/codebookfile"
)

func TestTrainingMetadataRoundTrip(t *testing.T) {
	c, codewords := example(nil)
	want := map[string]string{"rows": "1000", "max_iterations": "25", "": "no name"}
	f, err := parse(written(t, c, codewords, codebookfile.History{Training: want}))
	require.NoError(t, err)
	require.Equal(t, c, f.Codebook)
	require.Equal(t, want, f.Training())

	f, err = parse(written(t, c, codewords, codebookfile.History{}))
	require.NoError(t, err)
	require.Empty(t, f.Training())
}

func TestThePublicDigestCoversShapeAndMetric(t *testing.T) {
	c, _ := example(nil) // PRODUCT, L2, 6 columns, 4 codewords of 2 subspaces, F16
	want := append([]byte("millrace codebook digest v1\x00"),
		1, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0)
	require.Equal(t, blake3.Sum256(append(want, c.Digest[:]...)), c.PublicDigest())

	seen := map[string]bool{}
	for _, change := range []func(*codebookfile.Codebook){
		nil,
		func(c *codebookfile.Codebook) { c.Kind, c.Subspaces = codebookfile.Flat, 1 },
		func(c *codebookfile.Codebook) {
			c.Kind, c.Subspaces, c.Metric = codebookfile.Flat, 1, codebookfile.Cosine
		},
		func(c *codebookfile.Codebook) { c.Subspaces = 3 },
		func(c *codebookfile.Codebook) { c.Dimension, c.Codewords = 4, 6 },
	} {
		other, _ := example(change)
		digest := other.PublicDigest()
		seen[hex.EncodeToString(digest[:])] = true
	}
	require.Len(t, seen, 5)
}
