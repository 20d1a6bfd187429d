// sampler_filter: which tokens top-k, typical-p, top-p and min-p keep. Each filter is a bound on a key: a token is kept when it
// lies within all bounds.
#pragma once

#include "kernels/sampler_select.cuh"

namespace mr::cuda {

constexpr int kThreads = 512;  // of a block of choose
constexpr int kWarps = kThreads / 32;

// A token that has a mass.
struct Weighed {
  float distance, weight;  // the weight in units of 2^-40
  uint64_t mass;
};

struct Filter {
  Weights weights;
  uint64_t limit = kNoKey;  // on best_first(x, id)
  float floor = 0;          // of weights
  bool typical = false;
  uint64_t deviation_limit = kNoKey;  // on best_first(-deviation, id)
  double log_total = 0, entropy = 0;

  __device__ explicit Filter(const Weights& w) : weights(w) {}

  __device__ __forceinline__ uint64_t deviation_key(float distance, int32_t id) const {
    const double surprise = log_total + static_cast<double>(distance);
    return best_first(-static_cast<float>(fabs(surprise - entropy)), id);
  }
  __device__ __forceinline__ void set_limit(bool deviation, uint64_t key) {
    if (deviation) {
      typical = true;
      deviation_limit = key;
    } else {
      limit = min(limit, key);
    }
  }
  // Whether a token is kept; its weight is then in w.
  __device__ __forceinline__ bool keeps(int32_t id, float x, Weighed& w) const {
    w.distance = weights.distance(below(x, weights.top));
    w.weight = weight_at(w.distance);
    w.mass = mass_of(w.weight);
    return w.mass != 0 && w.weight >= floor && best_first(x, id) <= limit &&
           (!typical || deviation_key(w.distance, id) <= deviation_limit);
  }
};

// Tokens that a block looks at: a list, or a whole row.
struct Source {
  const uint64_t* list;  // null: the row
  const float* row;
  int32_t count;

  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll 2
    for (int32_t i = threadIdx.x; i < count; i += kThreads) {
      if (list != nullptr) f(token_id(list[i]), logit_of(list[i]));
      else f(i, row[i]);
    }
  }
};

struct FilterSpace {
  SelectSpace select;
  uint64_t warps[2][kWarps];
  float best[kWarps];
};

// The bound on the kept tokens of a source, by logit or by deviation, within which masses or tokens reach the target.
__device__ __noinline__ uint64_t find_limit(SelectSpace& s, const Source& source, const Filter& given, bool deviation, bool tokens,
                                            uint64_t target) {
  const Filter filter = given;
  return select_least(s, target, [&](auto f) {
    source.each([&](int32_t id, float x) {
      Weighed w;
      if (filter.keeps(id, x, w)) f(deviation ? filter.deviation_key(w.distance, id) : best_first(x, id), tokens ? 1 : w.mass);
    });
  });
}

struct Kept {
  uint64_t mass, surprise;
  float weight;  // the greatest
};

// Sums over the kept tokens of a source, in every thread.
__device__ __noinline__ Kept sum_kept(FilterSpace& s, const Source& source, const Filter& given) {
  const Filter filter = given;
  Kept kept{};
  source.each([&](int32_t id, float x) {
    Weighed w;
    if (!filter.keeps(id, x, w)) return;
    kept.mass += w.mass;
    kept.surprise += surprise_of(w.weight, w.distance);
    kept.weight = fmaxf(kept.weight, w.weight);
  });
  kept.mass = warp_sum_u64(kept.mass);
  kept.surprise = warp_sum_u64(kept.surprise);
  kept.weight = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(kept.weight)));
  const int warp = threadIdx.x / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    s.warps[0][warp] = kept.mass;
    s.warps[1][warp] = kept.surprise;
    s.best[warp] = kept.weight;
  }
  __syncthreads();
  Kept all{};
  for (int w = 0; w < kWarps; ++w) {
    all.mass += s.warps[0][w];
    all.surprise += s.warps[1][w];
    all.weight = fmaxf(all.weight, s.best[w]);
  }
  return all;
}

// Applies a job's filters to a source that has all tokens they may keep. At least one token is kept.
__device__ __noinline__ void apply_filters(FilterSpace& s, const Source& source, const Rules& rules, const SlotParams& p,
                                           const Plan& plan, Filter& filter) {
  if (rules.top_k)
    filter.set_limit(false, find_limit(s.select, source, filter, false, true, static_cast<uint64_t>(p.top_k)));
  if (rules.typical) {
    const Kept kept = sum_kept(s, source, filter);
    filter.log_total = log_f64(static_cast<double>(kept.mass) * 0x1p-40);
    filter.entropy = filter.log_total + static_cast<double>(kept.surprise) * 0x1p-6 / static_cast<double>(kept.mass);
    filter.set_limit(true, find_limit(s.select, source, filter, true, false, share(p.typical_p, kept.mass)));
  }
  if (rules.top_p) {
    const uint64_t total = sum_kept(s, source, filter).mass;
    filter.set_limit(false, find_limit(s.select, source, filter, false, false, share(p.top_p, total)));
  }
  if (p.min_p > 0) {
    const float best = rules.typical ? sum_kept(s, source, filter).weight / kWeightUnit : 1.0f;  // only typical-p leaves out the greatest
    filter.floor = p.min_p * best * kWeightUnit;
  }
}

}  // namespace mr::cuda
