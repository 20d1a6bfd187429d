package enginebench

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnswersTellWhichSequencesDifferAndFromWhere(t *testing.T) {
	known := answers{0: {1, 2, 3}}
	require.NoError(t, known.compare([][]int32{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}))
	require.NoError(t, known.compare([][]int32{{1, 2, 3}, {4, 5, 6}}))
	err := known.compare([][]int32{{1, 2, 3}, {4, 5, 7}, {0, 8, 9}})
	require.ErrorIs(t, err, ErrTokens)
	require.ErrorContains(t, err, "in a batch of 3, 2 sequences")
	require.ErrorContains(t, err, "sequence 1 from token 2 on")
	require.ErrorContains(t, err, "all of them: [1 2]")
	require.ErrorIs(t, known.compare([][]int32{{1, 2}}), ErrTokens, "an answer that ends early is another")
}
