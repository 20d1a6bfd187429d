// qk_rows: block (row, 0) has Q, block (row, 1) K. Thread t has the elements t, t + kThreads, ... of all heads, whichever part they are
// in, so that the order of the sum of squares does not depend on the number of parts.
#include "kernels/qk_rows.h"

#include "kernels/act.cuh"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) rows_per_block(const __grid_constant__ NormQkRowsArgs a) {
  __shared__ float scratch[kThreads / 32];
  grid_wait();
  grid_trigger();
  const bool keys = blockIdx.y == 1;
  float* const x = a.qkv + blockIdx.x * a.stride + (keys ? a.q_width : 0);
  const float* const parts = a.parts + blockIdx.x * a.parts_stride + (keys ? a.q_width : 0);
  const int32_t width = keys ? a.k_width : a.q_width, each = a.q_width + a.k_width, all = width * a.part_count;
  const float* const bias = keys ? a.k_bias : a.q_bias;
  const float* const norm = (keys ? a.k_norm : a.q_norm) + a.part * width;
  float sum = 0;
  for (int32_t i = threadIdx.x; i < all; i += kThreads) {
    float y = a.parts == nullptr ? x[i] : parts[i / width * each + i % width];
    if (bias != nullptr) x[i] = y += bias[i];
    sum = fmaf(y, y, sum);
  }
  const float factor = 1.0f / sqrtf(block_sum(sum, scratch) / static_cast<float>(all) + a.eps);
  for (int32_t i = threadIdx.x; i < width; i += kThreads) {
    const float y = a.parts == nullptr ? x[i] : parts[a.part * each + i];
    if (keys && a.copies_keys) x[width + i] = y;
    x[i] = y * factor * norm[i];
  }
}

}  // namespace

cudaError_t launch_norm_qk_rows(const NormQkRowsArgs& args, const Stream& on) {
  if (args.rows < 0 || args.q_width < 1 || args.k_width < 0 || args.part < 0 || args.part >= args.part_count) return cudaErrorInvalidValue;
  if (args.parts == nullptr ? args.part_count != 1 : args.q_bias != nullptr || args.k_bias != nullptr) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.rows), args.k_width > 0 ? 2 : 1);
  return launch(on, grid, dim3(kThreads), 0, rows_per_block, args);
}

}  // namespace mr::cuda
