// sampler/filter: which tokens top-k, typical-p, top-p and min-p keep. Each filter is a bound on a key; a token is kept
// if it is within all bounds.
#pragma once

#include "kernels/sampler/select.cuh"

namespace mr::cuda {

// Weighed is a token with a mass.
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
  // Returns whether a token is kept; its weight is then in w.
  __device__ __forceinline__ bool keeps(int32_t id, float x, Weighed& w) const {
    w.distance = weights.distance(below(x, weights.top));
    w.weight = weight_at(w.distance);
    w.mass = mass_of(w.weight);
    return w.mass != 0 && w.weight >= floor && best_first(x, id) <= limit &&
           (!typical || deviation_key(w.distance, id) <= deviation_limit);
  }
};

struct FilterSpace {
  SelectSpace select;
  uint64_t warps[2][kWarps];
  float best[kWarps];
};

struct Kept {
  uint64_t mass, surprise;
  float weight;  // the greatest

  __device__ __forceinline__ void add(const Weighed& w) {
    mass += w.mass;
    surprise += surprise_of(w.weight, w.distance);
    weight = fmaxf(weight, w.weight);
  }
};

// Sums over a block's threads; every thread gets the result.
__device__ __forceinline__ Kept sum_threads(FilterSpace& s, Kept kept) {
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
#pragma unroll 4
  for (int w = 0; w < kWarps; ++w) {
    all.mass += s.warps[0][w];
    all.surprise += s.warps[1][w];
    all.weight = fmaxf(all.weight, s.best[w]);
  }
  return all;
}

// ListSpace is tokens in shared memory, each computed once. A thread always visits the same ones.
struct ListSpace {
  uint64_t keys[kListed];
  float weights[kListed];  // in units of 2^-40; 0: not kept
  float logits[kListed];
};

struct ListOfTokens {
  ListSpace& list;
  int32_t count;
  KeyRange range;  // of keys by logit

  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < count; i += kThreads) f(i);
  }
  // tokens: a list of gather in global memory; first: this thread's first entry, which may be invalid.
  __device__ __forceinline__ void load(const uint64_t* tokens, uint64_t first, const Weights& weights) const {
    each([&](int32_t i) {
      const uint64_t token = i < kThreads ? first : tokens[i];
      const float x = logit_of(token);
      list.keys[i] = best_first(x, token_id(token));
      list.weights[i] = weight_at(weights.distance(below(x, weights.top)));
      list.logits[i] = x;
    });
  }
  // Sets each token's key to the one that a filter orders by.
  __device__ __forceinline__ void set_keys(const Filter& filter, bool deviation) const {
    each([&](int32_t i) {
      const float x = list.logits[i];
      const int32_t id = id_of(list.keys[i]);
      const float distance = filter.weights.distance(below(x, filter.weights.top));
      list.keys[i] = deviation ? filter.deviation_key(distance, id) : best_first(x, id);
    });
  }
  __device__ __forceinline__ uint64_t limit(SelectSpace& s, KeyRange keys, bool tokens, uint64_t target) const {
    return select_least(s, target, count, keys, [&](auto f) {
      each([&](int32_t i) {
        if (list.weights[i] != 0) f(list.keys[i], tokens ? 1 : mass_of(list.weights[i]));
      });
    });
  }
  // Finds the bound at which masses or tokens reach the target, and applies it to the filter and the list. It is the
  // key of a listed token, so no token outside the list is within it; or the target is not reached, and then all tokens
  // with a mass are listed.
  __device__ __forceinline__ void bound(FilterSpace& s, Filter& filter, bool deviation, bool tokens, uint64_t target) const {
    if (deviation) set_keys(filter, true);
    const uint64_t most = limit(s.select, deviation ? any_keys() : range, tokens, target);
    each([&](int32_t i) {
      if (list.keys[i] > most) list.weights[i] = 0;
    });
    if (deviation) set_keys(filter, false);
    filter.set_limit(deviation, most);
  }
  __device__ __forceinline__ Kept sum(FilterSpace& s, const Filter& filter) const {
    Kept kept{};
    each([&](int32_t i) {
      const float weight = list.weights[i];
      if (weight == 0) return;
      const float distance = filter.weights.distance(below(list.logits[i], filter.weights.top));
      kept.add(Weighed{distance, weight, mass_of(weight)});
    });
    return sum_threads(s, kept);
  }
};

// RowOfTokens is all tokens of a row, or those that a filter keeps, computed on each visit.
struct RowOfTokens {
  const float* row;
  int32_t count;

  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll 2
    for (int32_t id = threadIdx.x; id < count; id += kThreads) f(id, row[id]);
  }
  __device__ __forceinline__ void bound(FilterSpace& s, Filter& filter, bool deviation, bool tokens, uint64_t target) const {
    const Filter own = filter;
    const uint64_t key = select_least(s.select, target, count, any_keys(), [&](auto f) {
      each([&](int32_t id, float x) {
        Weighed w;
        if (own.keeps(id, x, w)) f(deviation ? own.deviation_key(w.distance, id) : best_first(x, id), tokens ? 1 : w.mass);
      });
    });
    filter.set_limit(deviation, key);
  }
  __device__ __forceinline__ Kept sum(FilterSpace& s, const Filter& filter) const {
    const Filter own = filter;
    Kept kept{};
    each([&](int32_t id, float x) {
      Weighed w;
      if (own.keeps(id, x, w)) kept.add(w);
    });
    return sum_threads(s, kept);
  }
};

// Applies a job's filters to tokens, which must include all that they may keep. At least one token is kept.
template <class Tokens>
__device__ __forceinline__ void apply_filters(FilterSpace& s, const Tokens& of, const Rules& rules, const SlotParams& p,
                                              Filter& filter) {
  if (rules.top_k) of.bound(s, filter, false, true, static_cast<uint64_t>(p.top_k));
  if (rules.typical) {
    const Kept kept = of.sum(s, filter);
    filter.log_total = log_f64(static_cast<double>(kept.mass) * 0x1p-40);
    filter.entropy = filter.log_total + static_cast<double>(kept.surprise) * 0x1p-6 / static_cast<double>(kept.mass);
    of.bound(s, filter, true, false, share(p.typical_p, kept.mass));
  }
  if (rules.top_p) of.bound(s, filter, false, false, share(p.top_p, of.sum(s, filter).mass));
  if (p.min_p > 0) {
    const float best = filter.typical ? of.sum(s, filter).weight / kWeightUnit : 1.0f;  // only typical-p can drop the greatest token
    filter.floor = p.min_p * best * kWeightUnit;
  }
}

}  // namespace mr::cuda
