// attention_decode_load: what a warp of decode attention asks for, keys, values and queries, and where in its room they go.
#pragma once

#include <type_traits>

#include "kernels/attention_decode_plan.cuh"
#include "kernels/attention_mma.cuh"
#include "kernels/f8.cuh"

namespace mr::cuda::decode {

// Bytes of a row of keys or values in shared memory: an odd number of 16 bytes, so that eight rows lie in different banks.
template <int kDim, bool kF8>
constexpr int kLoadedRow = !kF8 ? kSharedRow<kDim> : kDim / 16 % 2 == 1 ? kDim : kDim + 16;
constexpr int kScaleBytes = 16 * 4;  // of 16 positions

// A warp's room, from `keys` on: the keys of kTogether steps, their values and, of 8 bits, the scales of both, step by step.
template <int kDim, bool kF8, int kTogether>
struct Room {
  static constexpr int kStep = 16 * kLoadedRow<kDim, kF8>;
  static constexpr int kBytes = kTogether * (2 * kStep + (kF8 ? 2 * kScaleBytes : 0));
  uint32_t keys;
  __device__ __forceinline__ uint32_t keys_of(int step) const { return keys + step * kStep; }
  __device__ __forceinline__ uint32_t values_of(int step) const { return keys + (kTogether + step) * kStep; }
  __device__ __forceinline__ uint32_t scales_of(int step) const { return keys + 2 * kTogether * kStep + step * 2 * kScaleBytes; }
};

// Which steps are asked for: those whose keys and values no kernel that may still run writes, the others, or all.
enum class Ask { old, fresh, all };

// The chunk behind the one that a warp asks for; position -1: none. In shared memory, one a warp.
struct Ahead {
  Item item;
  int32_t chunk;
};

// Where a warp's loads are: runs through its steps of all chunks of all items of the block, kTogether at a time. Block ids are
// asked for one chunk ahead of the keys that they place. After ask_keys and ask_values of a round comes advance.
template <class T, int kDim, bool kF8, int kTogether>
struct Loader {
  typedef std::conditional_t<kF8, uint8_t, T> Element;

  const Plan& plan;
  Ahead& ahead;
  const int warp, lane;
  // The round asked for; position -1: none.
  int32_t position, kv_head, chunk, step, ids;  // ids: lane s has the block of step s
  int32_t ahead_ids;

  // `a` is at the block's first item.
  __device__ __forceinline__ Loader(const Plan& p, Ahead& a, int w, int l) : plan(p), ahead(a), warp(w), lane(l) {
    ahead_ids = fetch();
    take();
  }

  __device__ __forceinline__ int32_t key_of(int32_t of_chunk, int32_t of_step) const {
    return of_chunk * kAttentionChunk + 16 * (warp + kWarps * of_step);
  }
  __device__ __forceinline__ int32_t shift() const { return plan.p.args.common.layout.block_size == 16 ? 4 : 5; }

  // This lane's block id of the chunk ahead.
  __device__ __forceinline__ int32_t fetch() const {
    const int32_t key = key_of(ahead.chunk, lane);
    if (lane >= kSteps || key > ahead.item.position) return 0;
    return plan.p.args.common.rows.block_ids[plan.d.rows[ahead.item.row].y + (key >> shift())];
  }

  // On to the chunk ahead.
  __device__ __forceinline__ void take() {
    static_assert(kSteps <= 32 && kSteps % kTogether == 0, "a lane keeps the block id of a step");
    position = ahead.item.position;
    kv_head = ahead.item.kv_head;
    chunk = ahead.chunk;
    ids = ahead_ids;
    step = 0;
    if (position < 0) return;
    __syncwarp();
    if (lane == 0 && ++ahead.chunk == ahead.item.chunk1) {
      if (ahead.item.last(plan)) {
        ahead.item.position = -1;
      } else {
        ahead.item = ahead.item.next(plan);
        ahead.chunk = ahead.item.chunk0;
      }
    }
    __syncwarp();
    ahead_ids = fetch();
  }

  __device__ __forceinline__ void advance() {
    step += kTogether;
    if (step == kSteps) take();
  }

  // Whether step `step + j` is asked for. What a step writes of a sequence are consecutive positions, no more than it has rows.
  __device__ __forceinline__ bool asked(int j, Ask which) const {
    const int32_t key = key_of(chunk, step + j), rows = plan.p.args.step_rows;
    if (key > position) return false;
    return which == Ask::all || (rows > 0 && key + 16 <= position + 1 - rows) == (which == Ask::old);
  }

  // Elements from the first of keys, or values, to those of this kv head at the first position of step `step + j`; of 8 bits,
  // their scales' bytes too.
  __device__ __forceinline__ int64_t place(int j, [[maybe_unused]] int64_t* scale) const {
    const KvLayout& l = plan.p.args.common.layout;
    const int64_t block = __shfl_sync(0xffffffffu, ids, step + j);
    const int32_t in_block = key_of(chunk, step + j) & (l.block_size - 1);
    if constexpr (kF8) {
      *scale = l.f8_scale_at(block, kv_head, in_block);
      return l.f8_at(block, kv_head, in_block);
    } else {
      return block * l.block_elements() + kv_head * l.head_elements() + static_cast<int64_t>(in_block) * kDim;
    }
  }

  // A lane takes the pieces lane, lane + 32, ... of 16 bytes.
  __device__ __forceinline__ void copy(uint32_t to, const Element* from, int32_t left) const {
    constexpr int kPieces = kDim * static_cast<int>(sizeof(Element)) / 16, kRow = kLoadedRow<kDim, kF8>;
    from += lane * (16 / sizeof(Element));
    if constexpr (32 % kPieces == 0) {
      constexpr int kRows = 32 / kPieces;  // of a warp's pieces: all else is known to the compiler
      to += lane / kPieces * kRow + lane % kPieces * 16;
      left -= lane / kPieces;
#pragma unroll
      for (int i = 0; i < 16 / kRows; ++i)
        copy_valid(to + i * kRows * kRow, from + i * 32 * (16 / sizeof(Element)), i * kRows < left);
    } else {
#pragma unroll
      for (int i = 0; i < (kPieces + 1) / 2; ++i) {
        const int32_t piece = lane + i * 32, r = piece / kPieces;
        if (kPieces % 2 == 0 || piece < 16 * kPieces)
          copy_valid(to + r * kRow + piece % kPieces * 16, from + i * 32 * (16 / sizeof(Element)), r < left);
      }
    }
  }

  // 8 bits: with the scales of keys and values.
  __device__ __forceinline__ void ask_keys(const Room<kDim, kF8, kTogether>& room, Ask which) const {
    const AttentionArgs& a = plan.p.args.common;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (!asked(j, which)) continue;
      const int32_t left = position + 1 - key_of(chunk, step + j);
      int64_t scale = 0;
      const int64_t at = place(j, &scale);
      if constexpr (kF8)
        if (lane < 8)
          copy_part(room.scales_of(j) + lane * 16,
                    static_cast<const uint8_t*>(lane < 4 ? a.keys : a.values) + scale + lane % 4 * 16, (left - lane % 4 * 4) * 4);
      copy(room.keys_of(j), static_cast<const Element*>(a.keys) + at, left);
    }
  }

  __device__ __forceinline__ void ask_values(const Room<kDim, kF8, kTogether>& room, Ask which) const {
    const AttentionArgs& a = plan.p.args.common;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (!asked(j, which)) continue;
      int64_t scale;
      copy(room.values_of(j), static_cast<const Element*>(a.values) + place(j, &scale),
           position + 1 - key_of(chunk, step + j));
    }
  }
};

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
