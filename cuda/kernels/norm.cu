// rms_norm: out[r, d] = x[s, d] / sqrt(mean_d x[s, d]^2 + eps) * scale * weight[d], x f32, out f16 or bf16 (s: see norm.h).
//
// One block for a row; norm_row.cuh has the order of the sum. Moves 6 bytes an element, and the weights once a row from
// L2.
// Test bound: half a step of the output type plus 2^-20 of the double reference.
//
// hidden_rows: out[r, d] = x[s, d] / sqrt(mean_d x[s, d]^2 + eps) * weight[d] in f32, s = gather[r]. The same blocks and the
// same sum. Moves 12 bytes an element: the sum and the product each read the row.
// Test bound: 2^-20 of the double reference.
#include "kernels/gemm/input_sums.cuh"
#include "kernels/gemm/input_sums.h"
#include "kernels/norm.h"
#include "kernels/norm_row.cuh"
#include "millrace/engine.h"

namespace mr::cuda {
namespace {

constexpr int kKept = kNormKept;

// Sums a row that the block has written. A warp has eight blocks of 256 of it.
__device__ __forceinline__ void sum_row(const __half* row, uint8_t* to, int32_t dim) {
  const int32_t blocks = dim / 256, lane = static_cast<int32_t>(threadIdx.x) % 32;
  for (int32_t first = static_cast<int32_t>(threadIdx.x) / 32 * 8; first < blocks; first += static_cast<int32_t>(blockDim.x) / 32 * 8) {
    const int32_t block = first + lane / 4;
    sum_blocks(row + min(block, blocks - 1) * 256, to + block * kInputSumBytes, block < blocks, lane);
  }
}

template <bool whole, bool sums = false>
__global__ void __launch_bounds__(1024) row_per_block(RmsNormArgs a) {
  __shared__ float scratch[32];
  const int32_t groups = (a.dim + 3) / 4, threads = blockDim.x;
  float4 weight[kKept], kept[kKept];
  grid_trigger();  // this kernel is short (launch.h)
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int32_t i = threadIdx.x + k * threads;
    if (i < groups) weight[k] = load_group<whole>(a.weight, i, a.dim);
  }
  grid_wait();
  const int64_t r = blockIdx.x;
  const int32_t source = a.gather == nullptr ? static_cast<int32_t>(r) : a.gather[r];
  uint16_t* const out = static_cast<uint16_t*>(a.out) + r * a.out_stride;
  if (source < 0) {
    for (int32_t d = threadIdx.x; d < a.dim; d += threads) out[d] = 0;
    return;
  }
  const float* const x = a.x + source * a.x_stride;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int32_t i = threadIdx.x + k * threads;
    if (i >= groups) continue;
    kept[k] = load_group<whole>(x, i, a.dim);
    sum = norm_square(kept[k], sum);
  }
  for (int32_t i = threadIdx.x + kKept * threads; i < groups; i += threads)
    sum = norm_square(load_group<whole>(x, i, a.dim), sum);
  const float factor = norm_factor(block_sum(sum, scratch), a.dim, a.eps) * a.scale;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int32_t i = threadIdx.x + k * threads;
    if (i < groups) store_normed<whole>(a.act, out, i, a.dim, kept[k], factor, weight[k]);
  }
  for (int32_t i = threadIdx.x + kKept * threads; i < groups; i += threads)
    store_normed<whole>(a.act, out, i, a.dim, load_group<whole>(x, i, a.dim), factor, load_group<whole>(a.weight, i, a.dim));
  if constexpr (sums) {
    __syncthreads();
    sum_row(reinterpret_cast<const __half*>(out), static_cast<uint8_t*>(a.input_sums) + r * (a.dim / 256) * kInputSumBytes, a.dim);
  }
}

template <bool whole>
__global__ void __launch_bounds__(1024) hidden_row_per_block(HiddenRowsArgs a) {
  __shared__ float scratch[32];
  grid_wait();
  grid_trigger();
  const int32_t groups = (a.dim + 3) / 4, threads = blockDim.x;
  const int64_t r = blockIdx.x, source = a.gather[r];
  const float* const x = a.x + source * a.x_stride;
  float* const out = a.out + r * a.dim;
  float sum = 0;
  for (int32_t i = threadIdx.x; i < groups; i += threads) sum = norm_square(load_group<whole>(x, i, a.dim), sum);
  const float norm = norm_factor(block_sum(sum, scratch), a.dim, a.eps);
  const float factor = a.nan_flags[source] == MR_ROW_OK ? norm : NAN;
  for (int32_t i = threadIdx.x; i < groups; i += threads) {
    const float4 v = load_group<whole>(x, i, a.dim), w = load_group<whole>(a.weight, i, a.dim);
    const float4 y = make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w);
    store_group<whole>(out, i, a.dim, y);
  }
}

}  // namespace

cudaError_t launch_rms_norm(const RmsNormArgs& args, const Stream& on) {
  if (args.rows < 0 || args.dim < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.rows)), block(static_cast<unsigned>(32 * norm_warps(args.dim)));
  const bool whole = args.dim % 4 == 0 && args.x_stride % 4 == 0 && args.out_stride % 4 == 0;
  if (args.input_sums != nullptr) {
    const bool summed = whole && args.act == Act::kF16 && args.gather == nullptr && args.dim % 256 == 0 && args.out_stride % 8 == 0;
    return summed ? launch(on, grid, block, 0, row_per_block<true, true>, args) : cudaErrorInvalidValue;
  }
  return launch(on, grid, block, 0, whole ? row_per_block<true> : row_per_block<false>, args);
}

cudaError_t launch_hidden_rows(const HiddenRowsArgs& args, const Stream& on) {
  if (args.rows < 0 || args.dim < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.rows)), block(static_cast<unsigned>(32 * norm_warps(args.dim)));
  const bool whole = args.dim % 4 == 0 && args.x_stride % 4 == 0;
  return launch(on, grid, block, 0, whole ? hidden_row_per_block<true> : hidden_row_per_block<false>, args);
}

}  // namespace mr::cuda
