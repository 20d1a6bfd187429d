// sampler_row: one job of the sampler as its kernels see it: where its numbers lie, which rules apply, and the order of tokens.
//
// A row of logits is cut into at most kMostPieces pieces, whose borders depend on the vocabulary alone. The kernels:
//   scan    per piece: greatest logit, NaN; writes the processed logits of rows with a mask, an allowed or a suppressed
//           list, biases or penalties.
//   weigh   per piece: sums of exponentials and masses; per row: a histogram over the distance to the greatest logit, where
//           a filter applies.
//   gather  finds by the histogram which bins are kept and in which the filter's bound lies; per piece: masses of the
//           former; lists the tokens of the latter, and those that may be candidates.
//   choose  the token, its logprob, rank and candidates.
// The first three take several pieces a block where jobs are many; no result depends on that. Jobs and slot parameters are
// read before the dependency wait: copies and kernels before the predecessor write them (launch.h). So are raw logits by all but
// scan, what scan wrote by gather and choose, and what weigh wrote by choose.
#pragma once

#include <cmath>

#include "kernels/math.cuh"
#include "kernels/sampler.h"

namespace mr::cuda {

constexpr int kMostPieces = 128;
constexpr int kPieceThreads = 256;
constexpr int kPieceWarps = kPieceThreads / 32;
constexpr int kBins = 512;       // of the distance to the greatest
constexpr int kListed = 4096;    // tokens of a row in whose bins a bound lies, as far as they are listed
constexpr int kMayBest = 1024;   // tokens of a row that may be candidates, as far as they are listed

struct alignas(16) PieceTop {
  float raw, processed;  // greatest; NaN in raw marks a piece with NaN
  float least;           // least finite processed logit, where filters apply; +inf where there is none
  float reserved;
};
struct PieceSum {
  uint64_t exponentials;  // of raw logits, in units of 2^-44
  uint64_t mass;          // of the tokens that may be drawn, where no filter cuts
  uint64_t surprise;      // mass * distance in units of 2^-46, where typical-p is the first filter
};
struct PieceCut {
  uint64_t mass;             // of its tokens in the bins that are kept
  uint32_t count;            // of its tokens in the bins where the bound lies
  uint32_t least, greatest;  // of their logits, as ascending()
  uint32_t reserved;
};

// What the first filter of a row comes to.
enum : int32_t {
  kKeepsFew = 1,  // all tokens that it may keep are listed
  kCuts = 2,      // tokens of bins [inside, inside_end) are kept, the bound lies among those of the edge: [edge, edge_end) without these
  kWholeRow = 3,  // it must look at all tokens
};
struct Plan {
  int32_t mode;
  int32_t inside, inside_end, edge, edge_end;
  int32_t equal;              // bool: all tokens that have a mass have the same, and are of the edge; left is what all filters keep of them
  uint64_t left;              // what the tokens of the edge must reach, of masses or of tokens
  double log_total, entropy;  // where typical-p cuts
};

// The workspace, laid out by sampler_workspace.
struct SamplerSpace {
  PieceTop* tops;      // (jobs, kMostPieces), as the next two
  PieceSum* sums;
  PieceCut* cuts;
  Plan* plans;         // (jobs)
  uint32_t* listed;    // (jobs, 2)  tokens of the next two
  uint64_t* edges;     // (jobs, kListed)  a token's logit above its id
  uint64_t* may_best;  // (jobs, kMayBest) raw logits above ids
  uint64_t* bins;      // (jobs, kBins)  masses; tokens where top-k is the first filter
  float* processed;    // (jobs, stride)
  int64_t stride;      // vocab rounded up to a multiple of 4
};

struct SampleKernelArgs {
  SampleArgs a;
  SamplerSpace space;
  int32_t piece;       // tokens of a piece, a multiple of 4
  int32_t pieces;
  int32_t piece_bits;  // a block of scan, weigh and gather takes 1 << piece_bits pieces; at most kPieceWarps
};

// Which rules apply to a job.
struct Rules {
  bool processed;  // its processed logits are not the raw ones
  bool penalised;
  bool suppressed;
  bool draws;      // temperature > 0
  bool top_k, typical, top_p;

  __device__ __forceinline__ bool filtered() const { return top_k || typical || top_p; }
};

__device__ __forceinline__ Rules rules_of(const SampleArgs& a, const SampleJob& job, const SlotParams& p) {
  Rules r{};
  if (job.kind != kJobSample) return r;
  r.penalised = p.penalty_window != 0 &&
                (p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0);
  r.suppressed = p.has_suppressed && job.position - p.prompt_length < p.min_tokens;
  r.processed = r.penalised || p.bias_count > 0 || r.suppressed || !p.all_allowed || job.mask_offset >= 0;
  r.draws = p.temperature > 0;
  r.top_k = r.draws && p.top_k > 0 && p.top_k < a.vocab;
  r.typical = r.draws && p.typical_p < 1;
  r.top_p = r.draws && p.top_p < 1;
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

// Bits that ascend with x, which is not NaN; -0 equals 0.
__device__ __forceinline__ uint32_t ascending(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float from_ascending(uint32_t bits) {
  return __uint_as_float(bits ^ ((bits >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

// A key ascends for descending x, then for ascending id: the best token has the least.
constexpr int kIdBits = 18;
constexpr uint64_t kNoKey = ~0ull;
__device__ __forceinline__ uint64_t best_first(float x, int32_t id) {
  return static_cast<uint64_t>(~ascending(x)) << kIdBits | static_cast<uint32_t>(id);
}
__device__ __forceinline__ float value_of(uint64_t key) { return from_ascending(~static_cast<uint32_t>(key >> kIdBits)); }
__device__ __forceinline__ int32_t id_of(uint64_t key) { return static_cast<int32_t>(key & ((1u << kIdBits) - 1)); }

// A token of a list: its logit above its id.
__device__ __forceinline__ uint64_t token_of(float x, int32_t id) {
  return static_cast<uint64_t>(__float_as_uint(x)) << 32 | static_cast<uint32_t>(id);
}
__device__ __forceinline__ float logit_of(uint64_t token) { return __uint_as_float(static_cast<uint32_t>(token >> 32)); }
__device__ __forceinline__ int32_t token_id(uint64_t token) { return static_cast<int32_t>(token & 0xffffffffu); }

__device__ __forceinline__ const float* processed_row(const SampleKernelArgs& k, int32_t index, const Rules& rules,
                                                      const float* raw) {
  return rules.processed ? k.space.processed + index * k.space.stride : raw;
}

// Four tokens from `id` on, a multiple of 4. What is beyond the row is -inf.
__device__ __forceinline__ float4 four_of(const float* row, int32_t id, int32_t vocab) {
  float4 v = *reinterpret_cast<const float4*>(row + id);
  if (id + 3 >= vocab) {
    v.w = -INFINITY;
    if (id + 2 >= vocab) v.z = -INFINITY;
    if (id + 1 >= vocab) v.y = -INFINITY;
  }
  return v;
}

// The tokens of one warp of scan, weigh and gather: of one piece, which it shares with neighbouring warps of its block.
struct Span {
  int32_t piece, begin, end;

  __device__ __forceinline__ explicit Span(const SampleKernelArgs& k) {
    const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), share_bits = 3 - k.piece_bits, sharing = 1 << share_bits;
    static_assert(kPieceWarps == 1 << 3, "a warp has a piece or shares one");
    piece = (static_cast<int32_t>(blockIdx.x) << k.piece_bits) + (warp >> share_bits);
    const int32_t each = ((k.piece / 4 + sharing - 1) >> share_bits) * 4;
    const int32_t last = min(k.a.vocab, (piece + 1) * k.piece);
    begin = min(last, piece * k.piece + (warp & (sharing - 1)) * each);
    end = min(last, begin + each);
  }
  // This lane's first four tokens.
  __device__ __forceinline__ float4 first_four(const float* row, int32_t vocab) const { return four_at(row, begin, vocab); }

  // Calls f(id, logits) for fours of tokens in all lanes at once, where those beyond the span are -inf; first: as above. The
  // next are asked for before one is worked on.
  template <class F>
  __device__ __forceinline__ void each_four(const float4& first, const float* row, int32_t vocab, F f) const {
    float4 next = first;
#pragma unroll 1
    for (int32_t round = begin; round < end; round += 128) {
      const float4 v = next;
      next = four_at(row, round + 128, vocab);
      f(round + static_cast<int32_t>(threadIdx.x % 32) * 4, v);
    }
  }

 private:
  __device__ __forceinline__ float4 four_at(const float* row, int32_t round, int32_t vocab) const {
    const int32_t id = round + static_cast<int32_t>(threadIdx.x % 32) * 4;
    return id < end ? four_of(row, id, vocab) : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  }
};

// Piece i of this block.
__device__ __forceinline__ int32_t block_piece(const SampleKernelArgs& k, int32_t i) {
  return (static_cast<int32_t>(blockIdx.x) << k.piece_bits) + i;
}

// Greatest logits of a job from its pieces, in every thread; each warp reads them for itself.
struct RowTop {
  bool nan;
  float raw, processed, least;
};
__device__ __forceinline__ RowTop row_top(const SampleKernelArgs& k, int32_t job) {
  uint32_t raw = 0, processed = 0, least = ~0u;
  bool nan = false;
  for (int i = 0; i < kMostPieces / 32; ++i) {
    const int32_t piece = i * 32 + static_cast<int32_t>(threadIdx.x % 32);
    if (piece >= k.pieces) continue;
    const PieceTop top = k.space.tops[static_cast<int64_t>(job) * kMostPieces + piece];
    nan = nan || isnan(top.raw);
    raw = max(raw, ascending(isnan(top.raw) ? 0.0f : top.raw));
    processed = max(processed, ascending(top.processed));
    least = min(least, ascending(top.least));
  }
  return RowTop{__any_sync(0xffffffffu, nan) != 0, from_ascending(__reduce_max_sync(0xffffffffu, raw)),
                from_ascending(__reduce_max_sync(0xffffffffu, processed)), from_ascending(__reduce_min_sync(0xffffffffu, least))};
}

// The status of a job that is not poisoned, whose row may be looked at further where it is MR_ROW_OK.
__device__ __forceinline__ int32_t status_of(const SampleJob& job, const RowTop& top) {
  if (top.nan) return MR_ROW_NAN;
  return top.raw == -INFINITY || (job.kind == kJobSample && top.processed == -INFINITY) ? MR_ROW_EMPTY : MR_ROW_OK;
}

__device__ __forceinline__ uint64_t warp_sum_u64(uint64_t x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

// Running sums over the lanes of a warp.
__device__ __forceinline__ uint64_t warp_running(uint64_t x) {
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, x, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) x += other;
  }
  return x;
}

// The kernels' launches, in this order.
cudaError_t launch_sampler_scan(const SampleKernelArgs& k, const Stream& on);
cudaError_t launch_sampler_weigh(const SampleKernelArgs& k, const Stream& on);
cudaError_t launch_sampler_gather(const SampleKernelArgs& k, const Stream& on);
cudaError_t launch_sampler_choose(const SampleKernelArgs& k, const Stream& on);

}  // namespace mr::cuda
