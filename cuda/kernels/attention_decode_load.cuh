// attention_decode_load: what a warp of decode attention asks for, keys, values and queries, and where in its room they go.
#pragma once

#include <type_traits>

#include "kernels/attention_decode_plan.cuh"
#include "kernels/attention_mma.cuh"
#include "kernels/f8.cuh"

namespace mr::cuda::decode {

template <int kDim>
constexpr int kSideBytes = 16 * kSharedRow<kDim>;  // keys, or values, of 16 positions
// 8 bits: elements of 16 positions, and their scales.
template <int kDim>
constexpr int kF8Bytes = 16 * kDim;
constexpr int kScaleBytes = 16 * 4;
// A warp's room: keys and values; or one side in the activation type, keys and values in 8 bits, and the scales of both.
template <int kDim, bool kF8>
constexpr int kWarpBytes = kF8 ? kSideBytes<kDim> + 2 * kF8Bytes<kDim> + 2 * kScaleBytes : 2 * kSideBytes<kDim>;
template <int kDim, bool kF8>
constexpr int kRoomBytes = kWarps * kWarpBytes<kDim, kF8>;

// Where a warp's loads are: runs through its steps of all chunks of all items of the block. keys() and values() are called
// in turns, once each a step.
template <class T, int kDim, bool kF8>
struct Loader {
  typedef std::conditional_t<kF8, uint8_t, T> Element;

  const Plan& plan;
  Item item;
  int32_t index, chunk, step;
  const Element* at_values;
  int32_t left;  // positions of the step that the row sees; <= 0: none

  __device__ __forceinline__ Loader(const Plan& p, int32_t first_index)
      : plan(p), item(p, min(first_index, p.items - 1)), index(first_index), chunk(item.chunk0), step(0), at_values(nullptr),
        left(0) {}

  static __device__ __forceinline__ void copy(uint32_t to, const Element* from, int32_t left, int lane) {
    if (left <= 0) return;
    if constexpr (kF8) {
      constexpr int kPieces = kDim / 16;  // of 16 bytes, a row
#pragma unroll
      for (int i = 0; i < (kPieces + 1) / 2; ++i)
        if (const int32_t piece = lane + i * 32; piece < 16 * kPieces)
          copy_valid(to + piece * 16, from + piece * 16, piece / kPieces < left);
    } else {
      constexpr int kPieces = kDim / 8;
#pragma unroll
      for (int i = 0; i < kPieces / 2; ++i) {
        const int32_t piece = lane + i * 32, r = piece / kPieces, c = piece % kPieces;
        copy_valid(to + r * kSharedRow<kDim> + c * 16, from + piece * 8, r < left);
      }
    }
  }

  // 8 bits: the scales of keys and values go to `scales`.
  __device__ __forceinline__ void keys(uint32_t to, [[maybe_unused]] uint32_t scales, int warp, int lane) {
    left = 0;
    if (index < plan.items) {
      const AttentionArgs& a = plan.p.args.common;
      const int32_t key = chunk * kAttentionChunk + 16 * (warp + kWarps * step);
      left = item.position + 1 - key;
      if (left > 0) {
        const int32_t shift = a.layout.block_size == 16 ? 4 : 5, in_table = key >> shift;
        const int64_t block = item.table[in_table];
        const int32_t in_block = key - (in_table << shift);
        int64_t at;
        if constexpr (kF8) {
          at = a.layout.f8_at(block, item.kv_head, in_block);
          const int64_t at_scale = a.layout.f8_scale_at(block, item.kv_head, in_block) + lane % 4 * 16;
          if (lane < 8)
            copy_part(scales + lane * 16, static_cast<const uint8_t*>(lane < 4 ? a.keys : a.values) + at_scale,
                      (left - lane % 4 * 4) * 4);
        } else {
          at = block * a.layout.block_elements() + item.kv_head * a.layout.head_elements() + static_cast<int64_t>(in_block) * kDim;
        }
        at_values = static_cast<const Element*>(a.values) + at;
        copy(to, static_cast<const Element*>(a.keys) + at, left, lane);
      }
    }
    copies_commit();
  }

  __device__ __forceinline__ void values(uint32_t to, int lane) {
    copy(to, at_values, left, lane);
    copies_commit();
    if (++step < kSteps) return;
    step = 0;
    if (++chunk < item.chunk1) return;
    index += gridDim.x;
    if (index < plan.items) {
      item = Item(plan, index);
      chunk = item.chunk0;
    }
  }
};

// What this lane has asked for of 16 positions, into the activation type.
template <class T, int kDim>
__device__ __forceinline__ void widen_side(uint32_t raw, uint32_t side, int lane) {
  constexpr int kPieces = kDim / 16;
#pragma unroll
  for (int i = 0; i < (kPieces + 1) / 2; ++i) {
    const int piece = lane + i * 32;
    if (piece >= 16 * kPieces) continue;
    uint4 wide[2];
    widen_f8<T>(load_shared16(raw + piece * 16), wide);
    const uint32_t to = side + piece / kPieces * kSharedRow<kDim> + piece % kPieces * 32;
    store_shared16(to, wide[0]);
    store_shared16(to + 16, wide[1]);
  }
}

// The query heads of an item as B fragments; columns beyond the tile's heads are zero.
template <class T, int kDim>
__device__ __forceinline__ void load_queries(const Plan& plan, const Item& item, uint32_t (&q)[kDim / 16][2], int lane) {
  const AttentionArgs& a = plan.p.args.common;
  const int g = lane / 4, t = lane % 4;
  const T* const base = static_cast<const T*>(a.q) + item.row * a.q_stride + static_cast<int64_t>(item.head0 + g) * kDim + 2 * t;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      q[k][i] = g < item.heads ? *reinterpret_cast<const uint32_t*>(base + 16 * k + 8 * i) : 0u;
}

}  // namespace mr::cuda::decode
