package vq

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPhiloxIsThatOfItsAuthors(t *testing.T) {
	// Known answers of Philox4x32-10: (counter, key) all zero, all ones, and digits of pi.
	require.Equal(t, uint64(0x6627e8d5e169c58d), draw(0, 0, 0, 0, 0))
	require.Equal(t, uint64(0x408f276d41c83b0e), draw(^uint64(0), ^uint32(0), ^uint32(0), ^purpose(0), 0xffffffff))
	require.Equal(t, uint64(0xd16cfe0994fdcceb), draw(0x299f31d0a4093822, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344))
}

func TestASampleTakesDifferentRowsInOrder(t *testing.T) {
	for _, tc := range []struct{ rows, n uint64 }{{1, 1}, {7, 7}, {3, 10}, {999, 1000}, {5, 1<<32 - 1}} {
		next := uint64(0)
		for i := range tc.rows {
			at := Sample(42, i, tc.rows, tc.n)
			require.GreaterOrEqual(t, at, next)
			require.Less(t, at, tc.n)
			next = at + 1
		}
	}
	require.NotEqual(t, Sample(1, 0, 2, 1<<30), Sample(2, 0, 2, 1<<30))
}

func TestASampleReachesTheEndOfTheLargestData(t *testing.T) {
	const parts, n = 1<<32 - 1, 1 << 40
	last := uint64(0)
	for _, at := range []uint64{0, 1, parts / 2, parts/2 + 1, parts - 2, parts - 1} {
		lo, hi := stratum(at, parts, n)
		require.GreaterOrEqual(t, lo, last)
		require.Contains(t, []uint64{256, 257}, hi-lo)
		row := Sample(42, at, parts, n)
		require.GreaterOrEqual(t, row, lo)
		require.Less(t, row, hi)
		last = hi
	}
	require.Equal(t, uint64(n), last)
}

func TestEveryRowIsEquallyLikelyToBeSampled(t *testing.T) {
	const rows, n, seeds = 3, 10, 30000
	var count [n]int
	for seed := range uint64(seeds) {
		for i := range uint64(rows) {
			count[Sample(seed, i, rows, n)]++
		}
	}
	for row, c := range count {
		part := 0
		for i := range uint64(rows) {
			if lo, hi := stratum(i, rows, n); uint64(row) >= lo && uint64(row) < hi {
				part = int(hi - lo)
			}
		}
		require.InDelta(t, float64(seeds)/float64(part), c, 400, "row %d", row)
	}
}
