// input_sums: the sums of eight blocks of 256 inputs by one warp, for input_sums.cu and for kernels that write the inputs.
#pragma once

#include "kernels/gemm/folded.cuh"

namespace mr::cuda {

// Four lanes of a warp, a multiple of four first, exchange four words each: word e of lane t becomes word t of lane e.
__device__ __forceinline__ void transpose_words(uint32_t (&words)[4], int32_t lane) {
#pragma unroll
  for (int32_t step = 1; step < 4; step *= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const uint32_t word = __shfl_xor_sync(0xffffffffu, upper ? words[i] : words[i + step], step);
      if (upper) words[i] = word;
      else words[i + step] = word;
    }
  }
}

// Sums eight blocks on the tensor cores, with the additions of the GEMM kernels. Lane l passes where block l / 4 begins, at a
// multiple of 16 bytes, and where its kInputSumBytes go, which are written if `writes`. All loads of a lane are in flight at
// once, so a lane without a block passes another's. Four lanes load 64 bytes at once and exchange them: loads of the words that
// a lane needs would be four times as many, and each would touch eight cache lines too.
__device__ __forceinline__ void sum_blocks(const __half* block, void* to, bool writes, int32_t lane) {
  const uint4* const eights = reinterpret_cast<const uint4*>(block) + lane % 4;
  uint4 loaded[8];
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) loaded[i] = eights[i * 4];
  InputSums sums;
  sums.clear();
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) {
    uint32_t x[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
    transpose_words(x, lane);
    sums.add(x, i, lane);
  }
  uint32_t input_sums[3];
  sums.split(input_sums);
  if (!writes) return;
  uint32_t* const out = static_cast<uint32_t*>(to) + lane % 4;
#pragma unroll
  for (int32_t i = 0; i < 3; ++i) out[i * 4] = input_sums[i];
  out[12] = 0;
}

}  // namespace mr::cuda
