package philox

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWordsAreThePublishedAnswers(t *testing.T) {
	// The known answers that the authors publish: key and counter all zero, all ones, and digits of
	// pi.
	for _, tc := range []struct {
		key     uint64
		counter [4]uint32
		want    [4]uint32
	}{
		{0, [4]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{^uint64(0), [4]uint32{^uint32(0), ^uint32(0), ^uint32(0), ^uint32(0)}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{
			0x299f31d0a4093822, [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		require.Equal(t, tc.want, Words(tc.key, tc.counter))
		require.Equal(t, uint64(tc.want[0])<<32|uint64(tc.want[1]), Bits(tc.key, tc.counter))
	}
}
