// sampler, kernel gather: what the first filter of a row keeps whole, by piece, and the few tokens among which its bound lies;
// and the few tokens that may be candidates.
//
// The n best tokens lie within the n pieces that have the greatest greatest logits, so that none is below the least of those.
#include "kernels/sampler_plan.cuh"

namespace mr::cuda {
namespace {

// Ids of a block, which go to a list of the job in one go.
template <int kRoom>
struct Found {
  uint32_t count, place;
  int32_t ids[kRoom];
};

template <int kRoom>
__device__ __forceinline__ void find(Found<kRoom>& found, int32_t id) {
  const uint32_t at = atomicAdd(&found.count, 1u);
  if (at < kRoom) found.ids[at] = id;
}

// Of a list that has no room for all nothing is looked at but that.
template <int kRoom>
__device__ void append(Found<kRoom>& found, const float* row, uint32_t* listed, uint64_t* list) {
  __syncthreads();
  if (threadIdx.x == 0) found.place = found.count == 0 ? kRoom : atomicAdd(listed, found.count);
  __syncthreads();
  const uint32_t place = found.place, count = found.count;
  if (place > kRoom || count > kRoom - place) return;
  for (uint32_t i = threadIdx.x; i < count; i += kPieceThreads) list[place + i] = token_of(row[found.ids[i]], found.ids[i]);
}

struct Shared {
  PlanSpace plan;
  PieceCut cuts[kPieceWarps];
  uint32_t greatest[kMostPieces];
  float least_best;
  Found<kListed> edge;
  Found<kMayBest> may_best;
};

// Bounds on the logits of bins [begin, end), which need not be exact.
struct Band {
  float least, greatest;

  __device__ Band(const Weights& w, const Bins& bins, int32_t begin, int32_t end) : least(-INFINITY), greatest(INFINITY) {
    if (isinf(w.top) || !(w.temperature > 1e-9f && w.temperature < 1e9f) || !(bins.most > 1e-6f)) return;
    const float width = w.temperature / bins.scale, slack = 0.02f * width + fabsf(w.top) * 1e-6f;
    least = w.top - (static_cast<float>(end) - 0.5f) * width - slack - fabsf(w.top - static_cast<float>(end) * width) * 1e-6f;
    greatest = w.top - (static_cast<float>(begin) - 0.5f) * width + slack + fabsf(w.top - static_cast<float>(begin) * width) * 1e-6f;
  }
};

__device__ __forceinline__ void cut_span(Shared& s, const Span& span, const float* x, int32_t vocab, const Weights& weights,
                                         const Bins& bins, const Plan& plan, float floor) {
  const Band band(weights, bins, plan.edge, plan.edge_end);
  const uint32_t wide = static_cast<uint32_t>(plan.edge_end - plan.edge), kept = static_cast<uint32_t>(plan.inside_end - plan.inside);
  PieceCut cut{};
  cut.least = ~0u;
  span.each_four(x, vocab, [&](int32_t id, const float4& v) {
    const float logits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float logit = logits[i];
      if (!(logit >= band.least && logit <= band.greatest)) continue;
      const float distance = weights.distance(below(logit, weights.top));
      const uint32_t bin = bins.bin(distance);
      if (bin - static_cast<uint32_t>(plan.edge) >= wide) continue;
      const float weight = weight_at(distance);
      const uint64_t mass = mass_of(weight);
      if (bin - static_cast<uint32_t>(plan.inside) < kept) {
        cut.mass += weight >= floor ? mass : 0;
      } else if (mass != 0) {
        ++cut.count;
        cut.least = min(cut.least, ascending(logit));
        cut.greatest = max(cut.greatest, ascending(logit));
        find(s.edge, id + i);
      }
    }
  });
  cut.mass = warp_sum_u64(cut.mass);
  cut.count = __reduce_add_sync(0xffffffffu, cut.count);
  cut.least = __reduce_min_sync(0xffffffffu, cut.least);
  cut.greatest = __reduce_max_sync(0xffffffffu, cut.greatest);
  if (threadIdx.x % 32 == 0) s.cuts[threadIdx.x / 32] = cut;
}

__device__ __forceinline__ void write_cuts(const SampleKernelArgs& k, int32_t index, const Shared& s) {
  const int32_t i = threadIdx.x, sharing = kPieceWarps >> k.piece_bits;
  if (i >= 1 << k.piece_bits || block_piece(k, i) >= k.pieces) return;
  PieceCut all = s.cuts[i * sharing];
  for (int32_t w = i * sharing + 1; w < (i + 1) * sharing; ++w) {
    all.mass += s.cuts[w].mass;
    all.count += s.cuts[w].count;
    all.least = min(all.least, s.cuts[w].least);
    all.greatest = max(all.greatest, s.cuts[w].greatest);
  }
  k.space.cuts[static_cast<int64_t>(index) * kMostPieces + block_piece(k, i)] = all;
}

// A logit that none of the `count` best tokens is below.
__device__ __forceinline__ float least_of_best(Shared& s, const SampleKernelArgs& k, int32_t index, int32_t count) {
  if (count > k.pieces) return -INFINITY;
  const int32_t piece = threadIdx.x;
  if (piece < kMostPieces)
    s.greatest[piece] = piece < k.pieces ? ascending(k.space.tops[static_cast<int64_t>(index) * kMostPieces + piece].raw) : 0;
  __syncthreads();
  if (piece < k.pieces) {
    const uint32_t own = s.greatest[piece];
    int32_t place = 0;
#pragma unroll 8
    for (int i = 0; i < kMostPieces; ++i) place += s.greatest[i] > own || (s.greatest[i] == own && i < piece) ? 1 : 0;
    if (place == count - 1) s.least_best = from_ascending(own);
  }
  __syncthreads();
  return s.least_best;
}

__global__ void __launch_bounds__(kPieceThreads) gather(const __grid_constant__ SampleKernelArgs k) {
  __shared__ __align__(16) Shared s;
  const SampleArgs& a = k.a;
  const int32_t index = blockIdx.y;
  const SampleJob job = a.jobs[index];
  const SlotParams p = params_of(a, job);
  const Rules rules = rules_of(a, job, p);
  const Span span(k);
  if (threadIdx.x == 0) s.edge.count = s.may_best.count = 0;
  grid_wait();
  grid_trigger();
  if (job.kind == kJobNone) return;
  const bool first = blockIdx.x == 0 && threadIdx.x == 0;
  if (poisoned(a, job)) {
    if (first) a.results[index].rank = 0;
    return;
  }
  const RowTop top = row_top(k, index);
  const bool ok = status_of(job, top) == MR_ROW_OK;
  if (first) a.results[index].rank = ok ? 1 : 0;  // choose adds to it
  if (!ok) return;
  const float* const raw = raw_row(a, job);
  if (rules.filtered()) {
    const float* const x = processed_row(k, index, rules, raw);
    const Weights weights(top.processed, p.temperature);
    const Bins bins(weights, top.least);
    const Plan plan = make_plan(s.plan, k, index, rules, p, bins);
    if (first) k.space.plans[index] = plan;
    if (plan.mode != kWholeRow) {
      cut_span(s, span, x, a.vocab, weights, bins, plan, p.min_p * kWeightUnit);
      append(s.edge, x, k.space.listed + index * 2, k.space.edges + static_cast<int64_t>(index) * kListed);
      write_cuts(k, index, s);
    }
  }
  const int32_t candidates = min(job.top_n, a.vocab);
  if (candidates <= 0) return;
  const float least = least_of_best(s, k, index, candidates);
  span.each_four(raw, a.vocab, [&](int32_t id, const float4& v) {
    const float logits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (logits[i] >= least && id + i < a.vocab) find(s.may_best, id + i);
  });
  append(s.may_best, raw, k.space.listed + index * 2 + 1, k.space.may_best + static_cast<int64_t>(index) * kMayBest);
}

}  // namespace

cudaError_t launch_sampler_gather(const SampleKernelArgs& k, const Stream& on) {
  const dim3 grid(static_cast<unsigned>((k.pieces + (1 << k.piece_bits) - 1) >> k.piece_bits), static_cast<unsigned>(k.a.job_count));
  return launch(on, grid, dim3(kPieceThreads), 0, gather, k);
}

}  // namespace mr::cuda
