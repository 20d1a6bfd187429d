package gguf_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

func TestEveryTypeHasTheSizeOfItsBlockFields(t *testing.T) {
	const scale = 2 // bytes of a half
	for typ, want := range map[gguf.Type]struct {
		id           uint32
		name         string
		block, bytes uint64
	}{
		gguf.F32: {0, "F32", 1, 4}, gguf.F16: {1, "F16", 1, 2}, gguf.BF16: {30, "BF16", 1, 2}, gguf.F64: {28, "F64", 1, 8},
		gguf.I8: {24, "I8", 1, 1}, gguf.I16: {25, "I16", 1, 2}, gguf.I32: {26, "I32", 1, 4}, gguf.I64: {27, "I64", 1, 8},
		gguf.Q4_0:   {2, "Q4_0", 32, scale + 16},
		gguf.Q4_1:   {3, "Q4_1", 32, 2*scale + 16},
		gguf.Q5_0:   {6, "Q5_0", 32, scale + 4 + 16},
		gguf.Q5_1:   {7, "Q5_1", 32, 2*scale + 4 + 16},
		gguf.Q8_0:   {8, "Q8_0", 32, scale + 32},
		gguf.Q8_1:   {9, "Q8_1", 32, 2*scale + 32},
		gguf.Q2K:    {10, "Q2_K", 256, 2*scale + 16 + 64},
		gguf.Q3K:    {11, "Q3_K", 256, scale + 32 + 64 + 12},
		gguf.Q4K:    {12, "Q4_K", 256, 2*scale + 12 + 128},
		gguf.Q5K:    {13, "Q5_K", 256, 2*scale + 12 + 32 + 128},
		gguf.Q6K:    {14, "Q6_K", 256, scale + 128 + 64 + 16},
		gguf.Q8K:    {15, "Q8_K", 256, 4 + 256 + 2*16},
		gguf.IQ2XXS: {16, "IQ2_XXS", 256, scale + 64},
		gguf.IQ2XS:  {17, "IQ2_XS", 256, scale + 64 + 8},
		gguf.IQ3XXS: {18, "IQ3_XXS", 256, scale + 64 + 32},
		gguf.IQ1S:   {19, "IQ1_S", 256, scale + 32 + 16},
		gguf.IQ4NL:  {20, "IQ4_NL", 32, scale + 16},
		gguf.IQ3S:   {21, "IQ3_S", 256, scale + 64 + 8 + 32 + 4},
		gguf.IQ2S:   {22, "IQ2_S", 256, scale + 64 + 16},
		gguf.IQ4XS:  {23, "IQ4_XS", 256, scale + 2 + 4 + 128},
		gguf.IQ1M:   {29, "IQ1_M", 256, 32 + 16 + 8},
		gguf.TQ1_0:  {34, "TQ1_0", 256, scale + 4 + 48},
		gguf.TQ2_0:  {35, "TQ2_0", 256, scale + 64},
		gguf.MXFP4:  {39, "MXFP4", 32, 1 + 16},
		gguf.NVFP4:  {40, "NVFP4", 64, 4 + 32},
		gguf.Q1_0:   {41, "Q1_0", 128, scale + 16},
		gguf.Q2_0:   {42, "Q2_0", 64, scale + 16},
	} {
		require.EqualValues(t, want.id, typ, want.name)
		require.Equal(t, want.name, typ.String())
		require.Equal(t, want.block, typ.BlockSize(), want.name)
		require.Equal(t, want.bytes, typ.BlockBytes(), want.name)
		require.Equal(t, 3*want.bytes, typ.RowBytes(3*want.block), want.name)
		back, ok := gguf.ParseType(want.name)
		require.True(t, ok)
		require.Equal(t, typ, back)
	}
	for _, gone := range []gguf.Type{4, 5, 31, 32, 33, 36, 37, 38, 43, 1 << 31} {
		require.False(t, gone.Known(), "%v", gone)
		require.Zero(t, gone.RowBytes(32))
	}
	_, ok := gguf.ParseType("Q9_9")
	require.False(t, ok)
}
