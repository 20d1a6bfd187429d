// input_sums: sums of a GEMM's inputs, by which the mins of Q4_K and Q5_K are multiplied. A kernel of its own makes
// them once for all tiles, because otherwise each tile of rows sums the same inputs again; see folded.cuh.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

constexpr int32_t kInputSumBytes = 64;  // of one token and a block of 256 inputs: three bf16 terms of each of eight sums, then zeros

// Returns the workspace bytes for `tokens` tokens of `cols` inputs.
constexpr int64_t input_sum_bytes(int64_t tokens, int64_t cols) { return tokens * ((cols + 255) / 256) * kInputSumBytes; }

struct InputSumsArgs {
  const void* x;     // (tokens, cols) f16, cols a multiple of 256
  int64_t x_stride;  // elements, a multiple of 8
  int32_t tokens, cols;
  void* input_sums;       // (tokens, ceil(cols / 256), kInputSumBytes), 16-byte aligned
};
cudaError_t launch_input_sums(const InputSumsArgs& args, const Stream& on);

}  // namespace mr::cuda
