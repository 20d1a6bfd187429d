package vectors_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/vectors"
)

func TestPutRefusesBeyondItsHostSpace(t *testing.T) {
	// The bytes of a codebook are counted when Put is called, before any of them arrives, and given
	// back by Close.
	desc := engine.CodebookDesc{Dimension: 8, Codewords: 16, Subspaces: 1, Type: engine.VectorF32}
	r := newRig(t, func(c *vectors.Config) { c.PutSpace = 2*desc.Bytes() + 1 })
	first, err := r.Put("first", desc, nil, false)
	require.NoError(t, err)
	second, err := r.Put("second", desc, nil, false)
	require.NoError(t, err)
	require.Equal(t, [2]uint64{2 * desc.Bytes(), 1}, [2]uint64{r.Stats().PutBytes, r.Stats().FreePut})
	_, err = r.Put("third", desc, nil, false)
	var short *vectors.FitError
	require.ErrorAs(t, err, &short)
	require.Equal(t, [2]uint64{desc.Bytes(), 1}, [2]uint64{short.Host, short.FreeHost})
	require.ErrorContains(t, err, "512 bytes of host memory, and 1 are free for that")
	require.NoError(t, first.Write(make([]byte, 100)))
	first.Close()
	third, err := r.Put("third", desc, nil, false)
	require.NoError(t, err)
	second.Close()
	third.Close()
	require.Zero(t, r.Stats().PutBytes)
}
