// branch: a block for each row, or for each row and layer.
//
// end_row: both norms of a row sum in the order of norm_row.cuh, so that the second gives the bits of launch_rms_norm. Moves 12 bytes an
// element, 14 with out. The kernel is latency if there are few rows: weights are requested before the wait, and a row is in registers
// between its norms. With many rows it is better to have more blocks on an SM, and rows are read again (4 096 rows of 5 376 dims on an
// H200: 108 to 87 us); so are rows above 8 192 dims, whose threads have fewer registers. Neither changes a bit.
//
// inputs_of_layers: thread t has the elements t, t + threads, ... The number of threads depends on the width alone, and so does the order
// of a sum: a thread's elements, then lanes, then warps.
#include "kernels/branch.h"

#include <algorithm>
#include <cmath>

#include "kernels/act.cuh"
#include "kernels/norm_row.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kMostThreads = 512, kFewRows = 256;
int32_t threads_of(int32_t width) { return std::min((width + 31) / 32 * 32, kMostThreads); }

// Groups of a row that one thread keeps in registers.
template <int32_t kKept>
struct KeptGroups {
  float4 of[kKept == 0 ? 1 : kKept];

  template <bool whole>
  __device__ __forceinline__ void load(const float* row, int32_t dim) {
#pragma unroll
    for (int32_t k = 0; k < kKept; ++k) {
      const int32_t i = threadIdx.x + k * blockDim.x;
      of[k] = i < (dim + 3) / 4 ? load_group<whole>(row, i, dim) : float4{};
    }
  }
};

// The residual stream after a branch. `branch` is its output, and `norm` the weights of its norm, whose factor is `factor`.
__device__ __forceinline__ float ended(const EndBranchArgs& a, float x, float branch, float factor, float norm, float then) {
  if (a.branch != nullptr) x += a.scale * (a.norm == nullptr ? branch : branch * factor * norm);
  return x * then;
}
__device__ __forceinline__ float4 ended(const EndBranchArgs& a, float4 x, float4 branch, float factor, float4 norm, float then) {
  return {ended(a, x.x, branch.x, factor, norm.x, then), ended(a, x.y, branch.y, factor, norm.y, then),
          ended(a, x.z, branch.z, factor, norm.z, then), ended(a, x.w, branch.w, factor, norm.w, then)};
}

// A row that is converted and not normed.
__device__ __forceinline__ float4 bounded(Act act, float4 x, float scale) {
  const auto each = [&](float y) { return act == Act::kF16 ? within_f16(y) : y; };
  return {each(x.x * scale), each(x.y * scale), each(x.z * scale), each(x.w * scale)};
}

template <bool whole, int32_t kKept>
__global__ void __launch_bounds__(kKept == 0 ? 1024 : kMostThreads) end_row(const __grid_constant__ EndBranchArgs a) {
  __shared__ float scratch[32];
  const int32_t groups = (a.dim + 3) / 4, threads = blockDim.x, rest = threadIdx.x + kKept * threads;
  const auto read = [&](const float* row, int32_t i) { return row == nullptr ? float4{} : load_group<whole>(row, i, a.dim); };
  const auto weight = [&](const float* row, int32_t i) {
    return row == nullptr ? float4{1, 1, 1, 1} : load_group<whole>(row, i, a.dim);
  };
  KeptGroups<kKept> x, branch{}, norm{}, out_norm;
  if (a.norm != nullptr) norm.template load<whole>(a.norm, a.dim);
#pragma unroll
  for (int32_t k = 0; k < kKept; ++k) out_norm.of[k] = float4{1, 1, 1, 1};
  if (a.out_norm != nullptr) out_norm.template load<whole>(a.out_norm, a.dim);
  const float then = a.then == nullptr ? 1.0f : *a.then;
  grid_wait();
  grid_trigger();
  float* const row = a.x + blockIdx.x * a.x_stride;
  const float* const branch_row = a.branch == nullptr ? nullptr : a.branch + blockIdx.x * a.branch_stride;
  if (branch_row != nullptr) branch.template load<whole>(branch_row, a.dim);
  x.template load<whole>(row, a.dim);

  float factor = 1;
  if (a.norm != nullptr) {
    float sum = 0;
#pragma unroll
    for (int32_t k = 0; k < kKept; ++k) sum = norm_square(branch.of[k], sum);
    for (int32_t i = rest; i < groups; i += threads) sum = norm_square(read(branch_row, i), sum);
    factor = norm_factor(block_sum(sum, scratch), a.dim, a.eps);
  }
  float sum = 0;
#pragma unroll
  for (int32_t k = 0; k < kKept; ++k) {
    const int32_t i = threadIdx.x + k * threads;
    x.of[k] = ended(a, x.of[k], branch.of[k], factor, norm.of[k], then);
    if (i < groups) store_group<whole>(row, i, a.dim, x.of[k]);
    sum = norm_square(x.of[k], sum);
  }
  for (int32_t i = rest; i < groups; i += threads) {
    const float4 y = ended(a, read(row, i), read(branch_row, i), factor, weight(a.norm, i), then);
    store_group<whole>(row, i, a.dim, y);
    sum = norm_square(y, sum);
  }
  if (a.out == nullptr) return;

  const float out_factor = a.out_norm == nullptr ? 1.0f : norm_factor(block_sum(sum, scratch), a.dim, a.eps) * a.out_scale;
  const auto source = [&](float4 y) { return a.out_norm == nullptr ? bounded(a.act, y, a.out_scale) : y; };
  uint16_t* const out = static_cast<uint16_t*>(a.out) + blockIdx.x * a.out_stride;
#pragma unroll
  for (int32_t k = 0; k < kKept; ++k) {
    const int32_t i = threadIdx.x + k * threads;
    if (i < groups) store_normed<whole>(a.act, out, i, a.dim, source(x.of[k]), out_factor, out_norm.of[k]);
  }
  for (int32_t i = rest; i < groups; i += threads)
    store_normed<whole>(a.act, out, i, a.dim, source(read(row, i)), out_factor, weight(a.out_norm, i));
}

__global__ void __launch_bounds__(kMostThreads) inputs_of_layers(const __grid_constant__ LayerInputsArgs a, float from_hidden,
                                                                 float from_embedding, float both) {
  __shared__ float scratch[kMostThreads / 32];
  grid_wait();
  grid_trigger();
  const int64_t first = static_cast<int64_t>(blockIdx.y) * a.width;
  float* const inputs = a.inputs + blockIdx.x * a.inputs_stride + first;
  const float* const embedding = a.embedding + blockIdx.x * a.embedding_stride + first;
  const int32_t threads = blockDim.x;
  float sum = 0;
  for (int32_t i = threadIdx.x; i < a.width; i += threads) {
    const float product = inputs[i] * from_hidden;
    sum = fmaf(product, product, sum);
  }
  const float factor = 1.0f / sqrtf(block_sum(sum, scratch) / static_cast<float>(a.width) + a.eps);
  for (int32_t i = threadIdx.x; i < a.width; i += threads)
    inputs[i] = (inputs[i] * from_hidden * factor * a.norm[i] + embedding[i] * from_embedding) * both;
}

}  // namespace

cudaError_t launch_end_branch(const EndBranchArgs& args, const Stream& on) {
  if (args.rows < 0 || args.dim < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const int32_t threads = 32 * norm_warps(args.dim);
  const bool whole = (args.dim | args.x_stride | args.branch_stride | args.out_stride) % 4 == 0;
  const auto start = [&](auto kernel) {
    return launch(on, dim3(static_cast<unsigned>(args.rows)), dim3(static_cast<unsigned>(threads)), 0, kernel, args);
  };
  if (threads <= kMostThreads && args.rows <= kFewRows) return start(whole ? end_row<true, kNormKept> : end_row<false, kNormKept>);
  return start(whole ? end_row<true, 0> : end_row<false, 0>);
}

cudaError_t launch_layer_inputs(const LayerInputsArgs& args, const Stream& on) {
  if (args.rows < 0 || args.layers < 1 || args.width < 1 || args.hidden < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.layers));
  return launch(on, grid, dim3(static_cast<unsigned>(threads_of(args.width))), 0, inputs_of_layers, args,
                1 / std::sqrt(static_cast<float>(args.hidden)), std::sqrt(static_cast<float>(args.width)), 1 / std::sqrt(2.0f));
}

}  // namespace mr::cuda
