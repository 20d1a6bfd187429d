// combine: a block for each row; thread t has the elements t, t + threads, ... The number of threads depends on the width
// alone, and so does the order of a sum over a row: a thread's elements, then lanes, then warps. With a norm the sum over
// the experts is made twice, once for its squares. The second time its inputs are in L2.
// Test bound: 2^-18 of the sum of absolute terms.
#include "kernels/experts/combine.h"

#include <algorithm>

#include "kernels/act.cuh"
#include "kernels/math.cuh"
#include "kernels/norm_row.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kMostThreads = 512;
constexpr int32_t kTogether = 8;  // experts whose elements are requested before the first is added

// sigmoid(shared_router . norm of x).
__device__ float shared_weight(const CombineArgs& a, const float* x, float* scratch) {
  float dot = 0, squares = 0;
  for (int32_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
    const float v = x[i];
    squares = fmaf(v, v, squares);
    dot = fmaf(a.norm == nullptr ? v : v * a.norm[i], a.shared_router[i], dot);
  }
  const float factor = a.norm == nullptr ? 1.0f : norm_factor(block_sum(squares, scratch), a.dim, a.eps);
  return 1.0f / (1.0f + exp_f32(-(block_sum(dot, scratch) * factor)));
}

// The sum of element i over the row's experts.
__device__ __forceinline__ float sum_of(const CombineArgs& a, const int32_t* ids, const float* weights, const float* y, int32_t i) {
  float sum = 0;
  for (int32_t first = 0; first < a.used; first += kTogether) {
    float next[kTogether];
#pragma unroll
    for (int32_t k = 0; k < kTogether; ++k)
      if (first + k < a.used) next[k] = y[(first + k) * a.y_stride + i];
#pragma unroll
    for (int32_t k = 0; k < kTogether; ++k) {
      const int32_t c = first + k;
      if (c >= a.used) break;
      if (a.bias != nullptr) next[k] += a.bias[static_cast<int64_t>(ids[c]) * a.dim + i];
      if (a.weights != nullptr) next[k] *= weights[c];
      sum = c == 0 ? next[k] : sum + next[k];
    }
  }
  return sum;
}

__global__ void __launch_bounds__(kMostThreads) combine_rows(const __grid_constant__ CombineArgs a) {
  __shared__ float scratch[kMostThreads / 32];
  grid_wait();
  grid_trigger();
  const int64_t row = blockIdx.x;
  const int32_t* const ids = a.ids + row * a.ids_stride;
  if (ids[0] >= a.experts) return;
  const float* const weights = a.weights + row * a.ids_stride;
  const float* const y = a.y + row * a.used * a.y_stride;
  const float* const shared = a.shared + row * a.shared_stride;
  float* const x = a.x + row * a.x_stride;
  float* const out = a.branch == nullptr ? x : a.branch + row * a.x_stride;
  const int32_t begin = threadIdx.x, threads = blockDim.x;
  const float weight_of_shared = a.shared_router == nullptr ? 1.0f : shared_weight(a, x, scratch);
  float factor = 1, shared_factor = 1;
  if (a.end_norm != nullptr) {
    float squares = 0;
    for (int32_t i = begin; i < a.dim; i += threads) {
      const float sum = sum_of(a, ids, weights, y, i);
      squares = fmaf(sum, sum, squares);
    }
    factor = norm_factor(block_sum(squares, scratch), a.dim, a.eps);
  }
  if (a.shared_end_norm != nullptr) {
    float squares = 0;
    for (int32_t i = begin; i < a.dim; i += threads) {
      const float v = shared[i] * weight_of_shared;
      squares = fmaf(v, v, squares);
    }
    shared_factor = norm_factor(block_sum(squares, scratch), a.dim, a.eps);
  }
  for (int32_t i = begin; i < a.dim; i += threads) {
    float sum = sum_of(a, ids, weights, y, i);
    if (a.end_norm != nullptr) sum = sum * factor * a.end_norm[i];
    if (a.shared != nullptr) {
      float of_shared = shared[i] * weight_of_shared;
      if (a.shared_end_norm != nullptr) of_shared = of_shared * shared_factor * a.shared_end_norm[i];
      sum += of_shared;
    }
    out[i] = a.branch == nullptr ? x[i] + sum : sum;
  }
}

}  // namespace

cudaError_t launch_combine(const CombineArgs& args, const Stream& on) {
  if (args.rows < 0 || args.dim < 1 || args.used < 1 || args.ids_stride < args.used) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const int32_t threads = std::min((args.dim + 31) / 32 * 32, kMostThreads);
  return launch(on, dim3(static_cast<unsigned>(args.rows)), dim3(static_cast<unsigned>(threads)), 0, combine_rows, args);
}

}  // namespace mr::cuda
