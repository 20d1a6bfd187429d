// terms: sums of a product's inputs that weights with mins are multiplied with, made once for all tiles of rows; see folded.cuh.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

constexpr int32_t kTermBytes = 64;  // of one token and one block of 256 inputs: three terms of eight slots in bf16, then zeros

// Bytes of the terms of `tokens` tokens of `cols` inputs.
constexpr int64_t term_bytes(int64_t tokens, int64_t cols) { return tokens * ((cols + 255) / 256) * kTermBytes; }

struct TermsArgs {
  const void* x;     // (tokens, cols) f16, cols a multiple of 256
  int64_t x_stride;  // elements, a multiple of 8
  int32_t tokens, cols;
  void* terms;       // (tokens, ceil(cols / 256), kTermBytes), 16-byte aligned
};
cudaError_t launch_terms(const TermsArgs& args, const Stream& on);

}  // namespace mr::cuda
