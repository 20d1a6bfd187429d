// decode_tile: what a tile of a decode product is, and how its eight segments of columns are joined and ended.
#pragma once

#include <type_traits>

#include "kernels/linear/decode_heads.cuh"
#include "kernels/linear/targets.cuh"

namespace mr::cuda {

// What a decode kernel is compiled for.
template <int32_t panels_, int32_t tokens_, int32_t units_, int32_t blocks_>
struct DecodeShape {
  static constexpr int32_t panels = panels_;
  static constexpr int32_t tokens = tokens_;  // of a tile; of 1, the rest of the tensor cores' 8 columns repeats it
  static constexpr int32_t units = units_;    // of a stage: 1, 2 or 4
  static constexpr int32_t blocks_per_sm = blocks_;  // registers are limited so that as many fit
  static constexpr int32_t warps = kSegments, threads = warps * 32;
  static constexpr int32_t rows = panels * kPanelRows;
  static_assert(tokens == 1 || tokens == 8);
  // Sums on their way to be joined: a plane a segment, in that a column a token, in floats.
  static constexpr int32_t join_stride = rows + 4, join_plane = tokens * join_stride;
  static constexpr int32_t join = kSegments * join_plane;
};

// KiB of shared memory of the multiprocessors that run machine code of a compute capability.
constexpr int32_t decode_room(int32_t capability) {
  return capability >= 120 ? 100 : capability >= 90 ? 228 : capability >= 86 ? 100 : 164;
}
#ifdef __CUDA_ARCH__
constexpr int32_t kDecodeRoom = decode_room(__CUDA_ARCH__ / 10);
#else
constexpr int32_t kDecodeRoom = 0;  // host code names the room
#endif

// bytes(room), room as a constant, of the machine code of a compute capability.
template <class F>
int32_t decode_bytes(int32_t capability, F&& bytes) {
  switch (decode_room(capability)) {
    case 228: return bytes(std::integral_constant<int32_t, 228>{});
    case 164: return bytes(std::integral_constant<int32_t, 164>{});
    default: return bytes(std::integral_constant<int32_t, 100>{});
  }
}

template <class A, class S>
struct DecodeTile {
  const DecodeParams& p;
  float* joins;  // two buffers of S::join: tiles alternate
  int32_t warp, lane;
  DecodeHeads heads;

  // Whether the block ends heads, which tiles of two panels do not.
  __device__ __forceinline__ bool ends_heads() const { return S::panels == 1 && p.end == ProductEnd::kHeads; }

  __device__ __forceinline__ int32_t tile_of(int32_t item) const { return p.token_tiles == 1 ? item : item / p.token_tiles; }
  __device__ __forceinline__ int32_t first_token(int32_t item) const {
    return p.token_tiles == 1 ? 0 : item % p.token_tiles * S::tokens;
  }

  // Puts this warp's sums of a tile's panel where they are joined.
  __device__ __forceinline__ void put(const float (&sums)[4], int32_t panel, float* buffer) const {
    if (S::tokens == 1 && lane % 4 != 0) return;
    float* at = buffer + warp * S::join_plane + (lane & 3) * 2 * S::join_stride + panel * kPanelRows + (lane >> 2);
    at[0] = sums[0];
    at[8] = sums[2];
    if constexpr (S::tokens > 1) {
      at[S::join_stride] = sums[1];
      at[S::join_stride + 8] = sums[3];
    }
  }

  // Joins the segments of a tile, once every warp has put its own, and hands every element to its end. Tiles take the two
  // buffers in turn, so that no warp puts into one that others still read.
  __device__ __forceinline__ void finish(int32_t item, const float* buffer) const {
    __syncthreads();
    each_row(item, [&](int32_t at) {
      float v[kSegments];
#pragma unroll
      for (int32_t s = 0; s < kSegments; ++s) v[s] = buffer[s * S::join_plane + at];
      return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    });
  }

  // Calls sum(place in the join buffer) for the tile's rows and ends them: one a thread.
  template <class F>
  __device__ __forceinline__ void each_row(int32_t item, F&& sum) const {
    static_assert(S::rows * S::tokens <= S::threads);
    const int32_t tile = tile_of(item), token0 = first_token(item), thread = warp * 32 + lane;
    if (thread >= S::rows * S::tokens) return;
    if (p.pair) {
      const int32_t local = thread % kPanelRows, column = thread / kPanelRows, row = tile * kPanelRows + local;
      if (column >= min(p.tokens - token0, S::tokens) || row >= p.targets[0].rows) return;
      const int32_t at = column * S::join_stride + local;
      return end_pair(row, token0 + column, sum(at), sum(at + kPanelRows));
    }
    int32_t within;
    const DecodeTarget& target = target_of(p, tile, within);
    const int32_t local = thread % S::rows, column = thread / S::rows, row = within * S::rows + local;
    if (column >= min(p.tokens - token0, S::tokens) || row >= target.rows) return;
    const int64_t at = (token0 + column) * target.out_stride + row;
    // What is added to is asked for ahead of the sum.
    const float before = p.end == ProductEnd::kAddF32 ? static_cast<const float*>(target.out)[at] : 0;
    float y = sum(column * S::join_stride + local) * p.x_scale;
    if (target.bias != nullptr) y += target.bias[row];
    switch (p.end) {
      case ProductEnd::kStoreF32: static_cast<float*>(target.out)[at] = y; break;
      case ProductEnd::kAddF32: static_cast<float*>(target.out)[at] = before + y; break;
      case ProductEnd::kStoreAct: static_cast<A*>(target.out)[at] = A(y); break;
      case ProductEnd::kSwiGLU: break;
      case ProductEnd::kHeads:
        if constexpr (S::panels == 1) heads.end(p.heads.layout.act, row, lane, y);
        break;
    }
  }

  // Where ends_heads: turns to the row that this thread ends of an item, if there is one. first: of the block's items.
  __device__ __forceinline__ void aim_heads(int32_t item, bool first) {
    const int32_t thread = warp * 32 + lane, column = thread / S::rows;
    if (thread >= S::rows * S::tokens || item >= p.items) return;
    const int32_t token = first_token(item) + column;
    if (token >= p.tokens) return;
    if (first || p.token_tiles > 1) heads.find(p.heads, token);
    int32_t within;
    const DecodeTarget& target = target_of(p, tile_of(item), within);
    heads.aim(p.heads, target, within * S::rows + thread % S::rows, token);
  }

  __device__ __forceinline__ void end_pair(int32_t row, int32_t token, float gate, float up) const {
    gate *= p.x_scale;
    up *= p.x_scale;
    if (p.targets[0].bias != nullptr) gate += p.targets[0].bias[row];
    if (p.targets[1].bias != nullptr) up += p.targets[1].bias[row];
    static_cast<A*>(p.targets[0].out)[token * p.targets[0].out_stride + row] = A(gate / (1.0f + expf(-gate)) * up * p.pair_share);
  }
};

}  // namespace mr::cuda
