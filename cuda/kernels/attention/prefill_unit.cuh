// attention/prefill_unit: the unit of work of a prefill_wgmma block, and the layout of its shared memory.
#pragma once

#include "kernels/attention/prefill_params.cuh"

namespace mr::cuda::prefill {

constexpr int32_t kUnitRows = 128;  // packed rows of a unit: two warpgroups of 64
constexpr int32_t kConsumers = 256, kBlockThreads = kConsumers + 128;

// Returns the dims of a head in memory: the kernel of 128 dims also computes heads of 80 and 96.
template <int32_t dim>
__device__ __forceinline__ int32_t stored_dims(const Params& p) {
  return dim == 128 ? p.args.common.layout.padded_dim : dim;
}

// UnitLayout is the shared memory, in bytes. Queries, keys and values are half rows, see attention/wgmma.cuh. Heads of 256 dims have
// tiles of half as many keys, so that two stages fit.
template <int32_t dim>
struct UnitLayout {
  static_assert(dim == 64 || dim == 128 || dim == 256);
  static constexpr int32_t tile_keys = dim == 256 ? 64 : 128;  // absolute positions
  static constexpr int32_t halves = dim / 64, query_half = kUnitRows * 128, half = tile_keys * 128;
  static constexpr int32_t side = halves * half;  // keys, or values, of a tile
  static constexpr int32_t stages = dim == 64 ? 4 : 2;
  static constexpr int32_t queries = 0, keys = halves * query_half, values = keys + stages * side;
  // Each thread's rows over the pieces before, f32; those of 256 dims do not fit and are in the workspace.
  static constexpr bool has_totals = dim <= 128;
  static constexpr int32_t totals = values + stages * side;
  // Barriers of each stage: keys full and empty, values full and empty; keys, or values, that came but are not ready: 8 bits are
  // not widened, and the last rows of other values are not zeroed.
  static constexpr int32_t barriers = totals + (has_totals ? kUnitRows * dim * 4 : 0);
  static constexpr int32_t keys_full = barriers, keys_empty = keys_full + stages * 8, values_full = keys_empty + stages * 8,
                           values_empty = values_full + stages * 8, keys_came = values_empty + stages * 8,
                           values_came = keys_came + stages * 8;
  static constexpr int32_t bytes = values_came + stages * 8;
  // For 8 bits: the scales of each stage's tokens, of keys, then of values. F32.
  static constexpr int32_t scales = (bytes + 15) / 16 * 16, f8_bytes = scales + stages * 2 * tile_keys * 4;
  static_assert(f8_bytes <= 227 * 1024);
  static_assert(kFirstPiece % tile_keys == 0 && kWholePiece % kFirstPiece == 0, "tiles of keys do not cross borders of pieces");
};

// UnitSchedule deals the units (items times columns, longest first) to persistent blocks, as many as the device holds.
// The direction alternates, so the block with the longest unit of one round gets the shortest of the next.
struct UnitSchedule {
  int32_t count, round = 0;
  __device__ __forceinline__ explicit UnitSchedule(const Params& p) : count(p.args.item_count * p.columns()) {}
  __device__ __forceinline__ int32_t unit() const {
    const int32_t blocks = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
    return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
  }
  __device__ __forceinline__ bool there() const { return unit() < count; }
};

// Unit is one column of an item: the query heads of one kv head, or up to 16 of them.
struct Unit {
  PrefillItem item;
  int32_t kv_head, head0, heads;  // query heads [head0, head0 + heads)
  int32_t low;                    // the first key that a row sees

  __device__ __forceinline__ Unit(const Params& p, int32_t unit) {
    const int32_t i = unit / p.columns(), column = unit % p.columns(), tile = column % p.tiles;
    item = p.args.items[i];
    kv_head = column / p.tiles;
    head0 = kv_head * p.group + tile * p.tile_heads;
    heads = min(p.tile_heads, p.group - tile * p.tile_heads);
    low = first_seen(item.position, p.args.common.window);
  }
  __device__ __forceinline__ bool alone() const { return item.piece >= 0; }
  __device__ __forceinline__ int32_t first_piece() const { return alone() ? item.piece : prefill_piece_of(low); }
  // Tiles below all windows are skipped, but for the last: the pipeline wants one tile of every piece.
  __device__ __forceinline__ int32_t first_key(int32_t tile_keys) const {
    const int32_t seen = min(low, last_key()) / tile_keys * tile_keys;
    return max(prefill_piece_begin(first_piece()), seen);
  }
  // Returns the last key that a row sees in the unit's pieces. There is one, because an item has only pieces that its
  // last row sees.
  __device__ __forceinline__ int32_t last_key() const {
    const int32_t last = item.position + item.count - 1;
    return alone() ? min(last, prefill_piece_begin(item.piece + 1) - 1) : last;
  }
};

// PackedRow is a packed row of a unit: token by token, each with tile_heads heads.
struct PackedRow {
  int32_t token, head;
  bool valid;
  __device__ __forceinline__ PackedRow(const Params& p, const Unit& u, int32_t row)
      : token(row * p.tile_share >> 16), head(row - token * p.tile_heads), valid(token < u.item.count && head < u.heads) {}
};

}  // namespace mr::cuda::prefill
