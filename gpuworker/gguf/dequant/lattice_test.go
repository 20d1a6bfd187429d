package dequant

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLatticesAreThoseOfTheFormat(t *testing.T) {
	// The sums are of the tables of ggml-common.h as little-endian bytes, the magnitude of the first
	// weight first.
	for name, tc := range map[string]struct {
		lattice     []uint16
		bits, size  int
		values      []int
		first, last string
		sum         string
	}{
		"iq2xxs_grid": {lattice2XXS[:], 2, 256, values2[:3], "0808080808080808", "08190808192b2b2b",
			"05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54"},
		"iq2xs_grid": {lattice2XS[:], 2, 512, values2[:3], "0808080808080808", "2b2b2b2b2b2b2b2b",
			"06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de"},
		"iq2s_grid": {lattice2S[:], 2, 1024, values2[:3], "0808080808080808", "2b2b2b2b2b2b2b2b",
			"e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88"},
		"iq3xxs_grid": {lattice3XXS[:], 3, 256, values3XXS[:], "04040404", "041c343e",
			"46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d"},
		"iq3s_grid": {lattice3S[:], 3, 512, values3S[:], "01010101", "01010f0f",
			"bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Len(t, tc.lattice, tc.size)
			weights := map[int]int{2: 8, 3: 4}[tc.bits]
			var all []byte
			for i, entry := range tc.lattice {
				require.True(t, i == 0 || entry > tc.lattice[i-1], "entry %d: entries ascend, so each occurs once", i)
				require.Zero(t, int(entry)>>(tc.bits*weights), "entry %d has digits of %d weights", i, weights)
				for j := range weights {
					digit := int(entry) >> (tc.bits * j) & (1<<tc.bits - 1)
					require.Less(t, digit, len(tc.values), "entry %d, digit %d", i, j)
					all = append(all, byte(tc.values[digit]))
				}
			}
			require.Equal(t, tc.first, hex.EncodeToString(all[:weights]))
			require.Equal(t, tc.last, hex.EncodeToString(all[len(all)-weights:]))
			sum := sha256.Sum256(all)
			require.Equal(t, tc.sum, hex.EncodeToString(sum[:]))
		})
	}
}

func TestSevenBitsStandForEightSigns(t *testing.T) {
	// The sum is of ksigns_iq2xs of ggml-common.h.
	signs := make([]byte, 128)
	for i := range signs {
		signs[i] = evenSigns(uint32(i))
	}
	require.Equal(t, []byte{0, 129, 130, 3, 132, 5, 6, 135}, signs[:8])
	sum := sha256.Sum256(signs)
	require.Equal(t, "a76742a603f8beca5212ecce0f1f02f11a4887fd2f7c8b15aca0ea3eb3380c31", hex.EncodeToString(sum[:]))
}
