// route_row: a warp chooses the experts of one row. Lane l has the experts l, l + 32, ...; no block waits at a barrier.
// Up to kMostInRegisters experts a lane keeps its scores in registers: all logits are requested before one is used, and divisions overlap.
// An expert is chosen if fewer than `used` experts come before it: those of greater scores, and of equal scores those of lower index. The
// warp takes the first of the experts that are left, `used` times, by keys that have the order of the scores.
// Sums over experts are of 32 at a time, as warp_sum adds them, and then in ascending order: it depends on the number of experts alone.
#pragma once

#include "kernels/act.cuh"
#include "kernels/experts/read_once.cuh"
#include "kernels/experts/route.h"
#include "kernels/instructions.cuh"
#include "kernels/math.cuh"

namespace mr::cuda {

constexpr int32_t kMostSummed = 1024;  // sums of experts that are this far apart come first
constexpr float kLeastSum = 1e-20f;
constexpr int32_t kMostInRegisters = 512;

// RouteMemory lies in shared memory, one for each warp that routes.
struct RouteMemory {
  float *weights, *scores;  // (experts)
  uint32_t* keys;           // (experts): 0 = taken already, or in no chosen group
  uint32_t* kept;           // a bit for each expert: whether it is chosen
  float* groups;            // (groups): scores
  float* picked;            // (used): weights of the chosen by ascending id
  int32_t* chosen;          // (used): their ids

  __device__ RouteMemory(void* memory, const mr_experts_desc& e)
      : weights(static_cast<float*>(memory)), scores(weights + e.count), keys(reinterpret_cast<uint32_t*>(scores + e.count)),
        kept(keys + e.count), groups(reinterpret_cast<float*>(kept + (e.count + 31) / 32)), picked(groups + e.groups),
        chosen(reinterpret_cast<int32_t*>(picked + e.used)) {}
};

// Bytes of a RouteMemory.
inline size_t route_shared_bytes(const mr_experts_desc& e) {
  return static_cast<size_t>(3 * e.count + (e.count + 31) / 32 + e.groups + 2 * e.used) * sizeof(float);
}

__device__ __forceinline__ int32_t route_lane() { return static_cast<int32_t>(threadIdx.x) % 32; }

// Returns the key of a score that is a number: greater scores have greater keys, equal scores the same, and none has 0.
__device__ __forceinline__ uint32_t score_key(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 equals 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// Returns the score of a key.
__device__ __forceinline__ float score_of_key(uint32_t key) { return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key); }

// Replaces each x by x / d, with the rounding of this expression, as activate_each of activation.cuh does.
// Divisions of four overlap: more of them take more registers than the router's kernel has.
template <int32_t n>
__device__ __forceinline__ void divide_each(float (&x)[n], const float (&d)[n]) {
  constexpr int32_t kTogether = 4;
  static_assert(n % kTogether == 0, "whole groups");
#pragma unroll
  for (int32_t first = 0; first < n; first += kTogether) {
    float y[kTogether];
    bool plain = true;
#pragma unroll
    for (int32_t k = 0; k < kTogether; ++k) {
      const float numerator = x[first + k], divisor = d[first + k];
      plain = plain && (numerator >= 0x1p-60f || numerator == 0) && numerator <= 1 && divisor >= 1 && divisor <= 0x1p60f;
      float r = reciprocal_near(divisor);
      r = fmaf(r, fmaf(-divisor, r, 1.0f), r);
      const float q = numerator * r, near = fmaf(r, fmaf(-divisor, q, numerator), q);
      y[k] = fmaf(r, fmaf(-divisor, near, numerator), near);
    }
#pragma unroll
    for (int32_t k = 0; k < kTogether; ++k) x[first + k] = plain ? y[k] : x[first + k] / d[first + k];
  }
}

// Returns how many of `count` scores come before score i.
__device__ __forceinline__ int32_t scores_before(const float* scores, int32_t count, int32_t i) {
  const float own = scores[i];
  int32_t before = 0;
  for (int32_t j = 0; j < count; ++j) before += scores[j] > own || (scores[j] == own && j < i) ? 1 : 0;
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

__device__ __forceinline__ float sum_of_experts(const float* values, int32_t count) {
  float sum = 0;
#pragma unroll 4
  for (int32_t begin = 0; begin < min(count, kMostSummed); begin += 32) {
    float own = 0;
    for (int32_t i = begin + route_lane(); i < count; i += kMostSummed) own += values[i];
    own = warp_sum(own);
    sum = begin == 0 ? own : sum + own;
  }
  return sum;
}

// Computes weights and scores. Returns whether a score is not a number.
__device__ __forceinline__ bool score_experts(const RouteArgs& a, const float* logits, const RouteMemory& memory) {
  const int32_t count = a.experts.count, lane = route_lane();
  float* const weights = memory.weights;
  if (a.experts.gating == MR_GATE_SOFTMAX) {
    float top = -INFINITY;
    for (int32_t i = lane; i < count; i += 32) top = fmaxf(top, weights[i] = __ldcg(logits + i));
    for (int32_t distance = 16; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
    for (int32_t i = lane; i < count; i += 32) weights[i] = exp_f32(weights[i] - top);
    __syncwarp();
    const float sum = sum_of_experts(weights, count);
    for (int32_t i = lane; i < count; i += 32) weights[i] /= sum;
  } else {
    for (int32_t i = lane; i < count; i += 32) weights[i] = 1.0f / (1.0f + exp_f32(-__ldcg(logits + i)));
  }
  bool bad = false;
  for (int32_t i = lane; i < count; i += 32) {
    const float score = a.choice_bias == nullptr ? weights[i] : weights[i] + a.choice_bias[i];
    memory.scores[i] = score;
    memory.keys[i] = score_key(score);
    bad |= isnan(score);
  }
  return __any_sync(0xffffffffu, bad);
}

// Takes the experts of groups that are not chosen out of the choice. Returns whether a group's score is not a number.
__device__ __forceinline__ bool choose_groups(const mr_experts_desc& e, const RouteMemory& memory) {
  const int32_t size = e.count / e.groups;
  bool bad = false;
  for (int32_t g = route_lane(); g < e.groups; g += 32) {
    memory.groups[g] = group_score(memory.scores + g * size, size, (e.flags & MR_EXPERTS_GROUP_BEST_TWO) != 0);
    bad |= isnan(memory.groups[g]);
  }
  __syncwarp();
  for (int32_t i = route_lane(); i < e.count; i += 32)
    if (scores_before(memory.groups, e.groups, i / size) >= e.groups_used) memory.keys[i] = 0;
  return __any_sync(0xffffffffu, bad);
}

// Marks the chosen experts.
__device__ __forceinline__ void choose_experts(const mr_experts_desc& e, const RouteMemory& memory) {
  const int32_t lane = route_lane();
  uint32_t best = 0;  // the lane's first expert that is left, and its key
  int32_t expert = e.count;
  const auto find = [&] {
    best = 0;
#pragma unroll 4
    for (int32_t i = lane; i < e.count; i += 32) {
      const uint32_t key = memory.keys[i];
      if (key <= best) continue;
      best = key;
      expert = i;
    }
  };
  find();
  for (int32_t n = 0; n < e.used; ++n) {
    __syncwarp();  // lanes set bits of one word in turn
    const uint32_t first = __reduce_max_sync(0xffffffffu, best);
    if (first == 0) break;
    const auto taken = static_cast<int32_t>(__reduce_min_sync(0xffffffffu, best == first ? static_cast<uint32_t>(expert) : UINT32_MAX));
    if (best != first || expert != taken) continue;
    memory.keys[taken] = 0;
    memory.kept[taken / 32] |= 1u << lane;
    find();
  }
}

// As score_experts, of at most kEach experts of a lane, in registers.
template <int32_t kEach>
__device__ __forceinline__ bool score_few(const RouteArgs& a, const float* logits, const RouteMemory& memory) {
  const int32_t count = a.experts.count, lane = route_lane();
  float weights[kEach], divisors[kEach];
#pragma unroll
  for (int32_t j = 0; j < kEach; ++j) {
    const int32_t i = lane + j * 32;
    weights[j] = i < count ? __ldcg(logits + i) : -INFINITY;
  }
  if (a.choice_bias != nullptr) {  // requested with the logits, and kept in memory meanwhile
#pragma unroll
    for (int32_t j = 0; j < kEach; ++j)
      if (lane + j * 32 < count) memory.scores[lane + j * 32] = a.choice_bias[lane + j * 32];
  }
  const bool softmax = a.experts.gating == MR_GATE_SOFTMAX;
  float top = 0;
  if (softmax) {
    top = weights[0];
#pragma unroll
    for (int32_t j = 0; j < kEach; ++j) top = fmaxf(top, weights[j]);
    top = score_of_key(__reduce_max_sync(0xffffffffu, isnan(top) ? 0 : score_key(top)));
  }
#pragma unroll
  for (int32_t j = 0; j < kEach; ++j) divisors[j] = exp_f32(softmax ? weights[j] - top : -weights[j]);
  if (softmax) {
#pragma unroll
    for (int32_t j = 0; j < kEach; ++j) weights[j] = divisors[j];
#pragma unroll
    for (int32_t distance = 16; distance > 0; distance /= 2)
#pragma unroll
      for (int32_t j = 0; j < kEach; ++j) divisors[j] += __shfl_xor_sync(0xffffffffu, divisors[j], distance);
    float sum = divisors[0];
#pragma unroll
    for (int32_t j = 1; j < kEach; ++j) sum += divisors[j];
#pragma unroll
    for (int32_t j = 0; j < kEach; ++j) divisors[j] = sum;
  } else {
#pragma unroll
    for (int32_t j = 0; j < kEach; ++j) {
      divisors[j] = 1.0f + divisors[j];
      weights[j] = 1;
    }
  }
  divide_each(weights, divisors);
  bool bad = false;
#pragma unroll
  for (int32_t j = 0; j < kEach; ++j) {
    const int32_t i = lane + j * 32;
    if (i >= count) continue;
    const float score = a.choice_bias == nullptr ? weights[j] : weights[j] + memory.scores[i];
    memory.weights[i] = weights[j];
    memory.scores[i] = score;
    memory.keys[i] = score_key(score);
    bad |= isnan(score);
  }
  return __any_sync(0xffffffffu, bad);
}

// As choose_experts, of at most kEach experts of a lane, in registers.
template <int32_t kEach>
__device__ __forceinline__ void choose_few(const mr_experts_desc& e, const RouteMemory& memory) {
  const int32_t lane = route_lane();
  uint32_t keys[kEach], taken = 0;  // bit j: expert lane + 32 j
#pragma unroll
  for (int32_t j = 0; j < kEach; ++j) keys[j] = lane + j * 32 < e.count ? memory.keys[lane + j * 32] : 0;
#pragma unroll 1
  for (int32_t n = 0; n < e.used; ++n) {
    uint32_t best = keys[0];
#pragma unroll
    for (int32_t j = 1; j < kEach; ++j) best = max(best, keys[j]);
    const uint32_t first = __reduce_max_sync(0xffffffffu, best);
    if (first == 0) break;
    uint32_t at = kEach;  // the lane's first expert with that key
#pragma unroll
    for (int32_t j = kEach; j-- > 0;)
      if (keys[j] == first) at = static_cast<uint32_t>(j);
    bool mine = at < kEach;
    const uint32_t lanes = __ballot_sync(0xffffffffu, mine);
    if ((lanes & (lanes - 1)) != 0) {
      const uint32_t expert = mine ? at * 32 + static_cast<uint32_t>(lane) : UINT32_MAX;
      mine = __reduce_min_sync(0xffffffffu, expert) == expert;
    }
    if (!mine) at = kEach;
#pragma unroll
    for (int32_t j = 0; j < kEach; ++j)
      if (at == static_cast<uint32_t>(j)) keys[j] = 0;
    taken |= 1u << at;
  }
#pragma unroll
  for (int32_t j = 0; j < kEach; ++j) {
    const uint32_t kept = __ballot_sync(0xffffffffu, (taken >> j & 1) != 0);
    if (lane == 0 && j * 32 < e.count) memory.kept[j] = kept;
  }
}

// Writes the plan of a single row: a tile for each of its pairs.
__device__ __forceinline__ void plan_row(const RouteArgs& a, const RouteMemory& memory, bool padding) {
  const int32_t lane = route_lane();
  for (int32_t i = lane; i < a.experts.used && !padding; i += 32) {
    a.plan.pairs[i] = i;
    a.plan.tiles[i] = {memory.chosen[i], i, 1};
  }
  uint32_t counted = padding ? 0 : static_cast<uint32_t>(a.experts.used);
  if (a.bytes.read != nullptr) {  // the layer has other pieces
    counted = 0;
    for (int32_t expert = lane; expert < a.experts.count; expert += 32)
      counted += static_cast<uint32_t>(read_once(a.bytes, expert, (memory.kept[expert / 32] >> lane & 1) != 0));
    counted = __reduce_add_sync(0xffffffffu, counted);
  }
  if (lane != 0) return;
  *a.plan.tile_count = padding ? 0 : a.experts.used;
  count_read(a.bytes, static_cast<int32_t>(counted));
}

// The warp chooses the experts of a row. Every lane returns, so that the warp may go on. Up to kMost experts, 256 or 512, are kept in
// registers.
template <int32_t kMost = kMostInRegisters>
__device__ __forceinline__ void route_row(const RouteArgs& a, int64_t row, bool padding, void* shared) {
  const mr_experts_desc& e = a.experts;
  const RouteMemory memory(shared, e);
  const int32_t lane = route_lane(), words = (e.count + 31) / 32;
  int32_t* const ids = a.ids + row * e.used;
  float* const out = a.weights + row * e.used;
  for (int32_t w = lane; w < words; w += 32) memory.kept[w] = 0;
  __syncwarp();
  if (padding) {
    for (int32_t i = lane; i < e.used; i += 32) ids[i] = e.count;
    if (a.rows == 1) plan_row(a, memory, true);
    return;
  }

  const float* const logits = a.logits + row * e.count;
  bool bad;
  const bool most = kMost > 256 && e.count <= kMost;
  if (e.count <= 128) bad = score_few<4>(a, logits, memory);
  else if (e.count <= 256) bad = score_few<8>(a, logits, memory);
  else if (most) bad = score_few<kMost / 32>(a, logits, memory);
  else bad = score_experts(a, logits, memory);
  __syncwarp();
  if (!bad && e.groups != 0) {
    bad = choose_groups(e, memory);
    __syncwarp();
  }
  if (bad) {  // the first experts, whose weights fail the row
    for (int32_t i = lane; i < e.used; i += 32) memory.weights[i] = NAN;
    for (int32_t w = 0; w < words; ++w) {
      const uint32_t first = __ballot_sync(0xffffffffu, w * 32 + lane < e.used);
      if (lane == 0) memory.kept[w] = first;
    }
  } else if (e.count <= 128) {
    choose_few<4>(e, memory);
  } else if (e.count <= 256) {
    choose_few<8>(e, memory);
  } else if (most) {
    choose_few<kMost / 32>(e, memory);
  } else {
    choose_experts(e, memory);
  }
  __syncwarp();

  int32_t before = 0;  // chosen experts of lower ids
  for (int32_t begin = 0; begin < words; begin += 32) {
    const uint32_t own = begin + lane < words ? memory.kept[begin + lane] : 0;
#pragma unroll 4
    for (int32_t w = begin; w < min(begin + 32, words); ++w) {
      const uint32_t kept = __shfl_sync(0xffffffffu, own, w - begin);
      const int32_t at = before + __popc(kept & ((1u << lane) - 1));
      before += __popc(kept);
      if ((kept >> lane & 1) == 0) continue;
      ids[at] = memory.chosen[at] = w * 32 + lane;
      memory.picked[at] = memory.weights[w * 32 + lane];
    }
  }
  __syncwarp();
  float sum = 0;
  for (int32_t i = 0; i < e.used; ++i) sum += memory.picked[i];
  const float divisor = fmaxf(sum, kLeastSum);
  for (int32_t i = lane; i < e.used; i += 32) {
    float weight = memory.picked[i];
    if ((e.flags & MR_EXPERTS_RENORM) != 0) weight /= divisor;
    if (e.weight_scale != 0) weight *= e.weight_scale;
    out[i] = a.scales == nullptr ? weight : weight * a.scales[memory.chosen[i]];
  }
  if (a.rows == 1) plan_row(a, memory, false);
}

}  // namespace mr::cuda
