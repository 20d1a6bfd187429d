// branch: a block for each row, or for each row and layer.
//
// end_row: both norms of a row sum in the order of norm_row.cuh, so that the second gives the bits of launch_rms_norm. Moves 12 bytes an
// element, 14 with out. The kernel is latency if there are few rows: a row is in registers between its norms, and weights are requested
// into L2 before the wait and into registers before the barrier of the sum that they follow. As loads of device memory before the wait
// they would hold up the first use of later loads, and would need more registers. With many rows it is better to have more
// blocks on an SM, and rows are read again (4 096 rows of 5 376 dims on an H200: 108 to 87 us); so are rows above 8 192 dims, whose
// threads have fewer registers. Neither changes a bit.
//
// inputs_of_layers: thread t has the elements t, t + threads, ... The number of threads depends on the width alone, and so does the order
// of a sum: a thread's elements, then lanes, then warps.
#include "kernels/branch.h"

#include <algorithm>
#include <cmath>

#include "kernels/act.cuh"
#include "kernels/instructions.cuh"
#include "kernels/norm_row.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kMostThreads = 512, kFewRows = 256;
int32_t threads_of(int32_t width) { return std::min((width + 31) / 32 * 32, kMostThreads); }

// Runs each(i, k) for every group i of a thread, its k-th. With kKept = 0 a thread keeps no groups in registers, and k is 0.
template <int32_t kKept, class Each>
__device__ __forceinline__ void each_group(int32_t groups, const Each& each) {
  const int32_t threads = blockDim.x;
  if constexpr (kKept == 0) {
    for (int32_t i = threadIdx.x; i < groups; i += threads) each(i, 0);
  } else {
#pragma unroll
    for (int32_t k = 0; k < kKept; ++k)
      if (const int32_t i = threadIdx.x + k * threads; i < groups) each(i, k);
  }
}

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
  constexpr bool keeps = kKept > 0;
  __shared__ float scratch[32];
  const int32_t groups = (a.dim + 3) / 4;
  float4 kept_x[keeps ? kKept : 1], kept_branch[keeps ? kKept : 1]{}, kept_weights[keeps ? kKept : 1];
  const auto read = [&](const float* of, int32_t i) { return load_group<whole>(of, i, a.dim); };
  const auto request = [&](const float* weights) {
    if (keeps && weights != nullptr) each_group<kKept>(groups, [&](int32_t i, int32_t k) { kept_weights[k] = read(weights, i); });
  };
  if constexpr (keeps)
    each_group<kKept>(groups, [&](int32_t i, int32_t) {
      if (a.norm != nullptr) prefetch_l2(a.norm + 4 * i);
      if (a.out_norm != nullptr) prefetch_l2(a.out_norm + 4 * i);
    });
  const float then = a.then == nullptr ? 1.0f : *a.then;
  grid_wait();
  grid_trigger();
  float* const row = a.x + blockIdx.x * a.x_stride;
  const float* const branch = a.branch + blockIdx.x * a.branch_stride;
  const auto branch_of = [&](int32_t i, int32_t k) { return keeps || a.branch == nullptr ? kept_branch[k] : read(branch, i); };
  if (keeps && a.branch != nullptr) each_group<kKept>(groups, [&](int32_t i, int32_t k) { kept_branch[k] = read(branch, i); });
  if (keeps) each_group<kKept>(groups, [&](int32_t i, int32_t k) { kept_x[k] = read(row, i); });

  float factor = 1, sum = 0;
  if (a.norm != nullptr) {
    each_group<kKept>(groups, [&](int32_t i, int32_t k) { sum = norm_square(branch_of(i, k), sum); });
    request(a.norm);
    factor = norm_factor(block_sum(sum, scratch), a.dim, a.eps);
    sum = 0;
  }
  each_group<kKept>(groups, [&](int32_t i, int32_t k) {
    const float4 norm = a.norm == nullptr ? float4{1, 1, 1, 1} : keeps ? kept_weights[k] : read(a.norm, i);
    const float4 y = ended(a, keeps ? kept_x[k] : read(row, i), branch_of(i, k), factor, norm, then);
    store_group<whole>(row, i, a.dim, y);
    if (keeps) kept_x[k] = y;
    sum = norm_square(y, sum);
  });
  if (a.out == nullptr) return;

  request(a.out_norm);
  const float out_factor = a.out_norm == nullptr ? 1.0f : norm_factor(block_sum(sum, scratch), a.dim, a.eps) * a.out_scale;
  uint16_t* const out = static_cast<uint16_t*>(a.out) + blockIdx.x * a.out_stride;
  each_group<kKept>(groups, [&](int32_t i, int32_t k) {
    const float4 norm = a.out_norm == nullptr ? float4{1, 1, 1, 1} : keeps ? kept_weights[k] : read(a.out_norm, i);
    const float4 y = keeps ? kept_x[k] : read(row, i);
    store_normed<whole>(a.act, out, i, a.dim, a.out_norm == nullptr ? bounded(a.act, y, a.out_scale) : y, out_factor, norm);
  });
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
