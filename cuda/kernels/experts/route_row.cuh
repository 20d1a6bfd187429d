// route_row: a block chooses the experts of one row. A thread has the experts threadIdx.x, threadIdx.x + threads, ...; a block has a
// thread for each expert if it can, and so the order of every sum depends on the number of experts alone. An expert is chosen if fewer
// than `used` experts come before it, which each thread counts for its own: the choice is the same whatever comes first.
#pragma once

#include "kernels/act.cuh"
#include "kernels/experts/route.h"
#include "kernels/instructions.cuh"
#include "kernels/math.cuh"

namespace mr::cuda {

constexpr int32_t kMostRouteThreads = 1024;
constexpr float kLeastSum = 1e-20f;

__device__ __forceinline__ float block_max(float x, float* scratch) {
  for (int32_t lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  for (uint32_t w = 0; w < blockDim.x / 32; ++w) x = fmaxf(x, scratch[w]);
  __syncthreads();
  return x;
}

// Returns how many of n scores come before score i: greater ones, and equal ones of lower index. `takes_part` may exclude some.
template <class TakesPart>
__device__ __forceinline__ int32_t place_of(const float* scores, int32_t n, int32_t i, TakesPart takes_part) {
  const float own = scores[i];
  int32_t before = 0;
  for (int32_t j = 0; j < n; ++j) before += takes_part(j) && (scores[j] > own || (scores[j] == own && j < i)) ? 1 : 0;
  return before;
}

__device__ __forceinline__ float group_score(const float* scores, int32_t size, bool best_two) {
  float first = -INFINITY, second = -INFINITY;
  for (int32_t i = 0; i < size; ++i) {
    second = fmaxf(second, fminf(first, scores[i]));
    first = fmaxf(first, scores[i]);
  }
  return best_two && size > 1 ? first + second : first;
}

// Writes the plan of a single row: a tile for each of its pairs.
__device__ __forceinline__ void plan_row(const RouteArgs& a, const int32_t* ids) {
  const bool padding = a.slot[0] < 0;
  for (int32_t i = threadIdx.x; i < a.experts.used && !padding; i += blockDim.x) {
    a.plan.pairs[i] = i;
    a.plan.tiles[i] = {ids[i], i, 1};
  }
  if (threadIdx.x != 0) return;
  *a.plan.tile_count = padding ? 0 : a.experts.used;
  if (a.bytes != nullptr && !padding) *a.bytes += static_cast<uint64_t>(a.experts.used) * a.bytes_each;
}

// The block chooses the experts of a row. Every thread returns, so that the block may go on.
__device__ __forceinline__ void route_row(const RouteArgs& a, int64_t row) {
  __shared__ float scratch[kMostRouteThreads / 32], divisor;
  const mr_experts_desc& e = a.experts;
  const int32_t count = e.count, threads = blockDim.x, thread = threadIdx.x, used = e.used;
  float* const weights = reinterpret_cast<float*>(dynamic_memory());  // (count)
  float* const scores = weights + count;          // (count), then the weights of the chosen
  float* const groups = scores + count;           // (groups)
  auto* const chosen = reinterpret_cast<uint8_t*>(groups + e.groups);  // (count)
  int32_t* const ids = a.ids + row * used;
  float* const out = a.weights + row * used;
  if (a.slot[row] < 0) {
    for (int32_t i = thread; i < used; i += threads) ids[i] = count;
    if (a.rows == 1) plan_row(a, ids);
    return;
  }

  const float* const logits = a.logits + row * count;
  if (e.gating == MR_GATE_SOFTMAX) {
    float top = -INFINITY, sum = 0;
    for (int32_t i = thread; i < count; i += threads) top = fmaxf(top, __ldcg(logits + i));
    top = block_max(top, scratch);
    for (int32_t i = thread; i < count; i += threads) sum += weights[i] = exp_f32(__ldcg(logits + i) - top);
    sum = block_sum(sum, scratch);
    for (int32_t i = thread; i < count; i += threads) weights[i] /= sum;
  } else {
    for (int32_t i = thread; i < count; i += threads) weights[i] = 1.0f / (1.0f + exp_f32(-__ldcg(logits + i)));
  }
  int32_t bad = 0;  // a score is not a number
  for (int32_t i = thread; i < count; i += threads) {
    scores[i] = a.choice_bias == nullptr ? weights[i] : weights[i] + a.choice_bias[i];
    bad |= isnan(scores[i]) ? 1 : 0;
  }
  bad = __syncthreads_or(bad);
  const int32_t size = e.groups == 0 ? count : count / e.groups;
  for (int32_t g = thread; g < e.groups; g += threads) {
    groups[g] = group_score(scores + g * size, size, (e.flags & MR_EXPERTS_GROUP_BEST_TWO) != 0);
    bad |= isnan(groups[g]) ? 1 : 0;
  }
  bad = __syncthreads_or(bad);
  if (bad != 0) {
    for (int32_t i = thread; i < used; i += threads) {
      ids[i] = i;
      out[i] = NAN;
    }
    __syncthreads();
    if (a.rows == 1) plan_row(a, ids);
    return;
  }

  const auto any = [](int32_t) { return true; };
  for (int32_t i = thread; i < count; i += threads)
    chosen[i] = e.groups == 0 || place_of(groups, e.groups, i / size, any) < e.groups_used ? 1 : 0;
  __syncthreads();
  // Counts first, marks after: the experts that take part are read until all have counted.
  constexpr int32_t kMost = 4;  // experts of a thread
  bool keep[kMost];
#pragma unroll
  for (int32_t k = 0; k < kMost; ++k) {
    const int32_t i = thread + k * threads;
    keep[k] = i < count && chosen[i] != 0 && place_of(scores, count, i, [&](int32_t j) { return chosen[j] != 0; }) < used;
  }
  __syncthreads();
#pragma unroll
  for (int32_t k = 0; k < kMost; ++k)
    if (thread + k * threads < count) chosen[thread + k * threads] = keep[k] ? 1 : 0;
  __syncthreads();
#pragma unroll
  for (int32_t k = 0; k < kMost; ++k) {
    if (!keep[k]) continue;
    const int32_t i = thread + k * threads;
    int32_t at = 0;
    for (int32_t j = 0; j < i; ++j) at += chosen[j];
    ids[at] = i;
    scores[at] = weights[i];
  }
  __syncthreads();
  if (thread == 0) {
    float sum = 0;
    for (int32_t i = 0; i < used; ++i) sum += scores[i];
    divisor = fmaxf(sum, kLeastSum);
  }
  __syncthreads();
  for (int32_t i = thread; i < used; i += threads) {
    float weight = scores[i];
    if ((e.flags & MR_EXPERTS_RENORM) != 0) weight /= divisor;
    if (e.weight_scale != 0) weight *= e.weight_scale;
    out[i] = a.scales == nullptr ? weight : weight * a.scales[ids[i]];
  }
  if (a.rows == 1) plan_row(a, ids);
}

}  // namespace mr::cuda
