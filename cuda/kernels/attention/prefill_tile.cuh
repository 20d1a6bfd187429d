// attention/prefill_tile: one tile of keys, and of a half of their values' dims, of prefill attention: loading, widening,
// scaling and masking.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/attention/mma.cuh"
#include "kernels/attention/prefill_params.cuh"
#include "kernels/f8.cuh"

namespace mr::cuda::prefill {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;

template <int kDim>
constexpr int kKeys = kDim <= 128 ? 64 : 32;
// Bytes of a tile, whose rows of keys come before those of values; of one in 8 bits; and of the scales of its keys, or values.
template <int kDim>
constexpr int kTileBytes = kKeys<kDim> * (kSharedRow<kDim> + kSharedRow<kValueDims<kDim>>);
template <int kDim>
constexpr int kF8TileBytes = kKeys<kDim> * (kDim + kValueDims<kDim>);
template <int kDim>
constexpr int kScaleSide = kKeys<kDim> * 4;
// Bytes of shared memory of a block: its queries and kAhead + 1 tiles; or with 8 bits one tile of the layout's type, kAhead tiles of
// 8 bits, and kAhead + 1 tiles' scales.
template <int kDim, int kBlocks, int kAhead, bool kF8>
constexpr int kSharedBytes =
    kBlocks * 64 * kSharedRow<kDim> + (kF8 ? kTileBytes<kDim> + kAhead * kF8TileBytes<kDim> + 2 * (kAhead + 1) * kScaleSide<kDim>
                                           : (kAhead + 1) * kTileBytes<kDim>);

// The block ids of a tile are in the 16 bytes of padding after a row of queries: at most four, of 16 tokens each.
template <int kDim>
__device__ __forceinline__ uint32_t ids_of(uint32_t queries, int slot) {
  static_assert(kKeys<kDim> <= 64, "four blocks of 16 tokens");
  return queries + slot * kSharedRow<kDim> + kDim * 2;
}

static_assert(kFirstPiece % 64 == 0 && kWholePiece % kFirstPiece == 0, "tiles of keys do not cross borders of pieces");

// Requests the block ids of the tile that begins at `key`.
template <int kDim>
__device__ __forceinline__ void fetch_ids(const AttentionArgs& c, const int32_t* table, int32_t key, int32_t longest,
                                          uint32_t ids) {
  const int32_t shift = c.layout.block_size == 16 ? 4 : 5, i = threadIdx.x, count = kKeys<kDim> / c.layout.block_size;
  if (i < count) copy4_or_zero(ids + i * 4, table + (key >> shift) + i, key + (i << shift) <= longest ? 4 : 0);
}

// TileBlocks are the block ids of a tile, as fetch_ids stores them. They are loaded at once, because a load for each
// copy would have to wait for the copy before it.
struct TileBlocks {
  uint4 ids;
  __device__ __forceinline__ explicit TileBlocks(uint32_t at) : ids(load_shared16(at)) {}
  // Returns 0 if no position of the block is valid.
  __device__ __forceinline__ int64_t operator[](int32_t i) const {
    return static_cast<int32_t>(i < 2 ? (i < 1 ? ids.x : ids.y) : (i < 3 ? ids.z : ids.w));
  }
};

// Rounds is how the threads copy the pieces of a tile, kPieces of 16 bytes a row, round by round. If the rows of a
// round divide a block, they are of one block, whose number is known at compile time up to the block size.
template <int kDim, int kPieces>
struct Rounds {
  static constexpr int kRows = kThreads / kPieces, kCount = (kKeys<kDim> * kPieces + kThreads - 1) / kThreads;
  static constexpr bool kOfOneBlock = kThreads % kPieces == 0 && 16 % kRows == 0;
  static constexpr bool kWhole = kKeys<kDim> * kPieces % kThreads == 0;
  __device__ __forceinline__ static int32_t block_row(int round, int32_t row) { return kOfOneBlock ? round * kRows : row; }
  // Calls copy(round) for every round. Those of heads above 256 dims are unrolled by eight, because the registers do not hold
  // what the compiler computes ahead for all of them.
  template <class Copy>
  __device__ __forceinline__ static void each(Copy copy) {
    if constexpr (kHalves<kDim> == 1) {
#pragma unroll
      for (int n = 0; n < kCount; ++n) copy(n);
    } else {
#pragma unroll 8
      for (int n = 0; n < kCount; ++n) copy(n);
    }
  }
};

// Returns whether a piece of a row, of kPieces, is of this half of the values.
template <int kDim, int kPieces>
__device__ __forceinline__ bool in_half([[maybe_unused]] int32_t half, [[maybe_unused]] int32_t piece) {
  if constexpr (kHalves<kDim> == 1) return true;
  else return piece / (kPieces / kHalves<kDim>) == half;
}
// Returns the bytes from a dim of key r of a tile to the same dim of value r. Rows of keys have kRow bytes, and dims kSize.
template <int kDim, int kRow, int kSize>
__device__ __forceinline__ int32_t to_values([[maybe_unused]] int32_t half, [[maybe_unused]] int32_t r) {
  if constexpr (kHalves<kDim> == 1) return kKeys<kDim> * kRow;
  else return kKeys<kDim> * kRow - (r * (kDim - kValueDims<kDim>) + half * kValueDims<kDim>) * kSize;
}

// Requests the tile that begins at `key`; its block ids are at `ids`.
template <class T, int kDim>
__device__ __forceinline__ void fetch(const AttentionArgs& c, uint32_t ids, int32_t kv_head, int32_t half, int32_t key,
                                      int32_t longest, uint32_t stage) {
  constexpr int kPieces = kDim / 8;  // of 16 bytes, a row
  const KvLayout& l = c.layout;
  const int32_t shift = l.block_size == 16 ? 4 : 5;
  const TileBlocks blocks(ids);
  using Round = Rounds<kDim, kPieces>;
  Round::each([&](int n) {
    const int32_t i = n * kThreads + static_cast<int32_t>(threadIdx.x);
    if (!Round::kWhole && i >= kKeys<kDim> * kPieces) return;
    const int32_t r = i / kPieces, piece = i % kPieces, position = key + r;
    const bool valid = position <= longest;
    const int64_t block = blocks[Round::block_row(n, r) >> shift];
    const int64_t at = block * l.block_elements() + kv_head * l.head_elements() +
                       static_cast<int64_t>(position & (l.block_size - 1)) * kDim + piece * 8;
    const uint32_t to = stage + r * kSharedRow<kDim> + piece * 16;
    copy_valid(to, static_cast<const T*>(c.keys) + at, valid);
    if (in_half<kDim, kPieces>(half, piece))
      copy_valid(to + to_values<kDim, kSharedRow<kDim>, 2>(half, r), static_cast<const T*>(c.values) + at, valid);
  });
}

// The same for 8 bits: elements go to `raw`, keys first, and scales likewise to `scales`.
template <int kDim>
__device__ __forceinline__ void fetch_f8(const AttentionArgs& c, uint32_t ids, int32_t kv_head, int32_t half, int32_t key,
                                         int32_t longest, uint32_t raw, uint32_t scales) {
  constexpr int kPieces = kDim / 16;  // of 16 bytes, a row
  const KvLayout& l = c.layout;
  const int32_t shift = l.block_size == 16 ? 4 : 5;
  const uint8_t* const keys = static_cast<const uint8_t*>(c.keys);
  const uint8_t* const values = static_cast<const uint8_t*>(c.values);
  const TileBlocks blocks(ids);
  using Round = Rounds<kDim, kPieces>;
  Round::each([&](int n) {
    const int32_t i = n * kThreads + static_cast<int32_t>(threadIdx.x);
    if (!Round::kWhole && i >= kKeys<kDim> * kPieces) return;
    const int32_t r = i / kPieces, piece = i % kPieces, position = key + r;
    const bool valid = position <= longest;
    const int64_t block = blocks[Round::block_row(n, r) >> shift];
    const int64_t at = l.f8_at(block, kv_head, position & (l.block_size - 1)) + piece * 16;
    copy_valid(raw + i * 16, keys + at, valid);
    if (in_half<kDim, kPieces>(half, piece))
      copy_valid(raw + to_values<kDim, kDim, 1>(half, r) + i * 16, values + at, valid);
  });
  if (threadIdx.x < kKeys<kDim> / 2) {  // four scales of keys, or of values
    constexpr int kQuads = kKeys<kDim> / 4;
    const int32_t quad = threadIdx.x % kQuads, position = key + quad * 4;
    const int64_t block = blocks[quad * 4 >> shift];
    const uint8_t* const from = threadIdx.x < kQuads ? keys : values;
    copy_part(scales + threadIdx.x * 16, from + l.f8_scale_at(block, kv_head, position & (l.block_size - 1)),
              (longest + 1 - position) * 4);
  }
}

// Widens the pieces that this thread loaded into the tile: keys first, as fetch arranges them.
template <class T, int kDim>
__device__ __forceinline__ void widen_tile(int32_t half, uint32_t raw, uint32_t tile) {
  constexpr int kPieces = kDim / 16;
#pragma unroll 4
  for (int i = threadIdx.x; i < kKeys<kDim> * kPieces; i += kThreads) {
    const int32_t r = i / kPieces;
    const uint32_t to = tile + r * kSharedRow<kDim> + i % kPieces * 32;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      if (side == 1 && !in_half<kDim, kPieces>(half, i % kPieces)) break;
      const int32_t of_side = side * to_values<kDim, kSharedRow<kDim>, 2>(half, r);
      uint4 wide[2];
      widen_f8<T>(load_shared16(raw + side * to_values<kDim, kDim, 1>(half, r) + i * 16), wide);
      store_shared16(to + of_side, wide[0]);
      store_shared16(to + of_side + 16, wide[1]);
    }
  }
}

// Multiplies columns 8 n + 2 t and the next by the scales of their keys, or values.
template <class T, int kColumns>
__device__ __forceinline__ void multiply_scales(float (&x)[kColumns][4], uint32_t scales, int t) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const float2 scale = load_shared_floats(scales + (8 * n + 2 * t) * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] *= (i % 2 == 0 ? scale.x : scale.y) * WideF8<T>::kFactor;
  }
}

template <int kColumns>
__device__ __forceinline__ void cap_scores(float (&x)[kColumns][4], float cap_scale) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] = capped(x[n][i], cap_scale);
}

// Overwrites the columns of keys that rows at these positions do not see.
template <int kColumns>
__device__ __forceinline__ void mask(float (&x)[kColumns][4], int32_t key, int t, const int32_t (&position)[2], int32_t window,
                                     float value) {
  const int32_t low[2] = {first_seen(position[0], window), first_seen(position[1], window)};
#pragma unroll
  for (int n = 0; n < kColumns; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t column = key + 8 * n + 2 * t + i % 2;
      if (column > position[i / 2] || column < low[i / 2]) x[n][i] = value;
    }
}

}  // namespace mr::cuda::prefill
