// route_row: a block chooses the experts of one row. A thread has the experts threadIdx.x, threadIdx.x + threads, ...; a block has 1024
// threads or at least one for each expert. Threads without an expert add zeros, so the order of every sum depends on the number of experts
// alone.
// An expert is chosen if fewer than `used` experts come before it, which threads count: the choice is the same whatever comes first.
#pragma once

#include "kernels/act.cuh"
#include "kernels/experts/read_once.cuh"
#include "kernels/experts/route.h"
#include "kernels/instructions.cuh"
#include "kernels/math.cuh"

namespace mr::cuda {

constexpr int32_t kMostRouteThreads = 1024;
constexpr float kLeastSum = 1e-20f;

// Bytes of dynamic shared memory of a block that routes.
inline size_t route_shared_bytes(const mr_experts_desc& e) {
  return static_cast<size_t>(e.count) * (2 * sizeof(float) + sizeof(int32_t) + 1) + static_cast<size_t>(e.groups) * sizeof(float);
}

__device__ __forceinline__ float block_max(float x, float* scratch) {
  for (int32_t lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  for (uint32_t w = 0; w < blockDim.x / 32; ++w) x = fmaxf(x, scratch[w]);
  __syncthreads();
  return x;
}

// Returns how many of scores [begin, end) come before score i: greater ones, and equal ones of lower index. `takes_part` may exclude some.
template <class TakesPart>
__device__ __forceinline__ int32_t scores_before(const float* scores, int32_t begin, int32_t end, int32_t i, TakesPart takes_part) {
  const float own = scores[i];
  int32_t before = 0;
#pragma unroll 8
  for (int32_t j = begin; j < end; ++j) before += takes_part(j) && (scores[j] > own || (scores[j] == own && j < i)) ? 1 : 0;
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

// Writes the plan of a single row: a tile for each of its pairs. Every thread calls it, after a barrier that follows the ids.
__device__ __forceinline__ void plan_row(const RouteArgs& a, const int32_t* ids) {
  const bool padding = a.slot[0] < 0;
  for (int32_t i = threadIdx.x; i < a.experts.used && !padding; i += blockDim.x) {
    a.plan.pairs[i] = i;
    a.plan.tiles[i] = {ids[i], i, 1};
  }
  int32_t counted = padding ? 0 : a.experts.used;
  if (a.bytes.read != nullptr) {  // the layer has other pieces
    counted = 0;
    for (int32_t begin = 0; begin < a.experts.count; begin += blockDim.x) {
      const int32_t expert = begin + static_cast<int32_t>(threadIdx.x);
      bool active = false;
      for (int32_t i = 0; i < a.experts.used && !padding; ++i) active = active || ids[i] == expert;
      counted += __syncthreads_count(expert < a.experts.count ? read_once(a.bytes, expert, active) : 0);
    }
  }
  if (threadIdx.x != 0) return;
  *a.plan.tile_count = padding ? 0 : a.experts.used;
  count_read(a.bytes, counted);
}

// The block chooses the experts of a row. Every thread returns, so that the block may go on.
__device__ __forceinline__ void route_row(const RouteArgs& a, int64_t row) {
  __shared__ float scratch[kMostRouteThreads / 32], divisor;
  __shared__ int32_t kept_of[4][kMostRouteThreads / 32];
  const mr_experts_desc& e = a.experts;
  const int32_t count = e.count, threads = blockDim.x, thread = threadIdx.x, used = e.used;
  float* const weights = reinterpret_cast<float*>(dynamic_memory());  // (count)
  float* const scores = weights + count;          // (count), then the weights of the chosen
  float* const groups = scores + count;           // (groups)
  auto* const places = reinterpret_cast<int32_t*>(groups + e.groups);   // (count): how many experts come before
  auto* const chosen = reinterpret_cast<uint8_t*>(places + count);      // (count): whether it takes part
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
  for (int32_t i = thread; i < count; i += threads) {
    chosen[i] = e.groups == 0 || scores_before(groups, 0, e.groups, i / size, any) < e.groups_used ? 1 : 0;
    places[i] = 0;
  }
  __syncthreads();
  // Spare threads share the counting of an expert.
  const int32_t lanes = (count + 31) / 32 * 32, parts = max(threads / lanes, 1), part = parts == 1 ? 0 : thread / lanes;
  for (int32_t i = parts == 1 ? thread : thread % lanes; i < count && part < parts; i += threads) {
    if (chosen[i] == 0) continue;
    const int32_t begin = count * part / parts, end = count * (part + 1) / parts;
    const int32_t before = scores_before(scores, begin, end, i, [&](int32_t j) { return chosen[j] != 0; });
    if (parts == 1) places[i] = before;
    else atomicAdd(places + i, before);
  }
  __syncthreads();
  constexpr int32_t kMost = 4;  // experts of a thread
  uint32_t kept[kMost];
#pragma unroll
  for (int32_t k = 0; k < kMost; ++k) {
    const int32_t i = thread + k * threads;
    kept[k] = __ballot_sync(0xffffffffu, i < count && chosen[i] != 0 && places[i] < used);
    if (thread % 32 == 0) kept_of[k][thread / 32] = __popc(kept[k]);
  }
  __syncthreads();
  int32_t before = 0;  // chosen experts of lower ids, of whole warps
#pragma unroll
  for (int32_t k = 0; k < kMost; ++k) {
    for (int32_t w = 0; w < thread / 32; ++w) before += kept_of[k][w];
    if ((kept[k] >> thread % 32 & 1) != 0) {
      const int32_t i = thread + k * threads, at = before + __popc(kept[k] & ((1u << thread % 32) - 1));
      ids[at] = i;
      scores[at] = weights[i];
    }
    for (int32_t w = thread / 32; w < threads / 32; ++w) before += kept_of[k][w];
    if (threads * (k + 1) >= count) break;
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
