// attention/prefill_fetch: the producer warps of prefill_wgmma, which load keys and values tile by tile, unit after
// unit, as far ahead as there are stages: from a cache of 16 bits, or from the scratch of prefill_widen.cuh.
#pragma once

#include "kernels/attention/prefill_unit.cuh"
#include "kernels/attention/wgmma.cuh"
#include "kernels/cache_map.h"

namespace mr::cuda::prefill {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Zeros rows from `begin` on of a tile; run by one warp.
template <int32_t dim>
__device__ __forceinline__ void zero_rows(uint32_t tile, int32_t begin, int32_t lane) {
  using Layout = UnitLayout<dim>;
#pragma unroll
  for (int32_t half = 0; half < Layout::halves; ++half)
    for (int32_t at = begin * 128 + lane * 16; at < Layout::half; at += 512)
      store_shared16(tile + static_cast<uint32_t>(half * Layout::half + at), make_uint4(0, 0, 0, 0));
}

// Run by one warp for keys and by another for values. Blocks past the last key of a unit are not read. Keys past it may
// be anything, because their scores are masked; values past it must be zeros, because a weight of 0 does not cancel a
// NaN.
template <int32_t dim, bool values>
__device__ __forceinline__ void fetch_tiles(const Params& p, const CacheMap& map, uint32_t memory, int32_t lane) {
  using Layout = UnitLayout<dim>;
  const KvLayout& layout = p.args.common.layout;
  const int32_t shift = layout.block_size == 16 ? 4 : 5, block_bytes = layout.block_size * 128;
  const uint32_t stage_memory = memory + (values ? Layout::values : Layout::keys);
  const uint32_t full = memory + (values ? Layout::values_full : Layout::keys_full);
  const uint32_t empty = memory + (values ? Layout::values_empty : Layout::keys_empty), came = memory + Layout::values_came;
  const bool wide = p.args.wide.memory != nullptr;
  PipelineState<Layout::stages> at;
  uint32_t zeroed = 0;  // parity of the barrier `came`
  bool waits = true;    // for the kernel ahead, which writes keys and values; units and block ids are the step's input
  if (elected()) map_prefetch(&map);
  for (UnitSchedule schedule(p); schedule.there(); ++schedule.round) {
    const Unit unit(p, schedule.unit());
    const int32_t* const table = wide ? nullptr : p.args.common.rows.block_ids + p.args.common.rows.table[unit.item.row];
    const int32_t last = unit.last_key();
    for (int32_t key = unit.first_key(Layout::tile_keys); key <= last; key += Layout::tile_keys, at.next()) {
      const int32_t rows = min(Layout::tile_keys, last + 1 - key), blocks = (rows + layout.block_size - 1) >> shift;
      const int32_t entry = (key >> shift) + lane, id = wide ? unit.item.wide + entry : lane < blocks ? table[entry] : 0;
      if (waits) {
        grid_wait();
        grid_trigger();
        waits = false;
      }
      const uint32_t stage = stage_memory + static_cast<uint32_t>(at.stage * Layout::side);
      const uint32_t ready = full + static_cast<uint32_t>(at.stage * 8), done = values && rows < Layout::tile_keys ? came : ready;
      barrier_wait(empty + static_cast<uint32_t>(at.stage * 8), at.phase ^ 1);
      if (elected()) barrier_expect(done, static_cast<uint32_t>(blocks * block_bytes * Layout::halves));
      for (int32_t i = 0; i < blocks; ++i) {
        const int32_t row = (__shfl_sync(0xffffffffu, id, i) * layout.kv_heads + unit.kv_head) << shift;
        if (elected()) {
#pragma unroll
          for (int32_t half = 0; half < Layout::halves; ++half)
            tensor_copy(stage + static_cast<uint32_t>(half * Layout::half + i * block_bytes), &map, half * 64, row, done);
        }
      }
      if (done == ready) continue;
      barrier_wait(came, zeroed);
      zeroed ^= 1;
      zero_rows<dim>(stage, rows, lane);
      shared_fence();
      __syncwarp();
      if (elected()) barrier_arrive(ready);
    }
  }
}

#endif

}  // namespace mr::cuda::prefill
