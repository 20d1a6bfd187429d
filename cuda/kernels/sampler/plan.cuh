// sampler/plan: decides from the histogram of a row which bins its first filter keeps, and in which bins its bound
// lies.
#pragma once

#include "kernels/sampler/weights.cuh"

namespace mr::cuda {

struct PlanSpace {
  uint64_t upto[kBins + 1];  // sums of the bins before each
  uint64_t warps[kPieceWarps];
  int32_t below_target[2];  // bins, or steps of a deviation, whose running sums stay below the target; kBins at first
};

// Computes s.upto from a job's bins.
__device__ __forceinline__ void sum_bins(PlanSpace& s, const uint64_t* bins) {
  static_assert(kBins == 2 * kPieceThreads, "two bins a thread");
  const int thread = threadIdx.x;
  const ulonglong2 own = reinterpret_cast<const ulonglong2*>(bins)[thread];
  uint64_t upto = warp_running(own.x + own.y);
  if (thread % 32 == 31) s.warps[thread / 32] = upto;
  if (thread < 2) s.below_target[thread] = kBins;
  __syncthreads();
  for (int w = 0; w < thread / 32; ++w) upto += s.warps[w];
  s.upto[2 * thread + 2] = upto;
  s.upto[2 * thread + 1] = upto - own.y;
  if (thread == 0) s.upto[0] = 0;
  __syncthreads();
}

// Filters by logit: keeps the bins before the one in which the running sum reaches the target.
__device__ __forceinline__ void cut_by_logit(PlanSpace& s, uint64_t target, Plan& plan) {
  const int bin = 2 * static_cast<int>(threadIdx.x);
  const uint64_t first = s.upto[bin], second = s.upto[bin + 1], last = s.upto[bin + 2];
  if (first < target && target <= last) s.below_target[0] = target <= second ? bin : bin + 1;
  __syncthreads();
  plan.inside = plan.edge = 0;
  plan.inside_end = s.below_target[0];
  plan.edge_end = min(kBins, plan.inside_end + 1);
  plan.left = target - s.upto[plan.inside_end];
}

// Typical-p: a token's deviation is how far its distance is from that of the mean. In units of bins, tokens of bin b
// deviate by at least |b - mean| - kHalf and at most |b - mean| + kHalf. The bound on deviations lies above the
// greatest one up to which the bins that it touches do not reach the target, and is at most the least one within which
// whole bins do.
__device__ __forceinline__ void cut_by_deviation(PlanSpace& s, uint64_t target, double mean, Plan& plan) {
  constexpr double kHalf = 0.52;  // half a bin, and room for rounding
  const auto range = [&](double deviation, int32_t& begin, int32_t& end) {
    begin = static_cast<int32_t>(fmax(0.0, ceil(mean - deviation)));
    end = max(begin, static_cast<int32_t>(fmin(static_cast<double>(kBins), floor(mean + deviation) + 1)));
  };
  const auto sum = [&](double deviation) {
    if (deviation < 0) return uint64_t{0};
    int32_t begin, end;
    range(deviation, begin, end);
    return s.upto[end] - s.upto[begin];
  };
  constexpr int kSteps = 2 * kBins + 4, kOfLane = (kSteps + 31) / 32;  // halves of a bin; sums ascend with them
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < 2) {
    const double more = warp == 0 ? kHalf : -kHalf;
    const auto short_of = [&](int step) { return __popc(__ballot_sync(0xffffffffu, sum(0.5 * step + more) < target)); };
    static_assert(kOfLane - 1 <= 32, "of the steps of a lane one is known");
    const int whole = kOfLane * short_of(lane * kOfLane + kOfLane - 1), steps = min(kSteps, whole + short_of(whole + lane));
    if (lane == 0) s.below_target[warp] = steps;
  }
  __syncthreads();
  const double low = 0.5 * (s.below_target[0] - 1) - kHalf;
  range(0.5 * s.below_target[1] + kHalf, plan.edge, plan.edge_end);
  plan.inside = plan.inside_end = plan.edge;
  if (low >= 0) range(low, plan.inside, plan.inside_end);
  plan.left = target - (s.upto[plan.inside_end] - s.upto[plan.inside]);
}

// Plans a row whose tokens all have the same mass, if any. Filters keep as many tokens as they would by mass, lowest
// ids first.
__device__ __forceinline__ void cut_equals(const PlanSpace& s, const Rules& rules, const SlotParams& p, Plan& plan) {
  const uint64_t mass = mass_of(kWeightUnit), all = rules.top_k ? s.upto[kBins] : s.upto[kBins] / mass;
  uint64_t left = all;
  if (rules.top_k) left = min(left, static_cast<uint64_t>(p.top_k));
  if (rules.typical) left = (share(p.typical_p, left * mass) + mass - 1) / mass;
  if (rules.top_p) left = (share(p.top_p, left * mass) + mass - 1) / mass;
  plan.mode = all <= kListed ? kKeepsFew : kCuts;
  plan.equal = 1;
  plan.edge_end = kBins;
  plan.left = left;
}

// Returns the plan of a job that filters, in every thread of the block.
__device__ __noinline__ Plan make_plan(PlanSpace& s, const SampleKernelArgs& k, int32_t index, const Rules& rules,
                                       const SlotParams& p, const Bins& bins) {
  Plan plan{};
  sum_bins(s, k.space.bins + static_cast<int64_t>(index) * kBins);
  const uint64_t total = s.upto[kBins];
  plan.mode = kCuts;
  if (bins.most == 0) {
    cut_equals(s, rules, p, plan);
  } else if (rules.top_k) {
    cut_by_logit(s, static_cast<uint64_t>(p.top_k), plan);
    if (s.upto[plan.edge_end] > kListed) return plan;
    plan.mode = kKeepsFew;
    plan.inside_end = 0;
  } else if (rules.typical) {
    uint64_t surprise = 0;
    const PieceSum* const sums = k.space.sums + static_cast<int64_t>(index) * kMostPieces;
    for (int i = 0; i < kMostPieces / 32; ++i) {
      const int32_t piece = i * 32 + static_cast<int32_t>(threadIdx.x % 32);
      if (piece < k.pieces) surprise += sums[piece].surprise;
    }
    surprise = warp_sum_u64(surprise);
    const double mean = static_cast<double>(surprise) * 0x1p-6 / static_cast<double>(total);
    plan.log_total = log_f64(static_cast<double>(total) * 0x1p-40);
    plan.entropy = plan.log_total + mean;
    if (bins.most >= 1e-6f) cut_by_deviation(s, share(p.typical_p, total), mean * static_cast<double>(bins.scale), plan);
    else plan.mode = kWholeRow;  // bins are narrower than the rounding error
  } else {
    cut_by_logit(s, share(p.top_p, total), plan);
  }
  return plan;
}

}  // namespace mr::cuda
