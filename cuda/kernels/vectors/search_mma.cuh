// search_mma: multiplies a tile of rows and a tile of codewords on the tensor cores: by wgmma with codewords in a
// shared memory pipeline, or by mma with codewords in global memory. Both leave sums in the same places: the thread of
// lane l in warp w has, as sum 4 i + e, row 16 w + l / 4 + 8 (e / 2) and codeword 8 i + 2 (l % 4) + e % 2.
#pragma once

#include "kernels/vectors/search_instructions.cuh"

namespace mr::cuda {

// Returns the offset of the 16-byte piece h of row r of a block.
__device__ __forceinline__ uint32_t piece_offset(int32_t r, int32_t h) {
  return static_cast<uint32_t>(r * 32 + ((h ^ (r >> 2 & 1)) << 4));
}

// Loads this warp's rows of a block as an A fragment of mma.m16n8k16.
__device__ __forceinline__ void load_rows_fragment(uint32_t (&a)[4], uint32_t block, int32_t row, int32_t lane) {
  load_matrices(a, block + piece_offset(row + lane % 16, lane / 16));
}

// sums += rows * codewords^T of one block each, with codewords in global memory.
template <class E>
__device__ __forceinline__ void multiply_block(float (&sums)[kSearchSums], uint32_t rows, const uint8_t* codewords, int32_t warp,
                                               int32_t lane) {
  uint32_t a[4];
  load_rows_fragment(a, rows, warp * 16, lane);
#pragma unroll
  for (int32_t i = 0; i < kSearchSums / 4; i += 4) {
    uint32_t b[4][2];
#pragma unroll
    for (int32_t k = 0; k < 8; ++k)  // this order needs no more registers than there are
      b[k / 2][k % 2] = load_global4(codewords + piece_offset(8 * (i + k / 2) + lane / 4, k % 2) + lane % 4 * 4);
#pragma unroll
    for (int32_t k = 0; k < 4; ++k) {
      float* const at = sums + 4 * (i + k);
      float c[4] = {at[0], at[1], at[2], at[3]};
      mma16816<E>(c, a, b[k][0], b[k][1]);
#pragma unroll
      for (int32_t e = 0; e < 4; ++e) at[e] = c[e];
    }
  }
}

}  // namespace mr::cuda
