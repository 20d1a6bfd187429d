// sampler_row: one job of the sampler as its kernels see it: where its numbers lie, which rules apply, and the integers
// that sums are made of.
//
// A row of logits is cut into pieces of kPiece tokens, whose borders depend on the vocabulary alone. The three kernels:
//   scan    per piece: greatest logit, NaN; writes the processed logits of rows with a mask, an allowed or a suppressed
//           list, biases or penalties.
//   weigh   per piece: sum of exponentials; masses of the tokens that may be drawn, or their histogram over the distance
//           to the greatest, from which filters find what they must look at.
//   choose  per job: the token, its logprob, rank and candidates.
// Jobs and slot parameters are read before the dependency wait: copies and kernels before the predecessor write them (launch.h).
#pragma once

#include <cmath>

#include "kernels/math.cuh"
#include "kernels/sampler.h"

namespace mr::cuda {

constexpr int kPiece = 2048;         // tokens of a piece
constexpr int kPieceThreads = 256;   // 8 neighbouring tokens each
constexpr int kMostPieces = (1 << 18) / kPiece;
constexpr int kBins = 256;           // of the distance to the greatest, each 1/8 wide

struct PieceTop {
  float raw, processed;
  int32_t raw_id, processed_id;  // lowest of the greatest
};
struct PieceSum {
  uint64_t exponentials;  // sum of exp(logit - greatest) in units of 2^-44; of infinite logits where those are greatest
  uint64_t mass;          // of the tokens that may be drawn, where no filter applies
};

// The workspace, laid out by sampler_workspace.
struct SamplerSpace {
  PieceTop* tops;        // (jobs, pieces); a NaN in raw marks a piece with NaN
  PieceSum* sums;        // (jobs, pieces)
  uint64_t* bin_mass;    // (jobs, kBins)  zero between launches, like the next two
  uint32_t* bin_count;   // (jobs, kBins)
  uint32_t* raw_count;   // (jobs, kBins)
  float* processed;      // (jobs, stride)
  int64_t stride;        // vocab rounded up to a multiple of 4
  int32_t pieces;
};

struct SampleKernelArgs {
  SampleArgs a;
  SamplerSpace space;
};

// Which rules apply to a job.
struct Rules {
  bool processed;  // its processed logits are not the raw ones
  bool penalised;
  bool suppressed;
  bool draws;      // temperature > 0
  bool filtered;   // top-k, typical-p or top-p applies
};

__device__ __forceinline__ Rules rules_of(const SampleArgs& a, const SampleJob& job, const SlotParams& p) {
  Rules r{};
  if (job.kind != kJobSample) return r;
  r.penalised = p.penalty_window != 0 &&
                (p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0);
  r.suppressed = p.has_suppressed && job.position - p.prompt_length < p.min_tokens;
  r.processed = r.penalised || p.bias_count > 0 || r.suppressed || !p.all_allowed || job.mask_offset >= 0;
  r.draws = p.temperature > 0;
  r.filtered = r.draws && ((p.top_k > 0 && p.top_k < a.vocab) || p.typical_p < 1 || p.top_p < 1);
  return r;
}

// NaN by order: the logits are not looked at.
__device__ __forceinline__ bool poisoned(const SampleArgs& a, const SampleJob& job) {
  return (job.flags & kJobNanFault) != 0 || (a.poison != nullptr && a.poison[job.row] != MR_ROW_OK);
}

__device__ __forceinline__ SlotParams params_of(const SampleArgs& a, const SampleJob& job) {
  return job.kind == kJobSample ? a.slots.params[job.slot] : SlotParams{};
}

__device__ __forceinline__ const float* raw_row(const SampleArgs& a, const SampleJob& job) {
  return a.logits + job.logits_row * a.logits_stride;
}

// The least normal number bounds the temperature from below.
__device__ __forceinline__ float temperature_of(const SlotParams& p) { return fmaxf(p.temperature, 1.17549435e-38f); }

__device__ __forceinline__ float weight_of(float x, float top, float temperature) {
  return x == top ? 1.0f : exp_f32((x - top) / temperature);
}

// weight * 2^40, to the nearest integer, ties to even: the product is exact.
__device__ __forceinline__ uint64_t mass_of(float weight) { return __float2ull_rn(weight * 1099511627776.0f); }

// Bin of a token below the greatest by `distance` >= 0 in units of the temperature; greater tokens have lower bins.
__device__ __forceinline__ int bin_of(float distance) { return static_cast<int>(fminf(distance * 8.0f, kBins - 1.0f)); }

// Ascending for descending x, then ascending id.
__device__ __forceinline__ uint64_t best_first(float x, int32_t id) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 equals 0
  const uint32_t ascending = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return (static_cast<uint64_t>(~ascending) << 32) | static_cast<uint32_t>(id);
}

// The greater value, the lower id among equals. Values are not NaN.
__device__ __forceinline__ void take_best(float& x, int32_t& id, float other, int32_t other_id) {
  if (other > x || (other == x && other_id < id)) {
    x = other;
    id = other_id;
  }
}

// In every thread of the block the best of all threads' values. scratch: 32 entries.
struct Best {
  float x;
  int32_t id;
};
__device__ __forceinline__ Best block_best(float x, int32_t id, Best* scratch) {
  for (int lane = 16; lane > 0; lane /= 2)
    take_best(x, id, __shfl_xor_sync(0xffffffffu, x, lane), __shfl_xor_sync(0xffffffffu, id, lane));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = Best{x, id};
  __syncthreads();
  Best best = scratch[0];
  for (int w = 1; w < static_cast<int>(blockDim.x) / 32; ++w) take_best(best.x, best.id, scratch[w].x, scratch[w].id);
  __syncthreads();
  return best;
}

__device__ __forceinline__ uint64_t block_sum_u64(uint64_t x, uint64_t* scratch) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  uint64_t sum = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) sum += scratch[w];
  __syncthreads();
  return sum;
}

// Greatest logits of a job from its pieces, in every thread of the block.
struct RowTop {
  bool nan;
  float raw, processed;
  int32_t raw_id, processed_id;
};
__device__ __forceinline__ RowTop row_top(const SampleKernelArgs& k, int32_t job, const Rules& rules, Best* scratch) {
  float raw = -INFINITY, processed = -INFINITY;
  int32_t raw_id = 0x7fffffff, processed_id = 0x7fffffff;
  bool nan = false;
  for (int32_t i = threadIdx.x; i < k.space.pieces; i += blockDim.x) {
    const PieceTop top = k.space.tops[static_cast<int64_t>(job) * k.space.pieces + i];
    nan = nan || isnan(top.raw);
    if (!isnan(top.raw)) take_best(raw, raw_id, top.raw, top.raw_id);
    take_best(processed, processed_id, top.processed, top.processed_id);
  }
  RowTop row;
  row.nan = __syncthreads_or(nan);
  const Best a = block_best(raw, raw_id, scratch);
  row.raw = row.processed = a.x;
  row.raw_id = row.processed_id = a.id;
  if (rules.processed) {
    const Best b = block_best(processed, processed_id, scratch);
    row.processed = b.x;
    row.processed_id = b.id;
  }
  return row;
}

// The kernels' launches, in this order.
cudaError_t launch_sampler_scan(const SampleKernelArgs& k, const Stream& on);
cudaError_t launch_sampler_weigh(const SampleKernelArgs& k, const Stream& on);
cudaError_t launch_sampler_choose(const SampleKernelArgs& k, const Stream& on);

}  // namespace mr::cuda
