// input_sums: the sums of eight blocks of 256 inputs by one warp, for input_sums.cu and for kernels that write the inputs.
#pragma once

#include "kernels/gemm/folded.cuh"

namespace mr::cuda {

// Sums eight blocks on the tensor cores, with the additions of the GEMM kernels. Lane l passes where block l / 4 begins and
// where its kInputSumBytes go, which are written if `writes`. All loads of a lane are in flight at once, so a lane without a
// block passes another's.
__device__ __forceinline__ void sum_blocks(const __half* block, void* to, bool writes, int32_t lane) {
  const uint32_t* const pairs = reinterpret_cast<const uint32_t*>(block) + lane % 4;
  uint32_t x[8][4];
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) {
#pragma unroll
    for (int32_t eight = 0; eight < 4; ++eight) x[i][eight] = pairs[(i * 32 + eight * 8) / 2];
  }
  InputSums sums;
  sums.clear();
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) sums.add(x[i], i, lane);
  uint32_t input_sums[3];
  sums.split(input_sums);
  if (!writes) return;
  uint32_t* const out = static_cast<uint32_t*>(to) + lane % 4;
#pragma unroll
  for (int32_t i = 0; i < 3; ++i) out[i * 4] = input_sums[i];
  out[12] = 0;
}

}  // namespace mr::cuda
