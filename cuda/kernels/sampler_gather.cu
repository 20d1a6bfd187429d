// sampler, kernel gather: what the first filter of a row keeps whole, by piece, and the few tokens among which its bound lies;
// and the few tokens that may be candidates.
//
// The n best tokens lie within the n pieces that have the greatest greatest logits, so that none is below the least of those.
#include "kernels/sampler_plan.cuh"

namespace mr::cuda {
namespace {

// Tokens of a block, which go to a list of the job in one go.
template <int kRoom>
struct Found {
  uint32_t count, place;
  uint64_t tokens[kRoom];
};

// which: of four neighbouring tokens; called in all lanes of a warp at once.
template <int kRoom>
__device__ __forceinline__ void find(Found<kRoom>& found, uint32_t which, int32_t id, const float (&logits)[4]) {
  if (!__any_sync(0xffffffffu, which != 0)) return;
  const uint32_t own = __popc(which);
  uint32_t upto = own;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += other;
  }
  uint32_t place = 0;
  if (lane == 31) place = atomicAdd(&found.count, upto);
  place = __shfl_sync(0xffffffffu, place, 31) + upto - own;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if ((which >> i & 1) == 0) continue;
    if (place < kRoom) found.tokens[place] = token_of(logits[i], id + i);
    ++place;
  }
}

// Of a list that has no room for all nothing is looked at but that.
template <int kRoom>
__device__ void append(Found<kRoom>& found, uint32_t* listed, uint64_t* list) {
  __syncthreads();
  if (threadIdx.x == 0) found.place = found.count == 0 ? kRoom : atomicAdd(listed, found.count);
  __syncthreads();
  const uint32_t place = found.place, count = found.count;
  if (place > kRoom || count > kRoom - place) return;
  for (uint32_t i = threadIdx.x; i < count; i += kPieceThreads) list[place + i] = found.tokens[i];
}

struct Shared {
  PlanSpace plan;
  PieceCut cuts[kPieceWarps];
  uint32_t greatest[kMostPieces];
  float least_best;
  union {  // the latter behind the former
    Found<kListed> edge;
    Found<kMayBest> may_best;
  };
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

__device__ __forceinline__ void cut_span(Shared& s, const Span& span, const float4& first, const float* x, int32_t vocab, const Weights& weights,
                                         const Bins& bins, const Plan& plan, float floor) {
  const Band band(weights, bins, plan.edge, plan.edge_end);
  const uint32_t wide = static_cast<uint32_t>(plan.edge_end - plan.edge), kept = static_cast<uint32_t>(plan.inside_end - plan.inside);
  PieceCut cut{};
  cut.least = ~0u;
  span.each_four(first, x, vocab, [&](int32_t id, const float4& v) {
    const float logits[4] = {v.x, v.y, v.z, v.w};
    uint32_t edge = 0;
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
        edge |= 1u << i;
      }
    }
    find(s.edge, edge, id, logits);
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
  if (threadIdx.x == 0) s.edge.count = 0;
  const bool looks = job.kind != kJobNone && !poisoned(a, job);
  const int32_t candidates = min(job.top_n, a.vocab);
  const float* const raw = raw_row(a, job);
  const float* const x = processed_row(k, index, rules, raw);
  float4 first_raw{}, first_x{};
  RowTop top{};
  if (looks) {
    if (candidates > 0) first_raw = span.first_four(raw, a.vocab);
    if (rules.filtered()) first_x = span.first_four(x, a.vocab);
    top = row_top(k, index);
  }
  grid_wait();
  grid_trigger();
  if (job.kind == kJobNone) return;
  const bool ok = looks && status_of(job, top) == MR_ROW_OK, writes = blockIdx.x == 0 && threadIdx.x == 0;
  if (writes) a.results[index].rank = ok ? 1 : 0;  // choose adds to it
  if (!ok) return;
  if (rules.filtered()) {
    const Weights weights(top.processed, p.temperature);
    const Bins bins(weights, top.least);
    const Plan plan = make_plan(s.plan, k, index, rules, p, bins);
    if (writes) k.space.plans[index] = plan;
    if (plan.mode != kWholeRow) {
      cut_span(s, span, first_x, x, a.vocab, weights, bins, plan, p.min_p * kWeightUnit);
      append(s.edge, k.space.listed + index * 2, k.space.edges + static_cast<int64_t>(index) * kListed);
      write_cuts(k, index, s);
    }
  }
  if (candidates <= 0) return;
  __syncthreads();
  if (threadIdx.x == 0) s.may_best.count = 0;
  __syncthreads();
  const float least = least_of_best(s, k, index, candidates);
  span.each_four(first_raw, raw, a.vocab, [&](int32_t id, const float4& v) {
    const float logits[4] = {v.x, v.y, v.z, v.w};
    uint32_t which = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) which |= logits[i] >= least && id + i < min(span.end, a.vocab) ? 1u << i : 0;
    find(s.may_best, which, id, logits);
  });
  append(s.may_best, k.space.listed + index * 2 + 1, k.space.may_best + static_cast<int64_t>(index) * kMayBest);
}

}  // namespace

cudaError_t launch_sampler_gather(const SampleKernelArgs& k, const Stream& on) {
  const dim3 grid(static_cast<unsigned>((k.pieces + (1 << k.piece_bits) - 1) >> k.piece_bits), static_cast<unsigned>(k.a.job_count));
  return launch(on, grid, dim3(kPieceThreads), 0, gather, k);
}

}  // namespace mr::cuda
