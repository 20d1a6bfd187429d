// sampler_rank: where a token stands among the raw logits of its row, and the best of them.
#pragma once

#include "kernels/sampler_cut.cuh"

namespace mr::cuda {

// Tokens of this block's part of a row with a greater logit, or an equal one and a lower id; in lane 0 of each warp, which has
// its own.
__device__ __noinline__ uint32_t count_better(const float* row, int32_t vocab, int32_t token, float own) {
  const int32_t part = (vocab + 4 * static_cast<int32_t>(gridDim.x) - 1) / (4 * static_cast<int32_t>(gridDim.x)) * 4;
  const int32_t begin = static_cast<int32_t>(blockIdx.x) * part, end = min(vocab, begin + part);
  uint32_t better = 0;
#pragma unroll 4
  for (int32_t id = begin + static_cast<int32_t>(threadIdx.x) * 4; id < end; id += 4 * kThreads) {
    const float4 v = four_of(row, id, vocab);
    better += v.x > own || (v.x == own && id < token) ? 1 : 0;
    better += v.y > own || (v.y == own && id + 1 < token) ? 1 : 0;
    better += v.z > own || (v.z == own && id + 2 < token) ? 1 : 0;
    better += v.w > own || (v.w == own && id + 3 < token) ? 1 : 0;
  }
  return __reduce_add_sync(0xffffffffu, better);
}

__device__ __forceinline__ float logprob_of(float logit, float top, double log_sum) {
  if (logit == top) return static_cast<float>(-log_sum);
  return static_cast<float>((static_cast<double>(logit) - static_cast<double>(top)) - log_sum);
}

struct BestSpace {
  SelectSpace select;
  uint64_t keys[64];
  uint32_t count;
};

// The `count` <= 64 best tokens by raw logit, best first. Where gather's list of those that may be had no room, all are looked at.
__device__ __noinline__ void best_tokens(BestSpace& s, const SampleKernelArgs& k, int32_t index, const float* row, int32_t count,
                                         float top, double log_sum, mr_candidate* out) {
  const uint32_t listed = k.space.listed[index * 2 + 1];
  const uint64_t* const list = listed > kMayBest ? nullptr : k.space.may_best + static_cast<int64_t>(index) * kMayBest;
  const int32_t tokens = list == nullptr ? k.a.vocab : static_cast<int32_t>(listed);
  const auto each = [&](auto f) {
#pragma unroll 2
    for (int32_t i = threadIdx.x; i < tokens; i += kThreads)
      f(list == nullptr ? best_first(row[i], i) : best_first(logit_of(list[i]), token_id(list[i])), uint64_t{1});
  };
  const uint64_t limit = select_least(s.select, static_cast<uint64_t>(count), each);
  __syncthreads();
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  each([&](uint64_t key, uint64_t) {
    if (key > limit) return;
    const uint32_t at = atomicAdd(&s.count, 1u);
    if (at < 64) s.keys[at] = key;
  });
  __syncthreads();
  if (static_cast<int32_t>(threadIdx.x) >= count) return;
  const uint64_t key = s.keys[threadIdx.x];
  int32_t place = 0;
  for (int32_t i = 0; i < count; ++i) place += s.keys[i] < key ? 1 : 0;
  const int32_t id = id_of(key);
  out[place] = mr_candidate{id, logprob_of(row[id], top, log_sum)};
}

}  // namespace mr::cuda
