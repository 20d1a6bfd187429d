package cpu_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"
)

// TestDigestsAreBLAKE3OnEveryPath compares with another implementation around every edge of the hash tree and of the
// pieces that threads take: blocks, chunks, subtrees, windows. The input is that of the official test vectors.
func TestDigestsAreBLAKE3OnEveryPath(t *testing.T) {
	program := buildC(t)
	input := make([]byte, 8<<20)
	for i := range input {
		input[i] = byte(i % 251)
	}
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			lines := bufio.NewScanner(strings.NewReader(run(t, program, path, "hashes")))
			count := 0
			for ; lines.Scan(); count++ {
				var length int
				var got string
				_, err := fmt.Sscan(lines.Text(), &length, &got)
				require.NoError(t, err)
				want := blake3.Sum256(input[:length])
				require.Equal(t, hex.EncodeToString(want[:]), got, "%d bytes", length)
			}
			require.NoError(t, lines.Err())
			require.Greater(t, count, 30)
		})
	}
}
