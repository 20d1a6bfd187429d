// attention/prefill_fetch_f8: the producer warpgroup of prefill_wgmma for caches of 8 bits whose blocks are not widened ahead
// (prefill_widen.cuh, which states how NaN scales are handled).
//
// The elements of a tile are copied into the second half of its stage, as they lie in the cache. The warpgroup then widens them in
// place to the layout's type, in the order that tensor copies have (attention/wgmma.cuh):
//
//   stage   [ first half of the dims    | second half of the dims   ]   of the layout's type
//   copied  [                           | elements of 8 bits        ]
//
// The first half of the dims is written while elements are read. Those of the second half wait in registers until every thread has
// read its own. Values are one tile later than keys, because products need them one tile later.
#pragma once

#include "kernels/attention/prefill_unit.cuh"
#include "kernels/attention/prefill_widen.cuh"
#include "kernels/attention/wgmma.cuh"

namespace mr::cuda::prefill {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int32_t kWidenBarrier = 5;  // of the producer warpgroup; see prefill_wgmma_kernel.cuh for the others

template <class T, int32_t dim>
struct F8Producer {
  using Layout = UnitLayout<dim>;
  static constexpr int32_t kTileKeys = Layout::tile_keys, kRaw = Layout::side / 2;
  // A half row has four pieces of 16 elements, and a thread widens every 128th piece.
  static constexpr int32_t kPieces = kTileKeys * 4 / 128, kDirect = Layout::halves / 2, kHeld = Layout::halves - kDirect;

  struct Tile {
    int32_t rows = 0, kv_head = 0;  // rows 0: no tile
    int32_t id = 0;                 // of the lane's KV block
  };

  const Params& p;
  uint32_t memory;
  int32_t thread, lane;  // of the warpgroup, of the warp
  PipelineState<Layout::stages> keys, values;
  const int32_t dims = stored_dims<dim>(p);  // of a row that came

  __device__ __forceinline__ uint32_t barrier(int32_t barriers, int32_t stage) const {
    return memory + static_cast<uint32_t>(barriers + stage * 8);
  }
  __device__ __forceinline__ uint32_t scales(int32_t stage, int32_t side) const {
    return memory + static_cast<uint32_t>(Layout::scales + (stage * 2 + side) * kTileKeys * 4);
  }

  // Requests the elements of a tile's keys, or values, once its stage is empty. With keys come all scales of the tile.
  template <bool of_values>
  __device__ __forceinline__ void request(const Tile& tile) const {
    const KvLayout& layout = p.args.common.layout;
    const auto& at = of_values ? values : keys;
    const uint32_t came = barrier(of_values ? Layout::values_came : Layout::keys_came, at.stage);
    const uint32_t to = memory + static_cast<uint32_t>((of_values ? Layout::values : Layout::keys) + at.stage * Layout::side + kRaw);
    const int32_t blocks = (tile.rows + layout.block_size - 1) / layout.block_size;
    const uint32_t element_bytes = static_cast<uint32_t>(layout.block_size * dims);
    const uint32_t scale_bytes = static_cast<uint32_t>(layout.block_size * 4);
    barrier_wait(barrier(of_values ? Layout::values_empty : Layout::keys_empty, at.stage), at.phase ^ 1);
    if (elected()) barrier_expect(came, static_cast<uint32_t>(blocks) * (element_bytes + (of_values ? 0u : 2u * scale_bytes)));
    const uint8_t* const cached_keys = static_cast<const uint8_t*>(p.args.common.keys);
    const uint8_t* const cached_values = static_cast<const uint8_t*>(p.args.common.values);
    for (int32_t i = 0; i < blocks; ++i) {
      const int32_t id = __shfl_sync(0xffffffffu, tile.id, i);
      if (!elected()) continue;
      const uint32_t block = static_cast<uint32_t>(i);
      const uint8_t* const elements = (of_values ? cached_values : cached_keys) + layout.f8_at(id, tile.kv_head, 0);
      bulk_copy(to + block * element_bytes, elements, element_bytes, came);
      if (of_values) continue;
      const int64_t from = layout.f8_scale_at(id, tile.kv_head, 0);
      bulk_copy(scales(at.stage, 0) + block * scale_bytes, cached_keys + from, scale_bytes, came);
      bulk_copy(scales(at.stage, 1) + block * scale_bytes, cached_values + from, scale_bytes, came);
    }
  }

  // Widens the keys, or values, that came. Values from row `rows` on and dims that heads lack become zeros; other keys may be anything, see
  // fetch_tiles.
  template <bool of_values>
  __device__ __forceinline__ void widen(int32_t rows) {
    auto& at = of_values ? values : keys;
    barrier_wait(barrier(of_values ? Layout::values_came : Layout::keys_came, at.stage), at.phase);
    const uint32_t stage = memory + static_cast<uint32_t>((of_values ? Layout::values : Layout::keys) + at.stage * Layout::side);
    const int32_t piece = thread % 4, first_row = thread / 4;
    // Dims that heads lack lie in the second half. What a piece of them would read, times a scale, may be infinite.
    const int32_t second_rows = 64 + piece * 16 < dims ? rows : 0;
    Factor<T> factor[kPieces];
#pragma unroll
    for (int32_t n = 0; n < kPieces; ++n) {
      const uint32_t row = static_cast<uint32_t>(n * 32 + first_row);
      const float of_value = load_shared_float(scales(at.stage, 1) + row * 4);
      if constexpr (of_values) factor[n] = value_factor<T>(static_cast<int32_t>(row) < rows ? of_value : 0.0f);
      else factor[n] = key_factor<T>(load_shared_float(scales(at.stage, 0) + row * 4), of_value);
    }
    const auto load = [&](int32_t half, int32_t n) {
      const int32_t row = n * 32 + first_row;
      const uint4 elements = load_shared16(stage + static_cast<uint32_t>(kRaw + row * dims + half * 64 + piece * 16));
      return row < (dim == 128 && half == 1 ? second_rows : rows) ? elements : make_uint4(0, 0, 0, 0);
    };
    const auto store = [&](int32_t half, int32_t n, const uint4& elements) {
      const int32_t row = n * 32 + first_row;
      uint4 wide[2];
      widen_f8<T>(elements, wide);
      const uint32_t to = stage + static_cast<uint32_t>(half * Layout::half + row * 128);
#pragma unroll
      for (int32_t i = 0; i < 2; ++i)
        store_shared16(to + static_cast<uint32_t>((piece * 2 + i) ^ row % 8) * 16, scaled<T>(wide[i], factor[n]));
    };
#pragma unroll
    for (int32_t half = 0; half < kDirect; ++half)
#pragma unroll
      for (int32_t n = 0; n < kPieces; ++n) store(half, n, load(half, n));
    uint4 held[kHeld * kPieces];
#pragma unroll
    for (int32_t i = 0; i < kHeld * kPieces; ++i) held[i] = load(kDirect + i / kPieces, i % kPieces);
    shared_fence();  // completes the loads: of elements before threads overwrite them, of scales before a copy does
    named_barrier(kWidenBarrier, 128);
#pragma unroll
    for (int32_t i = 0; i < kHeld * kPieces; ++i) store(kDirect + i / kPieces, i % kPieces, held[i]);
    shared_fence();
    __syncwarp();
    if (elected()) barrier_arrive(barrier(of_values ? Layout::values_full : Layout::keys_full, at.stage));
    at.next();
  }

  // Loads the keys of a tile and the values of the tile before it.
  __device__ __forceinline__ void step(const Tile& tile, const Tile& before) {
    if (thread < 32) {
      if (tile.rows > 0) request<false>(tile);
      if (before.rows > 0) request<true>(before);
    }
    if (tile.rows > 0) widen<false>(tile.rows);
    if (before.rows > 0) widen<true>(before.rows);
  }

  __device__ __forceinline__ void run() {
    const KvLayout& layout = p.args.common.layout;
    const int32_t shift = layout.block_size == 16 ? 4 : 5;
    Tile before;
    for (UnitSchedule schedule(p); schedule.there(); ++schedule.round) {
      const Unit unit(p, schedule.unit());
      const int32_t* const table = p.args.common.rows.block_ids + p.args.common.rows.table[unit.item.row];
      const int32_t last = unit.last_key();
#pragma unroll 1
      for (int32_t key = unit.first_key(kTileKeys); key <= last; key += kTileKeys) {
        Tile tile;
        tile.rows = min(kTileKeys, last + 1 - key);
        tile.kv_head = unit.kv_head;
        if (thread < 32 && lane << shift < tile.rows) tile.id = table[(key >> shift) + lane];
        step(tile, before);
        before = tile;
      }
    }
    step(Tile{}, before);
  }
};

#endif

}  // namespace mr::cuda::prefill
