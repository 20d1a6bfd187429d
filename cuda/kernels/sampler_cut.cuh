// sampler_cut: from what gather found to the masses of kept tokens by piece, and to the filter that says which those are.
#pragma once

#include "kernels/sampler_draw.cuh"

namespace mr::cuda {

struct CutSpace {
  FilterSpace filter;
  DrawSpace draw;
  uint64_t list[kListed];
};

__device__ __forceinline__ void add_kept(DrawSpace& s, const SampleKernelArgs& k, const Source& list, const Filter& filter) {
  list.each([&](int32_t id, float x) {
    Weighed w;
    if (filter.keeps(id, x, w))
      atomicAdd(reinterpret_cast<unsigned long long*>(s.masses + id / k.piece), static_cast<unsigned long long>(w.mass));
  });
}

// Looks at all tokens of a row for the kept ones.
__device__ __noinline__ void weigh_row(DrawSpace& s, const SampleKernelArgs& k, const float* row, const Filter& given) {
  const Filter filter = given;
  for (int32_t piece = threadIdx.x / 32; piece < k.pieces; piece += kWarps) {
    const int32_t end = min(k.a.vocab, (piece + 1) * k.piece);
    uint64_t mass = 0;
    for (int32_t id = piece * k.piece + static_cast<int32_t>(threadIdx.x % 32); id < end; id += 32) {
      Weighed w;
      if (filter.keeps(id, row[id], w)) mass += w.mass;
    }
    mass = warp_sum_u64(mass);
    if (threadIdx.x % 32 == 0) s.masses[piece] = mass;
  }
}

// The edge is of one logit: its tokens are kept in the order of their ids. Gives the last one's key, and adds up its masses.
__device__ __noinline__ void cut_equals(CutSpace& s, const SampleKernelArgs& k, const float* row, float logit, uint64_t count,
                                        const Plan& plan, bool deviation, bool tokens, Filter& filter) {
  const Weights& weights = filter.weights;
  const float distance = weights.distance(below(logit, weights.top)), weight = weight_at(distance);
  const uint64_t mass = mass_of(weight), wanted = tokens ? plan.left : (plan.left + mass - 1) / mass;
  const uint64_t kept = min(wanted, count);
  const Place last = find_piece(s.draw.counts, kept - 1);
  const int32_t piece = threadIdx.x;
  if (weight >= filter.floor && piece <= last.at)
    s.draw.masses[piece] += mass * (piece < last.at ? s.draw.counts[piece] : last.left + 1);
  const uint32_t own = ascending(logit);
  const int32_t id = find_token(s.draw, k, row, last, [&](int32_t, float x) { return uint64_t{ascending(x) == own}; });
  filter.set_limit(deviation, deviation ? filter.deviation_key(distance, id) : best_first(logit, id));
}

// Sets s.draw.masses, which all threads see afterwards, and the filter.
__device__ __noinline__ void cut_row(CutSpace& s, const SampleKernelArgs& k, int32_t index, const float* row, const Rules& rules,
                                     const SlotParams& p, Filter& filter) {
  const int32_t piece = threadIdx.x;
  const int64_t at = static_cast<int64_t>(index) * kMostPieces + piece;
  if (!rules.filtered()) {
    if (piece < kMostPieces) s.draw.masses[piece] = piece < k.pieces ? k.space.sums[at].mass : 0;
    filter.floor = p.min_p * kWeightUnit;
    __syncthreads();
    return;
  }
  const Plan plan = k.space.plans[index];
  const uint32_t count = k.space.listed[index * 2];
  if (plan.mode != kWholeRow && count <= kListed)
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) s.list[i] = k.space.edges[static_cast<int64_t>(index) * kListed + i];
  if (piece < kMostPieces) s.draw.masses[piece] = s.draw.counts[piece] = 0;
  const Source list{s.list, row, static_cast<int32_t>(count)}, whole{nullptr, row, k.a.vocab};
  uint32_t least = ~0u, greatest = 0;
  if (plan.mode == kCuts && piece < k.pieces) {
    const PieceCut cut = k.space.cuts[at];
    s.draw.masses[piece] = cut.mass;
    s.draw.counts[piece] = cut.count;
    least = cut.least;
    greatest = cut.greatest;
  }
  __syncthreads();
  if (plan.mode == kKeepsFew) {
    apply_filters(s.filter, list, rules, p, plan, filter);
    add_kept(s.draw, k, list, filter);
    __syncthreads();
    return;
  }
  if (plan.mode == kCuts) {
    const bool deviation = rules.typical, tokens = rules.top_k;
    filter.log_total = plan.log_total;
    filter.entropy = plan.entropy;
    if (count <= kListed) {
      filter.set_limit(deviation, find_limit(s.filter.select, list, filter, deviation, tokens, plan.left));
      filter.floor = p.min_p * kWeightUnit;
      add_kept(s.draw, k, list, filter);
      __syncthreads();
      return;
    }
    // A warp holds the pieces' least and greatest logits; all learn them.
    uint32_t* const ends = s.filter.select.low;
    if (threadIdx.x < kMostPieces) {
      ends[piece] = least;
      ends[kMostPieces + piece] = greatest;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x % 32); i < kMostPieces; i += 32) {
      least = min(least, ends[i]);
      greatest = max(greatest, ends[kMostPieces + i]);
    }
    least = __reduce_min_sync(0xffffffffu, least);
    greatest = __reduce_max_sync(0xffffffffu, greatest);
    if (least == greatest) {
      filter.floor = p.min_p * kWeightUnit;
      cut_equals(s, k, row, from_ascending(least), count, plan, deviation, tokens, filter);
      __syncthreads();
      return;
    }
  }
  apply_filters(s.filter, whole, rules, p, plan, filter);
  weigh_row(s.draw, k, row, filter);
  __syncthreads();
}

}  // namespace mr::cuda
