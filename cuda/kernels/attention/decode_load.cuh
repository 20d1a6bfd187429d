// attention/decode_load: how a warp of decode attention loads keys, values and queries, and where they go in its
// buffers.
#pragma once

#include <type_traits>

#include "kernels/attention/decode_plan.cuh"
#include "kernels/attention/mma.cuh"
#include "kernels/f8.cuh"

namespace mr::cuda::decode {

// Bytes of a row of keys or values in shared memory: an odd multiple of 16 bytes, so that eight rows are in different
// banks.
template <int kDim, bool kF8>
constexpr int kLoadedRow = !kF8 ? kSharedRow<kDim> : kDim / 16 % 2 == 1 ? kDim : kDim + 16;
constexpr int kScaleBytes = 16 * 4;  // of 16 positions

// Room is a warp's buffers, from `keys` on: the keys of kTogether steps, their values and, for 8 bits, the scales of
// both.
template <int kDim, bool kF8, int kTogether>
struct Room {
  static constexpr int kStep = 16 * kLoadedRow<kDim, kF8>;
  static constexpr int kBytes = kTogether * (2 * kStep + (kF8 ? 2 * kScaleBytes : 0));
  uint32_t keys;
  __device__ __forceinline__ uint32_t keys_of(int step) const { return keys + step * kStep; }
  __device__ __forceinline__ uint32_t values_of(int step) const { return keys + (kTogether + step) * kStep; }
  __device__ __forceinline__ uint32_t scales_of(int step) const { return keys + 2 * kTogether * kStep + step * 2 * kScaleBytes; }
};

// Fetch selects steps: `old` if no kernel that may still run writes their keys and values, `fresh` the others, or all.
enum class Fetch { old, fresh, all };

// Ahead is the chunk after the one that a warp loads; position -1: none. In shared memory, one for each warp.
struct Ahead {
  Item item;
  int32_t chunk;
};

// Loader walks through a warp's steps of all chunks of all items of the block, kTogether at a time. Block ids are
// loaded one chunk ahead of the keys that they locate. After fetch_keys and fetch_values of a round, the caller must
// call advance.
template <class T, int kDim, bool kF8, int kTogether, bool kRuled>
struct Loader {
  typedef std::conditional_t<kF8, uint8_t, T> Element;

  const Plan& plan;
  Ahead& ahead;
  const int warp, lane;
  // The current round; position -1: none.
  int32_t position, kv_head, chunk, step, ids;  // ids: lane s has the block of step s
  [[maybe_unused]] int32_t low;
  int32_t ahead_ids;

  // `a` must be at the block's first item.
  __device__ __forceinline__ Loader(const Plan& p, Ahead& a, int w, int l) : plan(p), ahead(a), warp(w), lane(l) {
    ahead_ids = fetch();
    next_chunk();
  }

  __device__ __forceinline__ int32_t key_of(int32_t of_chunk, int32_t of_step) const {
    return of_chunk * kAttentionChunk + 16 * (warp + kWarps * of_step);
  }
  __device__ __forceinline__ int32_t shift() const { return plan.p.args.common.layout.block_size == 16 ? 4 : 5; }

  // Loads this lane's block id of the chunk ahead.
  __device__ __forceinline__ int32_t fetch() const {
    const int32_t key = key_of(ahead.chunk, lane);
    if (lane >= kSteps || key > ahead.item.position) return 0;
    return plan.p.args.common.rows.block_ids[plan.d.rows[ahead.item.row].y + (key >> shift())];
  }

  // Moves to the chunk ahead.
  __device__ __forceinline__ void next_chunk() {
    static_assert(kSteps <= 32 && kSteps % kTogether == 0, "a lane keeps the block id of a step");
    position = ahead.item.position;
    if constexpr (kRuled) low = ahead.item.low;
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
    if (step == kSteps) next_chunk();
  }

  // Returns whether step `step + j` is selected. A step writes consecutive positions of a sequence, at most as many as
  // it has rows.
  __device__ __forceinline__ bool fetched(int j, Fetch which) const {
    const int32_t key = key_of(chunk, step + j), rows = plan.p.args.step_rows;
    if (key > position) return false;
    if constexpr (kRuled)
      if (key + 15 < low) return false;
    return which == Fetch::all || (rows > 0 && key + 16 <= position + 1 - rows) == (which == Fetch::old);
  }

  // Returns the elements from the first key, or value, to this kv head at the first position of step `step + j`; for 8
  // bits also the bytes to the scales.
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

  // Copies the 16-byte pieces lane, lane + 32, ...
  __device__ __forceinline__ void copy(uint32_t to, const Element* from, int32_t left) const {
    constexpr int kPieces = kDim * static_cast<int>(sizeof(Element)) / 16, kRow = kLoadedRow<kDim, kF8>;
    from += lane * (16 / sizeof(Element));
    if constexpr (32 % kPieces == 0) {
      constexpr int kRows = 32 / kPieces;  // of a warp's pieces: the rest is known at compile time
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

  // With 8 bits it also loads the scales of keys and values.
  __device__ __forceinline__ void fetch_keys(const Room<kDim, kF8, kTogether>& room, Fetch which) const {
    const AttentionArgs& a = plan.p.args.common;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (!fetched(j, which)) continue;
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

  __device__ __forceinline__ void fetch_values(const Room<kDim, kF8, kTogether>& room, Fetch which) const {
    const AttentionArgs& a = plan.p.args.common;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (!fetched(j, which)) continue;
      int64_t scale;
      copy(room.values_of(j), static_cast<const Element*>(a.values) + place(j, &scale),
           position + 1 - key_of(chunk, step + j));
    }
  }
};

// Queries is the query heads of an item as B fragments; columns past the tile's heads are zero. Up to 256 dims they are in
// registers.
template <class T, int kDim, bool kShared = (kDim > 256)>
struct Queries {
  static constexpr int kHeadBytes = 0;  // of shared memory
  uint32_t fragments[kDim / 16][2];

  __device__ __forceinline__ explicit Queries(uint32_t) {}
  // All threads must call it, after a barrier that follows all uses of the item before.
  __device__ __forceinline__ void load(const Plan& plan, const Item& item, int, int lane) {
    const AttentionArgs& a = plan.p.args.common;
    const int g = lane / 4, t = lane % 4;
    const T* const base = static_cast<const T*>(a.q) + item.row * a.q_stride + static_cast<int64_t>(item.head0 + g) * kDim + 2 * t;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        fragments[k][i] = g < item.heads ? *reinterpret_cast<const uint32_t*>(base + 16 * k + 8 * i) : 0u;
  }
  // Returns a lane's part of the fragment of the dims [16 k, +16).
  __device__ __forceinline__ uint2 fragment(int k, int) const { return make_uint2(fragments[k][0], fragments[k][1]); }
};

// Registers have no room for wider heads and their sums. The block's warps share a copy of them, in which a lane's part of a
// fragment is 8 neighbouring bytes. The padding of a head's row puts the four heads of 16 lanes into different banks.
template <class T, int kDim>
struct Queries<T, kDim, true> {
  static constexpr int kHeadBytes = kDim * 2 + 32;
  const uint32_t memory;
  int32_t heads;

  __device__ __forceinline__ explicit Queries(uint32_t m) : memory(m) {}
  __device__ __forceinline__ void load(const Plan& plan, const Item& item, int warp, int lane) {
    const AttentionArgs& a = plan.p.args.common;
    const int g = lane / 4, t = lane % 4;
    heads = item.heads;
    const T* const base = static_cast<const T*>(a.q) + item.row * a.q_stride + static_cast<int64_t>(item.head0 + g) * kDim + 2 * t;
    for (int k = warp; k < kDim / 16 && g < heads; k += kWarps)
      store_shared8(at(k, lane), make_uint2(*reinterpret_cast<const uint32_t*>(base + 16 * k),
                                            *reinterpret_cast<const uint32_t*>(base + 16 * k + 8)));
    __syncthreads();
  }
  __device__ __forceinline__ uint2 fragment(int k, int lane) const {
    return lane / 4 < heads ? load_shared8(at(k, lane)) : make_uint2(0, 0);
  }

 private:
  __device__ __forceinline__ uint32_t at(int k, int lane) const { return memory + lane / 4 * kHeadBytes + lane % 4 * 8 + k * 32; }
};

}  // namespace mr::cuda::decode
