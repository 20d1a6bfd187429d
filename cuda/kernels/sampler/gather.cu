// sampler, kernel gather: the masses that the first filter of a row keeps for certain, by piece; the few tokens among
// which the filter's bound lies; and the few tokens that may be candidates.
//
// The n best tokens are in the n pieces with the highest maxima, so none of them is below the least of these maxima.
#include "kernels/instructions.cuh"
#include "kernels/sampler/found.cuh"
#include "kernels/sampler/plan.cuh"

namespace mr::cuda {
namespace {

struct Shared {
  PlanSpace plan;
  PieceCut cuts[kBlockParts];
  uint32_t greatest[kMostPieces];
  float least_best;
};

// Band is bounds on the logits of bins [begin, end). They need not be exact, because the bin of each token is then
// checked.
struct Band {
  float least, greatest;

  __device__ Band(const Weights& w, const Bins& bins, int32_t begin, int32_t end) : least(-INFINITY), greatest(INFINITY) {
    if (isinf(w.top) || !(w.temperature > 1e-9f && w.temperature < 1e9f) || !(bins.most > 1e-6f)) return;
    const float width = w.temperature / bins.scale, slack = 0.02f * width + fabsf(w.top) * 1e-6f;
    least = w.top - (static_cast<float>(end) - 0.5f) * width - slack - static_cast<float>(end) * width * 1e-6f;
    greatest = w.top - (static_cast<float>(begin) - 0.5f) * width + slack + static_cast<float>(begin) * width * 1e-6f;
  }
};

// Pending queues a warp's tokens and processes 32 at once, so that work which few tokens need costs little.
class Pending {
 public:
  static constexpr int kRoom = 32 + 128;

  // tokens: in shared memory. The address comes from another lane, so that the compiler keeps it instead of recomputing
  // it.
  __device__ __forceinline__ explicit Pending(const uint64_t* tokens)
      : tokens_(__shfl_sync(0xffffffffu, shared_address(tokens), 0)) {}
  __device__ __forceinline__ void put(uint32_t at, int32_t id, float logit) const {
    store_shared8(tokens_ + at * 8, uint2{static_cast<uint32_t>(id), __float_as_uint(logit)});
  }
  __device__ __forceinline__ uint64_t get(uint32_t at) const {
    const uint2 token = load_shared8(tokens_ + at * 8);
    return token_of(__uint_as_float(token.y), static_cast<int32_t>(token.x));
  }

 private:
  uint32_t tokens_;
};

// Cutter adds up the masses that a plan keeps of a warp's tokens.
struct Cutter {
  const Weights& weights;
  const Bins& bins;
  const Plan& plan;
  float floor;
  Found& edge;
  PieceCut cut;

  __device__ __forceinline__ void meet_edge(float logit) {
    ++cut.count;
    cut.least = min(cut.least, ascending(logit));
    cut.greatest = max(cut.greatest, ascending(logit));
  }
  // Processes one token of each lane with `is`; all lanes must call it.
  __device__ __forceinline__ void take(bool is, uint64_t token) {
    const float logit = logit_of(token);
    const float distance = weights.distance(below(logit, weights.top)), weight = weight_at(distance);
    const int32_t bin = static_cast<int32_t>(bins.bin(distance));
    const uint64_t mass = mass_of(weight);
    is = is && bin >= plan.edge && bin < plan.edge_end;
    const bool inside = bin >= plan.inside && bin < plan.inside_end, of_edge = is && !inside && mass != 0;
    if (is && inside && weight >= floor) cut.mass += mass;
    if (of_edge) meet_edge(logit);
    edge.list(of_edge, token);
  }
};

// Processes a warp's tokens of the row x, none of which is above `most`.
__device__ __forceinline__ PieceCut cut_span(const Pending& pending, const Span& span, const float4& first, const float* x,
                                             int32_t vocab, float most, const Weights& weights, const Bins& bins, const Plan& plan,
                                             float floor, Found& edge) {
  const Band band(weights, bins, plan.edge, plan.edge_end);
  Cutter cutter{weights, bins, plan, floor, edge, PieceCut{0, 0, ~0u, 0, 0}};
  if (!plan.equal && most < band.least) return cutter.cut;
  const uint32_t lane = threadIdx.x % 32, before = (1u << lane) - 1;
  uint32_t waiting = 0;
  const auto look = [&](int32_t id, const float4& v) {
    const float logits[4] = {v.x, v.y, v.z, v.w};
    bool may[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) may[i] = logits[i] >= band.least && logits[i] <= band.greatest;
    if (!__any_sync(0xffffffffu, may[0] || may[1] || may[2] || may[3])) return;
    uint32_t at = waiting;
#pragma unroll
    for (int i = 0; i < 4; ++i) at += __popc(__ballot_sync(0xffffffffu, may[i]) & before);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (may[i]) pending.put(at++, id + i, logits[i]);
    waiting = __shfl_sync(0xffffffffu, at, 31);
    __syncwarp();
#pragma unroll 1
    while (waiting >= 32) {
      waiting -= 32;
      cutter.take(true, pending.get(waiting + lane));
    }
    __syncwarp();
  };
  const auto look_at_equals = [&](int32_t id, const float4& v) {
    const float logits[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool of_edge = logits[i] > -INFINITY;
      if (of_edge) cutter.meet_edge(logits[i]);
      if (plan.mode == kKeepsFew) edge.list(of_edge, token_of(logits[i], id + i));
    }
  };
  if (plan.equal) span.each_four<2>(first, x, vocab, look_at_equals);
  else span.each_four<2>(first, x, vocab, look);
  if (waiting > 0) cutter.take(lane < waiting, lane < waiting ? pending.get(lane) : 0);
  __syncwarp();
  PieceCut cut = cutter.cut;
  cut.mass = warp_sum_u64(cut.mass);
  cut.count = __reduce_add_sync(0xffffffffu, cut.count);
  cut.least = __reduce_min_sync(0xffffffffu, cut.least);
  cut.greatest = __reduce_max_sync(0xffffffffu, cut.greatest);
  return cut;
}

__device__ __forceinline__ void write_cuts(const SampleKernelArgs& k, int32_t index, const Shared& s) {
  each_piece(k, [&](int32_t first, int32_t count, int32_t piece) {
    PieceCut all = s.cuts[first];
    for (int32_t i = first + 1; i < first + count; ++i) {
      all.mass += s.cuts[i].mass;
      all.count += s.cuts[i].count;
      all.least = min(all.least, s.cuts[i].least);
      all.greatest = max(all.greatest, s.cuts[i].greatest);
    }
    k.space.cuts[static_cast<int64_t>(index) * kMostPieces + piece] = all;
  });
}

// Returns a logit that none of the `count` best tokens is below.
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

// If a job neither filters nor wants candidates, there is nothing to do, and the kernel is short (launch.h) for it.
__global__ void __launch_bounds__(kPieceThreads, 4) gather(const __grid_constant__ SampleKernelArgs k) {
  __shared__ __align__(16) Shared s;
  __shared__ __align__(16) uint64_t pending[kPieceWarps][Pending::kRoom];
  const SampleArgs& a = k.a;
  const int32_t index = blockIdx.y;
  const SampleJob job = a.jobs[index];
  const SlotParams p = params_of(a, job);
  const Rules rules = rules_of(a, job, p);
  const int32_t candidates = min(job.top_n, a.vocab);
  if (job.kind == kJobNone || has_nan(a, job) || !(rules.filtered() || candidates > 0)) {
    grid_trigger();
    grid_wait();
    return;
  }
  const Span first_span(k, 0);
  const float* const raw = raw_row(a, job);
  const float* const x = processed_row(k, index, rules, raw);
  float4 first_raw{}, first_x{};
  if (candidates > 0) first_raw = first_span.first_four(raw, a.vocab);
  if (rules.filtered()) first_x = first_span.first_four(x, a.vocab);
  const RowTop top = row_top(k, index);
  grid_wait();
  grid_trigger();
  if (status_of(job, top) != MR_ROW_OK) return;
  const int32_t rounds = rounds_of(k);
  const PieceTop* const tops = k.space.tops + static_cast<int64_t>(index) * kMostPieces;
  if (rules.filtered()) {
    const Weights weights(top.processed, p.temperature);
    const Bins bins(weights, top.least);
    const Plan plan = make_plan(s.plan, k, index, rules, p, bins);
    if (blockIdx.x == 0 && threadIdx.x == 0) k.space.plans[index] = plan;
    if (plan.mode != kWholeRow) {
      const Pending waiting(pending[threadIdx.x / 32]);
      Found edge{k.space.listed + index * 2, k.space.edges + static_cast<int64_t>(index) * kListed, kListed};
#pragma unroll 1
      for (int32_t round = 0; round < rounds; ++round) {
        const Span span(k, round);
        if (round > 0) first_x = span.first_four(x, a.vocab);
        const float most = span.begin < span.end ? tops[span.piece].processed : -INFINITY;
        const PieceCut cut = cut_span(waiting, span, first_x, x, a.vocab, most, weights, bins, plan, p.min_p * kWeightUnit, edge);
        if (threadIdx.x % 32 == 0) s.cuts[span.part] = cut;
      }
      __syncthreads();
      write_cuts(k, index, s);
    }
  }
  if (candidates <= 0) return;
  const float least = least_of_best(s, k, index, candidates);
  if (least == top.raw) return;  // choose finds them without a list
  Found may_best{k.space.listed + index * 2 + 1, k.space.may_best + static_cast<int64_t>(index) * kMayBest, kMayBest};
#pragma unroll 1
  for (int32_t round = 0; round < rounds; ++round) {
    const Span span(k, round);
    if (span.begin >= span.end || tops[span.piece].raw < least) continue;
    if (round > 0) first_raw = span.first_four(raw, a.vocab);
    span.each_four<2>(first_raw, raw, a.vocab, [&](int32_t id, const float4& v) {
      const float logits[4] = {v.x, v.y, v.z, v.w};
      if (!__any_sync(0xffffffffu, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)) >= least)) return;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        may_best.list(logits[i] >= least && id + i < min(span.end, a.vocab), token_of(logits[i], id + i));
    });
  }
}

}  // namespace

cudaError_t launch_sampler_gather(const SampleKernelArgs& k, const Stream& on) {
  return launch(on, piece_grid(k), dim3(kPieceThreads), 0, gather, k);
}

}  // namespace mr::cuda
