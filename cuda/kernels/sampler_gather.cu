// sampler, kernel gather: what the first filter of a row keeps whole, by piece, and the few tokens among which its bound lies;
// and the few tokens that may be candidates.
//
// The n best tokens lie within the n pieces that have the greatest greatest logits, so that none is below the least of those.
#include "kernels/sampler_found.cuh"
#include "kernels/sampler_plan.cuh"

namespace mr::cuda {
namespace {

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
    least = w.top - (static_cast<float>(end) - 0.5f) * width - slack - static_cast<float>(end) * width * 1e-6f;
    greatest = w.top - (static_cast<float>(begin) - 0.5f) * width + slack + static_cast<float>(begin) * width * 1e-6f;
  }
};

// Tokens of a warp that are worked on 32 at once, so that what few tokens need costs little.
struct Pending {
  uint64_t tokens[32 + 128];
};

// What a plan makes of a warp's tokens, in parts.
struct Cutter {
  Shared& s;
  const Weights& weights;
  const Bins& bins;
  const Plan& plan;
  float floor;
  PieceCut cut;

  __device__ __forceinline__ void meet_edge(float logit) {
    ++cut.count;
    cut.least = min(cut.least, ascending(logit));
    cut.greatest = max(cut.greatest, ascending(logit));
  }
  // One token a lane, where `is`; in all lanes at once.
  __device__ __forceinline__ void take(bool is, uint64_t token) {
    const float logit = logit_of(token);
    const float distance = weights.distance(below(logit, weights.top)), weight = weight_at(distance);
    const int32_t bin = static_cast<int32_t>(bins.bin(distance));
    const uint64_t mass = mass_of(weight);
    is = is && bin >= plan.edge && bin < plan.edge_end;
    const bool inside = bin >= plan.inside && bin < plan.inside_end, edge = is && !inside && mass != 0;
    if (is && inside && weight >= floor) cut.mass += mass;
    if (edge) meet_edge(logit);
    find(s.edge, edge, token_id(token), logit);
  }
};

__device__ __forceinline__ void cut_span(Shared& s, Pending& pending, const Span& span, const float4& first, const float* x,
                                         int32_t vocab, const Weights& weights, const Bins& bins, const Plan& plan, float floor) {
  const Band band(weights, bins, plan.edge, plan.edge_end);
  Cutter cutter{s, weights, bins, plan, floor, PieceCut{0, 0, ~0u, 0, 0}};
  const uint32_t lane = threadIdx.x % 32, before = (1u << lane) - 1;
  uint32_t waiting = 0;
  const auto look = [&](int32_t id, const float4& v) {
    const float logits[4] = {v.x, v.y, v.z, v.w};
    bool may[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) may[i] = logits[i] >= band.least && logits[i] <= band.greatest;
    if (!__any_sync(0xffffffffu, may[0] || may[1] || may[2] || may[3])) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t which = __ballot_sync(0xffffffffu, may[i]), at = waiting + __popc(which & before);
      if (may[i]) pending.tokens[at] = token_of(logits[i], id + i);
      waiting += __popc(which);
    }
    __syncwarp();
#pragma unroll 1
    while (waiting >= 32) {
      waiting -= 32;
      cutter.take(true, pending.tokens[waiting + lane]);
    }
    __syncwarp();
  };
  const auto look_at_equals = [&](int32_t id, const float4& v) {
    const float logits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool edge = logits[i] > -INFINITY;
      if (edge) cutter.meet_edge(logits[i]);
      if (plan.mode == kKeepsFew) find(s.edge, edge, id + i, logits[i]);
    }
  };
  if (plan.equal) span.each_four(first, x, vocab, look_at_equals);
  else span.each_four(first, x, vocab, look);
  if (waiting > 0) cutter.take(lane < waiting, lane < waiting ? pending.tokens[lane] : 0);
  PieceCut& cut = cutter.cut;
  cut.mass = warp_sum_u64(cut.mass);
  cut.count = __reduce_add_sync(0xffffffffu, cut.count);
  cut.least = __reduce_min_sync(0xffffffffu, cut.least);
  cut.greatest = __reduce_max_sync(0xffffffffu, cut.greatest);
  if (lane == 0) s.cuts[threadIdx.x / 32] = cut;
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

__global__ void __launch_bounds__(kPieceThreads, 4) gather(const __grid_constant__ SampleKernelArgs k) {
  __shared__ __align__(16) Shared s;
  __shared__ Pending pending[kPieceWarps];
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
      cut_span(s, pending[threadIdx.x / 32], span, first_x, x, a.vocab, weights, bins, plan, p.min_p * kWeightUnit);
      append(s.edge, k.space.listed + index * 2, k.space.edges + static_cast<int64_t>(index) * kListed);
      write_cuts(k, index, s);
    }
  }
  if (candidates <= 0) return;
  __syncthreads();
  if (threadIdx.x == 0) s.may_best.count = 0;
  __syncthreads();
  const float least = least_of_best(s, k, index, candidates);
  if (least == top.raw) return;  // choose finds those by themselves
  span.each_four(first_raw, raw, a.vocab, [&](int32_t id, const float4& v) {
    const float logits[4] = {v.x, v.y, v.z, v.w};
    if (!__any_sync(0xffffffffu, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)) >= least)) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) find(s.may_best, logits[i] >= least && id + i < min(span.end, a.vocab), id + i, logits[i]);
  });
  append(s.may_best, k.space.listed + index * 2 + 1, k.space.may_best + static_cast<int64_t>(index) * kMayBest);
}

}  // namespace

cudaError_t launch_sampler_gather(const SampleKernelArgs& k, const Stream& on) {
  return launch(on, piece_grid(k), dim3(kPieceThreads), 0, gather, k);
}

}  // namespace mr::cuda
