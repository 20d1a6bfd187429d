// sampler/cut: from gather's results to the masses of kept tokens by piece, and to the filter that decides which tokens
// are kept.
#pragma once

#include "kernels/sampler/draw.cuh"

namespace mr::cuda {

struct CutSpace {
  FilterSpace filter;
  DrawSpace draw;
};

// Adds the listed tokens that are kept to their pieces; all threads see the result.
__device__ __forceinline__ void add_kept(DrawSpace& s, const SampleKernelArgs& k, const ListOfTokens& tokens, float floor) {
  tokens.each([&](int32_t i) {
    const float weight = tokens.list.weights[i];
    if (weight != 0 && weight >= floor) {
      const int32_t piece = id_of(tokens.list.keys[i]) / k.piece;
      s.more.add(piece, mass_of(weight));
    }
  });
  __syncthreads();
}

// Reads all tokens of a row to find the kept ones.
__device__ __forceinline__ void weigh_row(DrawSpace& s, const SampleKernelArgs& k, const float* row, const Filter& given) {
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

// All tokens of the edge have one logit, so they are kept in the order of their ids. Sets the last one's key as the
// limit and adds up the masses.
__device__ __forceinline__ void cut_equals(CutSpace& s, const SampleKernelArgs& k, const float* row, float logit, uint64_t count,
                                           const Plan& plan, bool deviation, bool tokens, Filter& filter) {
  const Weights& weights = filter.weights;
  const float distance = weights.distance(below(logit, weights.top)), weight = weight_at(distance);
  const uint64_t mass = mass_of(weight), wanted = tokens ? plan.left : (plan.left + mass - 1) / mass;
  const uint64_t kept = min(wanted, count);
  const Place last = find_piece([&](int32_t piece) { return s.draw.counts[piece]; }, [&](uint64_t) { return kept - 1; });
  const int32_t piece = threadIdx.x;
  if (weight >= filter.floor && piece <= last.at)
    s.draw.masses[piece] += mass * (piece < last.at ? s.draw.counts[piece] : last.left + 1);
  const uint32_t own = ascending(logit);
  const int32_t id = find_token(s.draw, k, row, last, [&](int32_t, float x) { return uint64_t{ascending(x) == own}; }).token;
  filter.set_limit(deviation, deviation ? filter.deviation_key(distance, id) : best_first(logit, id));
}

// Edge is the number of tokens in a job's edge, and their least and greatest logits, as ascending(). Each warp computes
// it by itself.
struct Edge {
  uint32_t count, least, greatest;

  // Range of their keys by logit.
  __device__ __forceinline__ KeyRange keys() const {
    return KeyRange{static_cast<uint64_t>(~greatest) << kIdBits, static_cast<uint64_t>(~least) << kIdBits | ((1u << kIdBits) - 1)};
  }
};
__device__ __forceinline__ Edge edge_of(const SampleKernelArgs& k, int32_t index) {
  Edge edge{0, ~0u, 0};
  for (int i = 0; i < kMostPieces / 32; ++i) {
    const int32_t piece = i * 32 + static_cast<int32_t>(threadIdx.x % 32);
    if (piece >= k.pieces) continue;
    const PieceCut& cut = k.space.cuts[static_cast<int64_t>(index) * kMostPieces + piece];
    edge.count += cut.count;
    edge.least = min(edge.least, cut.least);
    edge.greatest = max(edge.greatest, cut.greatest);
  }
  return Edge{__reduce_add_sync(0xffffffffu, edge.count), __reduce_min_sync(0xffffffffu, edge.least),
              __reduce_max_sync(0xffffffffu, edge.greatest)};
}

// Sets the masses of s.draw, which all threads see afterwards, and the filter of a job that has filters.
__device__ __forceinline__ void cut_row(CutSpace& s, ListSpace& list, const SampleKernelArgs& k, int32_t index, const float* row,
                                        const Rules& rules, const SlotParams& p, Filter& filter) {
  const int32_t piece = threadIdx.x;
  const uint64_t* const listed_tokens = k.space.edges + static_cast<int64_t>(index) * kListed;
  const uint64_t first = listed_tokens[threadIdx.x];  // loaded before it is known whether the token exists
  const Plan plan = k.space.plans[index];
  const Edge edge = edge_of(k, index);  // meaningful if the plan has an edge
  const ListOfTokens tokens{list, static_cast<int32_t>(edge.count), edge.keys()};
  const bool listed = plan.mode != kWholeRow && edge.count <= kListed;
  if (piece < kMostPieces) {
    const bool cuts = plan.mode == kCuts && piece < k.pieces;
    const PieceCut& cut = k.space.cuts[static_cast<int64_t>(index) * kMostPieces + piece];
    s.draw.set(piece, cuts ? cut.mass : 0, cuts ? cut.count : 0);
  }
  if (listed) tokens.load(listed_tokens, first, filter.weights);
  __syncthreads();
  if (plan.mode == kKeepsFew) {
    apply_filters(s.filter, tokens, rules, p, filter);
    add_kept(s.draw, k, tokens, filter.floor);
    return;
  }
  Rules rest = rules;  // filters that are still to be applied, to the whole row
  if (plan.mode == kCuts) {
    const bool deviation = rules.typical && !rules.top_k;
    const bool more = !plan.equal && (rules.top_k ? rules.typical || rules.top_p : rules.typical && (rules.top_p || p.min_p > 0));
    filter.log_total = plan.log_total;
    filter.entropy = plan.entropy;
    if (!more) filter.floor = p.min_p * kWeightUnit;
    if (listed || edge.least == edge.greatest) {
      const bool by_tokens = rules.top_k || plan.equal, by_deviation = deviation && !plan.equal;
      if (listed) tokens.bound(s.filter, filter, by_deviation, by_tokens, plan.left);
      else cut_equals(s, k, row, from_ascending(edge.least), edge.count, plan, by_deviation, by_tokens, filter);
      if (!more) {
        if (listed) add_kept(s.draw, k, tokens, filter.floor);
        else __syncthreads();
        return;
      }
      if (rules.top_k) rest.top_k = false;
      else rest.typical = false;
    }
    filter.floor = 0;
  }
  apply_filters(s.filter, RowOfTokens{row, k.a.vocab}, rest, p, filter);
  __syncthreads();
  weigh_row(s.draw, k, row, filter);
  __syncthreads();
}

}  // namespace mr::cuda
