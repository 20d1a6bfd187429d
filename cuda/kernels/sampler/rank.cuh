// sampler/rank: the rank of a token among the raw logits of its row, and the best tokens.
#pragma once

#include "kernels/sampler/cut.cuh"

namespace mr::cuda {

// Part is this block's part of a row. Its first tokens are loaded before it is known which token they are compared
// with.
class Part {
 public:
  __device__ __forceinline__ Part(const float* row, int32_t vocab) : row_(row), vocab_(vocab) {
    const int32_t blocks = static_cast<int32_t>(gridDim.x), part = (vocab + 4 * blocks - 1) / (4 * blocks) * 4;
    const int32_t begin = static_cast<int32_t>(blockIdx.x) * part;
    end_ = min(vocab, begin + part);
    first_ = begin + static_cast<int32_t>(threadIdx.x) * 4;
  }
  __device__ __forceinline__ void ask() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ahead_[i] = four_at(first_ + i * kStep);
  }

  // Counts tokens with a greater logit, or an equal one and a lower id, of this warp; the result is in lane 0. After
  // ask().
  __device__ __forceinline__ uint32_t count_better(int32_t token, float own) const {
    const float above = from_ascending(ascending(own) + 1);  // the next greater float, or NaN after infinity
    const int32_t own_four = token / 4 * 4;  // the four in which equal logits are partly better
    uint32_t better = 0;
    const auto look = [&](int32_t id, const float4& v) {
      const float least = id < own_four ? own : above;
      better += (v.x >= least ? 1 : 0) + (v.y >= least ? 1 : 0) + (v.z >= least ? 1 : 0) + (v.w >= least ? 1 : 0);
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) look(first_ + i * kStep, ahead_[i]);
#pragma unroll 1
    for (int32_t id = first_ + kAhead * kStep; id < end_; id += kAtOnce * kStep) {
      float4 fours[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) fours[i] = four_at(id + i * kStep);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) look(id + i * kStep, fours[i]);
    }
    if (own_four >= first_ && own_four < end_ && (own_four - first_) % kStep == 0) {
      const float4 v = four_at(own_four);
      better += (v.x == own && own_four < token ? 1 : 0) + (v.y == own && own_four + 1 < token ? 1 : 0) +
                (v.z == own && own_four + 2 < token ? 1 : 0);
    }
    return __reduce_add_sync(0xffffffffu, better);
  }

 private:
  static constexpr int kAhead = 2, kAtOnce = 4, kStep = 4 * kThreads;

  // Beyond the part it returns NaN, which is better than nothing.
  __device__ __forceinline__ float4 four_at(int32_t id) const {
    return id < end_ ? four_of(row_, id, vocab_) : float4{NAN, NAN, NAN, NAN};
  }

  const float* row_;
  int32_t vocab_, end_, first_;
  float4 ahead_[kAhead];
};

__device__ __forceinline__ float logprob_of(float logit, float top, double log_sum) {
  if (logit == top) return static_cast<float>(-log_sum);
  return static_cast<float>((static_cast<double>(logit) - static_cast<double>(top)) - log_sum);
}

struct BestSpace {
  uint32_t warps[kWarps];
  uint64_t keys[64];
  uint32_t count;  // of keys; 0 at first
};

// Returns which of 32 pieces, from `first` on, contain the row's greatest raw logit.
__device__ __forceinline__ uint32_t greatest_pieces(const SampleKernelArgs& k, int32_t index, int32_t first, float top) {
  const int32_t piece = first + static_cast<int32_t>(threadIdx.x % 32);
  const PieceTop* const tops = k.space.tops + static_cast<int64_t>(index) * kMostPieces;
  return __ballot_sync(0xffffffffu, piece < k.pieces && tops[piece].raw == top);
}

// Writes the `count` first tokens with the greatest logit; there must be that many.
__device__ __forceinline__ void first_greatest(BestSpace& s, const SampleKernelArgs& k, int32_t index, const float* row,
                                               int32_t count, float top, double log_sum, mr_candidate* out) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int32_t found = 0;
  for (int32_t first = 0; found < count && first < k.pieces; first += 32) {
    for (uint32_t pieces = greatest_pieces(k, index, first, top); found < count && pieces != 0; pieces &= pieces - 1) {
      const int32_t piece = first + __ffs(static_cast<int>(pieces)) - 1, end = min(k.a.vocab, (piece + 1) * k.piece);
      for (int32_t begin = piece * k.piece; found < count && begin < end; begin += 4 * kThreads) {
        const int32_t id = begin + static_cast<int32_t>(threadIdx.x) * 4;
        uint32_t own = 0;
        if (id < end) {
          const float4 v = four_of(row, id, k.a.vocab);
          own = (v.x == top ? 1u : 0u) | (v.y == top ? 2u : 0u) | (v.z == top ? 4u : 0u) | (v.w == top ? 8u : 0u);
        }
        int32_t upto = static_cast<int32_t>(warp_running(static_cast<uint64_t>(__popc(own))));
        __syncthreads();
        if (lane == 31) s.warps[warp] = static_cast<uint32_t>(upto);
        __syncthreads();
        int32_t before = 0, all = 0;
        for (int32_t w = 0; w < kWarps; ++w) {
          if (w == warp) before = all;
          all += static_cast<int32_t>(s.warps[w]);
        }
        int32_t place = found + before + upto - __popc(own);
        for (int32_t i = 0; i < 4; ++i) {
          if ((own >> i & 1) == 0) continue;
          if (place < count) out[place] = mr_candidate{id + i, logprob_of(top, top, log_sum)};
          ++place;
        }
        found += all;
      }
    }
  }
}

// Writes the `count` <= 64 best tokens by raw logit, best first. If gather's list was full, all tokens are read.
__device__ __forceinline__ void best_tokens(BestSpace& s, SelectSpace& select, const SampleKernelArgs& k, int32_t index,
                                            const float* row, int32_t count, float top, double log_sum, mr_candidate* out) {
  int32_t greatest = 0;  // pieces with the greatest logit
  for (int32_t first = 0; first < k.pieces; first += 32) greatest += __popc(greatest_pieces(k, index, first, top));
  if (greatest >= count) {
    first_greatest(s, k, index, row, count, top, log_sum, out);
    return;
  }
  const uint32_t listed = k.space.listed[index * 2 + 1];
  const uint64_t* const list = listed > kMayBest ? nullptr : k.space.may_best + static_cast<int64_t>(index) * kMayBest;
  const int32_t tokens = list == nullptr ? k.a.vocab : static_cast<int32_t>(listed);
  const auto each = [&](auto f) {
#pragma unroll 2
    for (int32_t i = threadIdx.x; i < tokens; i += kThreads)
      f(list == nullptr ? best_first(row[i], i) : best_first(logit_of(list[i]), token_id(list[i])), uint64_t{1});
  };
  const uint64_t limit = select_least(select, static_cast<uint64_t>(count), tokens, any_keys(), each);
  each([&](uint64_t key, uint64_t) {
    if (key > limit) return;
    const uint32_t at = atomicAdd(&s.count, 1u);
    if (at < 64) s.keys[at] = key;
  });
  __syncthreads();
  if (static_cast<int32_t>(threadIdx.x) >= count) return;
  const uint64_t key = s.keys[threadIdx.x];
  int32_t place = 0;
  for (int32_t i = 0; i < count; ++i) place += s.keys[i] < key ? 1 : 0;
  const int32_t id = id_of(key);
  out[place] = mr_candidate{id, logprob_of(row[id], top, log_sum)};
}

}  // namespace mr::cuda
