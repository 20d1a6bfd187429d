package vectorfile_test

import (
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/vectorfile"
)

func TestPackingStoresTheLowestCodeFirst(t *testing.T) {
	// Packed codes are one long number with the lowest code first.
	random := rand.New(rand.NewPCG(1, 2))
	for _, subspaces := range []int{1, 2, 3, 7, 16, 64, 500} {
		for bitsOf := 1; bitsOf <= 16; bitsOf++ {
			p := vectorfile.Packing{Subspaces: subspaces, Bits: bitsOf}
			codes := make([]uint16, 3*subspaces)
			for i := range codes {
				codes[i] = uint16(random.Uint32()) >> (16 - bitsOf)
			}
			codes[0], codes[len(codes)-1] = 1<<bitsOf-1, 1<<bitsOf-1
			loose := codeBytes(codes, bitsOf)
			packed := make([]byte, 3*p.RowBytes())
			require.NoError(t, p.Pack(packed, loose))
			for row := range 3 {
				whole := new(big.Int)
				for i := subspaces - 1; i >= 0; i-- {
					whole.Lsh(whole, uint(bitsOf)).Or(whole, big.NewInt(int64(codes[row*subspaces+i])))
				}
				want := whole.FillBytes(make([]byte, (subspaces*bitsOf+7)/8))
				slices.Reverse(want)
				require.Equal(t, want, packed[row*p.RowBytes():][:p.RowBytes()])
			}
			got := make([]byte, len(loose))
			require.NoError(t, p.Unpack(got, packed))
			require.Equal(t, loose, got)
		}
	}
}

// codeBytes returns the codes as in messages: a byte each up to 8 bits, else two.
func codeBytes(codes []uint16, bitsOf int) []byte {
	var b []byte
	for _, code := range codes {
		if bitsOf <= 8 {
			b = append(b, byte(code))
		} else {
			b = binary.LittleEndian.AppendUint16(b, code)
		}
	}
	return b
}

func TestPackingTakesAsFewBitsAsTheCodesNeed(t *testing.T) {
	for codewords, want := range map[int]struct {
		bits int
		e    vectorfile.ElementType
	}{
		1: {1, vectorfile.U8}, 2: {1, vectorfile.U8}, 3: {2, vectorfile.U8}, 4: {2, vectorfile.U8}, 5: {3, vectorfile.U8},
		256: {8, vectorfile.U8}, 257: {9, vectorfile.U16}, 4096: {12, vectorfile.U16}, 65_536: {16, vectorfile.U16},
	} {
		require.Equal(t, vectorfile.Packing{Subspaces: 3, Bits: want.bits}, vectorfile.PackingOf(3, codewords), "%d codewords", codewords)
		require.Equal(t, want.e, vectorfile.CodeType(codewords), "%d codewords", codewords)
	}
}

func TestCodesOfWholeBytesArePackedAsTheyAre(t *testing.T) {
	for _, bitsOf := range []int{8, 16} {
		p := vectorfile.Packing{Subspaces: 5, Bits: bitsOf}
		codes := noise(1, 7*p.CodeBytes())
		packed := make([]byte, len(codes))
		require.NoError(t, p.Pack(packed, codes))
		require.Equal(t, codes, packed)
	}
}

func TestPackingRefusesWhatWouldNotComeBack(t *testing.T) {
	p := vectorfile.Packing{Subspaces: 3, Bits: 5}
	require.Equal(t, 2, p.RowBytes())
	for name, err := range map[string]error{
		"a code beyond its bits":    p.Pack(make([]byte, 4), []byte{1, 2, 3, 4, 32, 6}),
		"half a row":                p.Pack(make([]byte, 2), []byte{1, 2}),
		"too little room":           p.Pack(make([]byte, 1), []byte{1, 2, 3}),
		"too much room":             p.Pack(make([]byte, 3), []byte{1, 2, 3}),
		"bits behind the last code": p.Unpack(make([]byte, 3), []byte{255, 128}),
		"a byte too few":            p.Unpack(make([]byte, 3), []byte{255}),
		"no subspaces":              vectorfile.Packing{Bits: 8}.Pack(nil, nil),
		"too many subspaces":        vectorfile.Packing{Subspaces: 65_537, Bits: 8}.Pack(nil, nil),
		"no bits":                   vectorfile.Packing{Subspaces: 1}.Unpack(nil, nil),
		"too many bits":             vectorfile.Packing{Subspaces: 1, Bits: 17}.Unpack(nil, nil),
		"a wide code beyond them":   vectorfile.Packing{Subspaces: 1, Bits: 12}.Pack(make([]byte, 2), []byte{0, 16}),
	} {
		require.ErrorIs(t, err, vectorfile.ErrCode, name)
	}
	require.ErrorContains(t, p.Pack(make([]byte, 4), []byte{1, 2, 3, 4, 32, 6}), "row 1, subspace 1: code 32")
	require.ErrorContains(t, p.Unpack(make([]byte, 6), []byte{255, 127, 0, 128}), "row 1: its last 1 bits")
	require.NoError(t, p.Pack(nil, nil), "no rows")
}
