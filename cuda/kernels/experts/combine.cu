// combine: a block for each row, or for 512 columns of it if the branch has no sum over the row. With such a sum thread t has
// the elements t, t + threads, ... The number of threads depends on the width alone, and so does the order of a sum over a row:
// a thread's elements, then lanes, then warps. With a norm all is read twice, once for the squares. The second time it is in L2.
// Without a sum over the row a thread has four elements one after another.
//
// The kernel is latency if there are few rows. A thread requests its inputs from some experts before it uses one, and the weight
// of the shared expert is computed before the dependency wait.
// Test bound: 2^-18 of the sum of absolute terms.
#include "kernels/experts/combine.h"

#include "kernels/experts/shared_weight.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kMostThreads = kMostWeightThreads, kThreadsOfPart = 128;
constexpr int32_t kCount = 4;  // elements that a thread has at once

// Columns are a thread's next elements of a row: first, first + step, ... if they are apart, otherwise first, first + 1, ... Instead of
// those beyond the row its last is loaded.
template <bool apart>
struct Columns {
  int32_t first, step, dim;

  __device__ __forceinline__ bool has(int32_t k) const { return !apart || first + k * step < dim; }
  __device__ __forceinline__ void load(float (&to)[kCount], const float* row) const {
    if constexpr (apart) {
#pragma unroll
      for (int32_t k = 0; k < kCount; ++k) to[k] = __ldcg(row + min(first + k * step, dim - 1));
    } else {
      const float4 four = __ldcg(reinterpret_cast<const float4*>(row + first));
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
  }
  __device__ __forceinline__ void store(float* row, const float (&from)[kCount]) const {
    if constexpr (apart) {
#pragma unroll
      for (int32_t k = 0; k < kCount; ++k)
        if (has(k)) row[first + k * step] = from[k];
    } else {
      *reinterpret_cast<float4*>(row + first) = float4{from[0], from[1], from[2], from[3]};
    }
  }
};

// Returns the sums of some elements over a row's experts. A bias needs ids.
template <bool apart>
__device__ __forceinline__ void sum_experts(const CombineArgs& a, const Columns<apart>& at, const int32_t* ids, const float* weights,
                                            const float* y, float (&sums)[kCount]) {
  constexpr int32_t kTogether = apart ? 2 : 4;         // experts whose elements are requested before the first is added
  constexpr int32_t kBiases = apart ? 1 : kTogether;  // the same of biases: registers are few
#pragma unroll 1
  for (int32_t first = 0; first < a.used; first += kTogether) {
    float next[kTogether][kCount], weight[kTogether];
#pragma unroll
    for (int32_t e = 0; e < kTogether; ++e) {
      if (first + e >= a.used) continue;
      at.load(next[e], y + (first + e) * a.y_stride);
      weight[e] = a.weights == nullptr ? 1.0f : weights[first + e];
    }
#pragma unroll
    for (int32_t from = 0; from < (ids == nullptr ? 0 : kTogether); from += kBiases) {
      float bias[kBiases][kCount];
#pragma unroll
      for (int32_t e = from; e < from + kBiases; ++e)
        if (first + e < a.used) at.load(bias[e - from], a.bias + static_cast<int64_t>(ids[first + e]) * a.dim);
#pragma unroll
      for (int32_t e = from; e < from + kBiases; ++e)
#pragma unroll
        for (int32_t k = 0; k < kCount; ++k)
          if (first + e < a.used) next[e][k] += bias[e - from][k];
    }
#pragma unroll
    for (int32_t e = 0; e < kTogether; ++e) {
      if (first + e >= a.used) continue;
#pragma unroll
      for (int32_t k = 0; k < kCount; ++k) sums[k] = first + e == 0 ? next[e][k] * weight[e] : sums[k] + next[e][k] * weight[e];
    }
  }
}

template <bool whole_rows>
__global__ void __launch_bounds__(whole_rows ? kMostThreads : kThreadsOfPart, whole_rows ? 2 : 8)
    combine_rows(const __grid_constant__ CombineArgs a) {
  __shared__ float scratch[kMostThreads / 32];
  const int64_t row = blockIdx.x;
  const int32_t* const ids = a.ids + row * a.ids_stride;
  const float* const weights = a.weights + row * a.ids_stride;
  const float* const y = a.y + row * a.used * a.y_stride;
  const float* const shared = a.shared + row * a.shared_stride;
  float* const x = a.x + row * a.x_stride;
  float* const out = a.branch == nullptr ? x : a.branch + row * a.x_stride;
  const bool padding = __ldcg(ids) >= a.experts;
  const int32_t* const bias_ids = a.bias == nullptr || padding ? nullptr : ids;
  const bool of_end = whole_rows && a.end_norm != nullptr, of_shared_end = whole_rows && a.shared_end_norm != nullptr;
  float weight_of_shared = 1, factor = 1, shared_factor = 1;
  if (whole_rows && a.shared_router != nullptr) weight_of_shared = shared_weight(x, a.norm, a.shared_router, a.dim, a.eps, scratch);
  grid_wait();
  grid_trigger();
  const int32_t thread = blockIdx.y * blockDim.x + threadIdx.x, threads = gridDim.y * blockDim.x;
  const Columns<whole_rows> columns{whole_rows ? thread : kCount * thread, threads, a.dim};
  for (bool squares_only = of_end || of_shared_end;; squares_only = false) {
    float squares = 0, shared_squares = 0;
    for (Columns<whole_rows> at = columns; at.first < a.dim; at.first += kCount * threads) {
      float sums[kCount]{}, of_shared[kCount]{}, before[kCount]{}, norm[kCount], shared_norm[kCount];
      if (a.branch == nullptr) at.load(before, x);
      if (a.shared != nullptr) at.load(of_shared, shared);
      sum_experts(a, at, bias_ids, weights, y, sums);
      if (of_end) at.load(norm, a.end_norm);
      if (of_shared_end) at.load(shared_norm, a.shared_end_norm);
#pragma unroll
      for (int32_t k = 0; k < kCount; ++k) {
        of_shared[k] *= weight_of_shared;
        if (at.has(k)) squares = fmaf(sums[k], sums[k], squares);
        if (at.has(k)) shared_squares = fmaf(of_shared[k], of_shared[k], shared_squares);
        if (of_end) sums[k] = sums[k] * factor * norm[k];
        if (of_shared_end) of_shared[k] = of_shared[k] * shared_factor * shared_norm[k];
        if (a.shared != nullptr) sums[k] += of_shared[k];
        if (a.branch == nullptr) sums[k] = before[k] + sums[k];
      }
      if (!squares_only && !padding) at.store(out, sums);
    }
    if (!squares_only) return;
    if (of_end) factor = norm_factor(block_sum(squares, scratch), a.dim, a.eps);
    if (of_shared_end) shared_factor = norm_factor(block_sum(shared_squares, scratch), a.dim, a.eps);
  }
}

}  // namespace

cudaError_t launch_combine(const CombineArgs& args, const Stream& on) {
  if (args.rows < 0 || args.dim < 1 || args.used < 1 || args.ids_stride < args.used) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const auto odd = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 != 0; };
  const bool in_fours = (args.dim | args.y_stride | args.shared_stride | args.x_stride) % kCount == 0 && !odd(args.y) && !odd(args.bias) &&
                        !odd(args.shared) && !odd(args.x) && !odd(args.branch);
  const bool sums = args.end_norm != nullptr || args.shared_router != nullptr || args.shared_end_norm != nullptr;
  const unsigned rows = static_cast<unsigned>(args.rows), threads = static_cast<unsigned>((args.dim + 31) / 32 * 32);
  if (sums || !in_fours) return launch(on, dim3(rows), dim3(static_cast<unsigned>(weight_threads(args.dim))), 0, combine_rows<true>, args);
  const unsigned parts = (threads + kCount * kThreadsOfPart - 1) / (kCount * kThreadsOfPart);
  return launch(on, dim3(rows, parts), dim3(kThreadsOfPart), 0, combine_rows<false>, args);
}

}  // namespace mr::cuda
