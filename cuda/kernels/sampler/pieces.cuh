// sampler/pieces: which tokens of a row each block and warp of scan, weigh and gather reads, and how pieces are summed.
#pragma once

#include "kernels/sampler/row.cuh"

namespace mr::cuda {

// Loads four tokens from `id` on, a multiple of 4. Tokens beyond the row are -inf.
__device__ __forceinline__ float4 four_of(const float* row, int32_t id, int32_t vocab) {
  float4 v = *reinterpret_cast<const float4*>(row + id);
  if (id + 3 >= vocab) {
    v.w = -INFINITY;
    if (id + 2 >= vocab) v.z = -INFINITY;
    if (id + 1 >= vocab) v.y = -INFINITY;
  }
  return v;
}

// Pieces that a warp of scan, weigh and gather processes one after another; or one piece is shared by neighbouring
// warps.
__device__ __forceinline__ int32_t rounds_of(const SampleKernelArgs& k) { return k.piece_bits > 3 ? 1 << (k.piece_bits - 3) : 1; }
__device__ __forceinline__ int32_t sharing_bits(const SampleKernelArgs& k) { return max(0, 3 - k.piece_bits); }

// Span is the tokens of one warp in a round: a part of its block's. Neighbouring parts are of one piece if warps share
// it.
struct Span {
  int32_t part, piece, begin, end;

  __device__ __forceinline__ Span(const SampleKernelArgs& k, int32_t round) {
    static_assert(kPieceWarps == 1 << 3, "a warp has pieces or shares one");
    const int32_t share_bits = sharing_bits(k), sharing = 1 << share_bits, warp = static_cast<int32_t>(threadIdx.x / 32);
    part = round * kPieceWarps + warp;
    piece = (static_cast<int32_t>(blockIdx.x) << k.piece_bits) + (part >> share_bits);
    const int32_t each = ((k.piece / 4 + sharing - 1) >> share_bits) * 4;
    const int32_t last = min(k.a.vocab, (piece + 1) * k.piece);
    begin = min(last, piece * k.piece + (warp & (sharing - 1)) * each);
    end = min(last, begin + each);
  }
  // Loads this lane's first four tokens; if the span is short, they may lie outside it.
  __device__ __forceinline__ float4 first_four(const float* row, int32_t vocab) const { return four_at(row, begin, vocab); }

  // Calls f(id, logits) for four tokens of each lane at once; tokens beyond the span are -inf. first: from first_four.
  // The next kAhead are loaded before one is processed: use two if processing takes little time.
  template <int kAhead, class F>
  __device__ __forceinline__ void each_four(const float4& first, const float* row, int32_t vocab, F f) const {
    static_assert(kAhead == 1 || kAhead == 2, "");
    float4 next = first, second{};
    if (kAhead == 2) second = four_at(row, begin + 128, vocab);
#pragma unroll 1
    for (int32_t round = begin; round < end; round += 128) {
      float4 v = next;
      if (kAhead == 2) next = second;
      (kAhead == 2 ? second : next) = four_at(row, round + 128 * kAhead, vocab);
      const int32_t id = round + static_cast<int32_t>(threadIdx.x % 32) * 4;
      if (round + 128 > end) {
        v.x = id < end ? v.x : -INFINITY;
        v.y = id + 1 < end ? v.y : -INFINITY;
        v.z = id + 2 < end ? v.z : -INFINITY;
        v.w = id + 3 < end ? v.w : -INFINITY;
      }
      f(id, v);
    }
  }

 private:
  // Loads this lane's tokens of a round, or the row's last ones if the round is past them.
  __device__ __forceinline__ float4 four_at(const float* row, int32_t round, int32_t vocab) const {
    const int32_t id = round + static_cast<int32_t>(threadIdx.x % 32) * 4;
    return *reinterpret_cast<const float4*>(row + min(id, (vocab - 1) / 4 * 4));
  }
};

inline dim3 piece_grid(const SampleKernelArgs& k) {
  return dim3(static_cast<unsigned>((k.pieces + (1 << k.piece_bits) - 1) >> k.piece_bits), static_cast<unsigned>(k.a.job_count));
}

// Calls f(first part, parts, piece) for each piece of the block, in one thread each.
template <class F>
__device__ __forceinline__ void each_piece(const SampleKernelArgs& k, F f) {
  const int32_t i = threadIdx.x, piece = (static_cast<int32_t>(blockIdx.x) << k.piece_bits) + i;
  if (i < 1 << k.piece_bits && piece < k.pieces) f(i << sharing_bits(k), 1 << sharing_bits(k), piece);
}

// RowTop is the greatest logits of a job over its pieces. Every thread has it; each warp reads the pieces by itself.
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
    // The kernel before last has written it, and there has been no wait since: from L2, where its writes are.
    const float4 words = __ldcg(reinterpret_cast<const float4*>(k.space.tops + static_cast<int64_t>(job) * kMostPieces + piece));
    const PieceTop top{words.x, words.y, words.z, words.w};
    nan = nan || isnan(top.raw);
    raw = max(raw, ascending(isnan(top.raw) ? 0.0f : top.raw));
    processed = max(processed, ascending(top.processed));
    least = min(least, ascending(top.least));
  }
  return RowTop{__any_sync(0xffffffffu, nan) != 0, from_ascending(__reduce_max_sync(0xffffffffu, raw)),
                from_ascending(__reduce_max_sync(0xffffffffu, processed)), from_ascending(__reduce_min_sync(0xffffffffu, least))};
}

// Returns the status of a job without a NaN flag. Its row may be read further only if it is MR_ROW_OK.
__device__ __forceinline__ int32_t status_of(const SampleJob& job, const RowTop& top) {
  if (top.nan) return MR_ROW_NAN;
  return top.raw == -INFINITY || (job.kind == kJobSample && top.processed == -INFINITY) ? MR_ROW_EMPTY : MR_ROW_OK;
}

// Sums over the lanes of a warp, in parts of 27 bits, because 32 of those fit a word.
__device__ __forceinline__ uint64_t warp_sum_u64(uint64_t x) {
  constexpr uint32_t kPart = (1u << 27) - 1;
  const uint32_t low = __reduce_add_sync(0xffffffffu, static_cast<uint32_t>(x) & kPart);
  const uint32_t middle = __reduce_add_sync(0xffffffffu, static_cast<uint32_t>(x >> 27) & kPart);
  const uint32_t high = __reduce_add_sync(0xffffffffu, static_cast<uint32_t>(x >> 54));
  return low + (static_cast<uint64_t>(middle) << 27) + (static_cast<uint64_t>(high) << 54);
}

// Inclusive prefix sum over the lanes of a warp.
__device__ __forceinline__ uint64_t warp_running(uint64_t x) {
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, x, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) x += other;
  }
  return x;
}

}  // namespace mr::cuda
