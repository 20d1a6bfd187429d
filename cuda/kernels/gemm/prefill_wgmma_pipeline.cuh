// prefill_wgmma_pipeline: the shared memory of a block of the prefill class, its K partitions, where it is in its cluster, and its
// producer.
//
// A stage of the pipeline is one unit of 64 inputs: the planes of the panels' packed bytes, and the tokens as swizzled
// rows of 128 bytes. The blocks of a cluster have tiles side by side, along the rows, the tokens or both. Each block loads a share
// of the data that they have in common and multicasts it to all. After a tile's last unit the producer hands some stages to the
// epilogue.
#pragma once

#include "kernels/gemm/packed_access.cuh"
#include "kernels/gemm/pipeline.cuh"
#include "kernels/gemm/prefill_wgmma.h"
#include "kernels/gemm/targets.cuh"
#include "kernels/launch.h"

#if MR_HOPPER
#include <cuda.h>
#endif

namespace mr::cuda {

template <int32_t T, int32_t rows_, int32_t tokens_>
struct PrefillLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t tokens = tokens_, panels = rows_ / kPanelRows, warps = panels;  // one panel for each consumer warp
  // A stage holds the planes one after another, each as two halves of the panels.
  static constexpr bool boxed = prefill_boxed(f);
  __host__ __device__ static constexpr int32_t plane_bytes(int32_t i) {
    constexpr WeightFormat format = f;
    return prefill_plane(format, i);
  }
  __host__ __device__ static constexpr int32_t half_bytes(int32_t i) { return (panels / 2 * plane_bytes(i) + 127) / 128 * 128; }
  __host__ __device__ static constexpr int32_t plane_at(int32_t i) {
    return 2 * ((i > 0 ? half_bytes(0) : 0) + (i > 1 ? half_bytes(1) : 0) + (i > 2 ? half_bytes(2) : 0) + (i > 3 ? half_bytes(3) : 0));
  }
  static constexpr int32_t weights = (plane_at(kPrefillPlanes) + 1023) / 1024 * 1024, rows = tokens * 128;
  // The epilogue needs room for sixteen tokens of a pair, which Q2_K's units alone do not give it.
  static constexpr int32_t stage = weights + rows > 16 * 6 * rows_ ? weights + rows : 16 * 6 * rows_;
  static_assert(stage % 1024 == 0);
  static constexpr bool publishes = Format<T>::six_bits;
  // Helpers hand fragments to consumers; readers are all warps that read a stage.
  static constexpr int32_t helpers = f.block > 1 && warps == 4 ? warps : 0, readers = warps + helpers;
  static constexpr int32_t slots = 2, handoff = slots * helpers * 2048;  // a unit's fragments of a warp
  static constexpr int32_t exchange_each = publishes ? f.units * 256 : 0;  // of a warp
  static constexpr int32_t exchange = readers * exchange_each;
  static constexpr int32_t spare = 128;  // target of copies that are never read
  static constexpr int32_t most_stages = 16, barriers = (2 * most_stages + 2 * slots * helpers) * 8;
  static constexpr int32_t stages_that_fit = (226 * 1024 - spare - exchange - handoff - barriers) / stage;
  static constexpr int32_t stages = stages_that_fit > most_stages ? most_stages : stages_that_fit;
  static constexpr int32_t used = stages * stage + spare + exchange + handoff + barriers + 1024;  // 1024: to align the stages
  // Shared memory admits one block of a kernel to an SM, so clusters that start early, on the SMs that the kernel
  // before leaves first, spread over the whole device.
  static constexpr int32_t alone = 115 * 1024, bytes = used > alone ? used : alone;

  // The epilogue borrows stages of the pipeline, each for a piece of the tile's tokens; of a pair, each half of the
  // warps finishes half of the tokens and has pieces of its own. epilogue_bytes: of a token in a piece: its sums or
  // results; of a pair the sums that the halves exchange, and the results.
  __host__ __device__ static constexpr int32_t epilogue_bytes(bool pair) { return rows_ * (pair ? 6 : 4); }
  __host__ __device__ static constexpr int32_t epilogue_tokens(bool pair) { return pair ? tokens / 2 : tokens; }
  // Tokens of a TMA box of results.
  __host__ __device__ static constexpr int32_t out_box(bool pair) {
    return epilogue_tokens(pair) >= 32 && stage / epilogue_bytes(pair) >= 32 ? 32 : 16;
  }
  __host__ __device__ static constexpr int32_t epilogue_stages(bool pair) {
    const int32_t most = stage / epilogue_bytes(pair) / out_box(pair) * out_box(pair);
    return (epilogue_tokens(pair) + most - 1) / most;
  }
  // Tokens of every piece but the last, which may have fewer.
  __host__ __device__ static constexpr int32_t piece(bool pair) {
    const int32_t boxes = epilogue_tokens(pair) / out_box(pair);
    return (boxes + epilogue_stages(pair) - 1) / epilogue_stages(pair) * out_box(pair);
  }
  __host__ __device__ static constexpr int32_t piece_tokens(bool pair, int32_t i) {
    const int32_t left = epilogue_tokens(pair) - i * piece(pair);
    return left < piece(pair) ? left : piece(pair);
  }
  static_assert(stages >= 3);
  // If two warpgroups multiply, a third donates its registers to them. If one multiplies without helpers, half of an
  // SM's registers suffice, and the block can start on an SM where the kernel before still runs.
  static constexpr bool gives_registers = warps > 4;
  static constexpr int32_t threads = gives_registers ? kWgmmaThreads : readers * 32 + 32;
  static constexpr int32_t blocks = gives_registers || helpers > 0 ? 1 : 2;
};

#if MR_HOPPER
struct PrefillMaps {
  CUtensorMap tokens;  // boxes of one unit's columns and a block's share of a tile's tokens
  CUtensorMap out[kGemmTargets];  // of each target, if boxed_out: 128 bytes of rows (or half a tile's) and some tokens
  CUtensorMap weights[kGemmTargets][kPrefillPlanes];  // of each target: boxes of a plane of half a tile's panels
};
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// PrefillPartitions is which K partitions (gemm.h) a block computes, and how they are added to the residual stream in order.
//
// In sequence, a block computes every partition of each of its tiles. Concurrently, each cluster computes one partition
// of one tile: the first clusters, as many as there are tiles, have partition 0, the next ones partition 1, and so on.
// Either way a partition loads the residual after the one before it has been stored. Semaphores in global memory
// order this: one for every 64 rows of a block's tile, indexed by the block's position among those of its partition.
// The warp that has stored partition i sets it to i + 1; the waiter of the last partition sets it to 0 again. Tiles
// past the last have none.
//
// There is no deadlock. In sequence, the producer waits only after it has requested all units of a partition, and while
// these are multiplied the consumers announce the partition before. Concurrently, blocks wait only for blocks of lower
// index, and the device starts those first, so the lowest block that has not ended never waits, whatever else runs
// on the device. That blocks start in the order of their index is what devices do; CUDA does not promise it.
template <int32_t rows>
struct PrefillPartitions {
  const WgmmaParams& p;

  // The block's first item and its first partition.
  __device__ __forceinline__ int32_t first_item() const { return p.concurrent ? cluster() % p.item_stride : cluster(); }
  __device__ __forceinline__ int32_t first() const { return p.concurrent ? cluster() / p.item_stride : 0; }
  // Advances to the block's next partition of the tile and returns true; after the last, returns false with the first.
  __device__ __forceinline__ bool next(int32_t& partition) const {
    if (p.concurrent) return false;
    if (++partition < p.partitions) return true;
    partition = 0;
    return false;
  }

  // Returns the first unit of a partition, or the number of units after the last: groups times partition divided by
  // partitions.
  __device__ __forceinline__ int32_t unit(int32_t partition) const {
    return min(static_cast<int32_t>(__umulhi(p.partition_groups * static_cast<uint32_t>(partition), p.partition_share)) * kGroupUnits,
               p.units);
  }
  __device__ __forceinline__ int32_t units(int32_t partition) const { return unit(partition + 1) - unit(partition); }

  // Waits until the partition before has been stored, for the 64 rows `group` of this block's tile. Called by one
  // thread. Its copies may then load the rows, and so may threads that pass a barrier after it.
  __device__ __forceinline__ void await(int32_t group, int32_t partition) const {
    uint32_t* const here = semaphore(group, partition);
    uint32_t stored;
    do {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(stored) : "l"(here) : "memory");
    } while (stored < static_cast<uint32_t>(partition));
    if (partition + 1 == p.partitions) asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(here), "r"(0) : "memory");
    asm volatile("fence.acq_rel.gpu;\nfence.proxy.async.global;" ::: "memory");
  }

  // Announces that a partition has been stored. Called by the thread that waited for its TMA stores, or after a barrier
  // if other threads stored.
  __device__ __forceinline__ void announce(int32_t group, int32_t partition) const {
    asm volatile("fence.proxy.async.global;\nst.release.gpu.global.u32 [%0], %1;" ::"l"(semaphore(group, partition)),
                 "r"(partition + 1)
                 : "memory");
  }

 private:
  __device__ __forceinline__ int32_t cluster() const { return static_cast<int32_t>(blockIdx.x) / (p.row_blocks * p.token_blocks); }
  __device__ __forceinline__ uint32_t* semaphore(int32_t group, int32_t partition) const {
    const int32_t before = p.concurrent ? partition * p.item_stride * p.row_blocks * p.token_blocks : 0;  // blocks
    return p.semaphores + (static_cast<int32_t>(blockIdx.x) - before) * kSemaphoresABlock + group;
  }
  static_assert(rows / 64 <= kSemaphoresABlock);
};

template <int32_t T, int32_t rows, int32_t tokens>
struct PrefillPipeline {
  using Layout = PrefillLayout<T, rows, tokens>;
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t half_panels = Layout::panels / 2;

  const WgmmaParams& p;
  const PrefillMaps& maps;
  const PrefillPartitions<rows> partitions;
  uint32_t stage_memory, spare, full, empty;  // addresses; full and empty: one barrier for each stage
  int32_t row_rank, token_rank;  // position in the cluster; the rank is token_rank * row_blocks + row_rank
  int32_t warp, lane;
  int32_t panel;  // of the tile: the warp's own, or that of the warp that it helps
  int32_t peer_rank;  // the peer to which this lane reports what its warp has read; -1: none

  // Peers are the blocks that load some of this block's data, and whose data it loads: those with its tokens and those
  // with its rows, itself among both.
  __device__ __forceinline__ static int32_t peers(const WgmmaParams& p) { return p.row_blocks + p.token_blocks - 1; }
  // Returns the rank of peer i.
  __device__ __forceinline__ int32_t peer(int32_t i) const {
    return i < p.row_blocks ? token_rank * p.row_blocks + i : (1 - token_rank) * p.row_blocks + row_rank;
  }

  // Whether an item may be half a tile.
  static constexpr bool kHalves = rows == kPrefillFormList[kWidestForm].rows && tokens == kPrefillFormList[kWidestForm].tokens;
  __device__ __forceinline__ bool is_half(int32_t item) const { return kHalves && item >= p.whole; }

  // Finds this block's row tile and its first token; either may lie past the last. Items sweep all tokens for a few
  // clusters of row tiles at a time, so that the area in progress is nearly square and fits the L2 cache.
  __device__ __forceinline__ void locate(int32_t item, int32_t& tile, int32_t& token0) const {
    int32_t half = 0;
    if (is_half(item)) {
      half = (item - p.whole) % 2;
      item = p.whole + (item - p.whole) / 2;
    }
    const int32_t band = item / (p.band * p.token_tiles), within = item % (p.band * p.token_tiles);
    const int32_t width = min(p.band, p.row_clusters - band * p.band);
    tile = (band * p.band + within % width) * p.row_blocks + row_rank;
    token0 = (within / width * p.token_blocks + token_rank) * tokens + half * (tokens / 2);
  }

  // Weights are the halves of a unit's weights for this block's row tile, of a pair the gate's and the up's. If two
  // blocks have them in common, each loads one half. Panels past the last are zeros, or the last panel if they are
  // copied one by one.
  struct Weights {
    int32_t target[2], first[2];
  };
  __device__ __forceinline__ Weights weights_of(int32_t tile) const {
    if (p.pair) return {{0, 1}, {tile * half_panels, tile * half_panels}};
    const int32_t i = target_index(p, tile), first = (tile - p.targets[i].first_tile) * Layout::panels;
    return {{i, i}, {first, first + half_panels}};
  }
  __device__ __forceinline__ static constexpr int32_t weight_bytes(int32_t u) {
    return Layout::panels * (f.quants + f.high + f.scales + (u == 0 ? f.header : 0));
  }
  // Bytes from the start of a group to its plane i of unit u.
  __device__ __forceinline__ static constexpr int32_t plane_from(int32_t i, int32_t u) {
    return i == 0 ? Format<T>::quants_at(u) : i == 1 ? Format<T>::high_at(u) : i == 2 ? Format<T>::scales_at(u) : Format<T>::header_plane;
  }

  // Returns whether another block, along the tokens, has the same weights and loads the other half.
  __device__ __forceinline__ bool shares_weights() const { return p.token_blocks > 1; }

  // Calls copy(map, x, y, offset in a stage) for every box of this block's share of a unit's weights.
  template <class Copy>
  __device__ __forceinline__ void for_boxes(const Weights& w, int32_t unit, Copy&& copy) const {
    const int32_t group = unit / f.units, u = unit % f.units;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      if (shares_weights() && half != token_rank) continue;
#pragma unroll
      for (int32_t plane = 0; plane < kPrefillPlanes; ++plane) {
        if (Layout::plane_bytes(plane) == 0 || (plane == 3 && u != 0)) continue;
        copy(&maps.weights[w.target[half]][plane], (group * Format<T>::group_bytes + plane_from(plane, u)) / 8, w.first[half],
             Layout::plane_at(plane) + half * Layout::half_bytes(plane));
      }
    }
  }

  // Share is what this block loads in every unit, and for which blocks.
  struct Share {
    int32_t count;              // of a tile's tokens
    uint32_t offset;            // offset in a stage
    uint16_t for_rows, for_weights, for_peers;  // ranks of the blocks that share tokens, weights, or either
  };
  __device__ __forceinline__ Share share() const {
    const int32_t rows_each = tokens / p.row_blocks;
    const uint16_t for_rows = static_cast<uint16_t>(((1 << p.row_blocks) - 1) << token_rank * p.row_blocks);
    const uint16_t for_weights = static_cast<uint16_t>((shares_weights() ? 1 | 1 << p.row_blocks : 1) << row_rank);
    return {rows_each, Layout::weights + static_cast<uint32_t>(row_rank * rows_each * 128), for_rows, for_weights,
            static_cast<uint16_t>(for_rows | for_weights)};
  }

  // Announces a unit's bytes and requests its weights.
  __device__ __forceinline__ void produce_weights(const Weights& w, const Share& own, int32_t unit, int32_t stage, bool half) const {
    const uint32_t base = stage_memory + stage * Layout::stage, done = full + stage * 8;
    barrier_expect(done, (half ? Layout::rows / 2 : Layout::rows) + weight_bytes(unit % f.units));
    const bool shared = shares_weights();
    if constexpr (Layout::boxed) {
      for_boxes(w, unit, [&](const CUtensorMap* map, int32_t x, int32_t y, uint32_t place) {
        if (shared) tensor_copy(base + place, map, x, y, done, own.for_weights);
        else tensor_copy(base + place, map, x, y, done);
      });
    } else {
#pragma unroll
      for (int32_t i = 0; i < Layout::panels; ++i) {
        const int32_t half = i / half_panels;
        if (shared && half != token_rank) continue;
        const KernelTarget& target = p.targets[w.target[half]];
        const int32_t panel_index = min(w.first[half] + i % half_panels, target.panels - 1);
        const uint8_t* from = target.data + panel_index * p.panel_bytes + int64_t{unit} * Format<T>::group_bytes;
        const uint32_t to = base + i * Layout::plane_bytes(0);
        if (shared) bulk_copy(to, from, Layout::plane_bytes(0), done, own.for_weights);
        else bulk_copy(to, from, Layout::plane_bytes(0), done);
      }
    }
  }

  // Requests this block's share of a unit's tokens for all blocks that have them in common. If only half of the tile's
  // tokens are needed, half of the blocks load them.
  __device__ __forceinline__ void produce_tokens(const Share& own, int32_t token0, int32_t unit, int32_t stage, bool half) const {
    if (half && row_rank * own.count >= tokens / 2) return;
    tensor_copy(stage_memory + stage * Layout::stage + own.offset, &maps.tokens, unit * kUnitCols, token0 + row_rank * own.count,
                full + stage * 8, own.for_rows);
  }

  using StageCursor = PipelineState<Layout::stages>;

  // Returns the first row of a tile within its target, and the target.
  __device__ __forceinline__ int32_t first_row(int32_t tile, int32_t& target) const {
    target = target_index(p, tile);
    return (tile - p.targets[target].first_tile) * rows;
  }

  // Hands stages to the epilogue of a partition, filled with the residual, if any, as f32 in boxes of 32 rows. The
  // blocks of a cluster also copy 16 bytes for one another into each of these stages. They are never read; they tell
  // each block that all its peers have come this far, because only then may it hand the stage back to them.
  template <bool pair>
  __device__ __forceinline__ void fill_epilogue_stages(const Share& own, int32_t tile, int32_t token0, int32_t partition,
                                                       StageCursor& cursor) const {
    constexpr int32_t piece = Layout::piece(pair), box_tokens = Layout::out_box(pair);
    const bool adds = !pair && p.epilogue == Epilogue::kAddF32 && tile < p.tiles;
    int32_t target;
    const int32_t row = first_row(min(tile, p.tiles - 1), target);
    // Before stages go to partitions whose stores a semaphore announces later: its return to 0 must come first.
    for (int32_t group = 0; adds && partition > 0 && group < rows / 64; ++group) partitions.await(group, partition);
    for (int32_t i = 0; i < Layout::epilogue_stages(pair); ++i, cursor.next()) {
      const int32_t count = Layout::piece_tokens(pair, i);
      const uint32_t to = stage_memory + cursor.stage * Layout::stage, done = full + cursor.stage * 8;
      barrier_wait(empty + cursor.stage * 8, cursor.phase ^ 1);
      barrier_expect(done, peers(p) * 16 + (adds ? count * rows * 4 : 0));
      bulk_copy(spare, p.targets[0].data, 16, done, own.for_peers);
      if constexpr (!pair) {
        for (int32_t box = 0; adds && box < rows / 32 * (count / box_tokens); ++box) {
          const int32_t line = box % (rows / 32), n = box / (rows / 32) * box_tokens;
          tensor_copy(to + (line * piece + n) * 128, &maps.out[target], row + line * 32, token0 + i * piece + n, done);
        }
      }
    }
  }
  __device__ __forceinline__ void fill_epilogue_stages(const Share& own, int32_t tile, int32_t token0, int32_t partition,
                                                       StageCursor& cursor) const {
    if (p.pair) fill_epilogue_stages<true>(own, tile, token0, partition, cursor);
    else if (p.boxed_out) fill_epilogue_stages<false>(own, tile, token0, partition, cursor);
  }

  // Returns how many stages every epilogue takes.
  __device__ __forceinline__ int32_t epilogue_stages() const {
    return p.pair ? Layout::epilogue_stages(true) : p.boxed_out ? Layout::epilogue_stages(false) : 0;
  }

  // Runs in one thread.
  __device__ __forceinline__ void produce() const {
    const Share own = share();
    // The first round of stages requests weights of the first tile before the kernel ahead has ended, and tokens after.
    // Further weights of that tile are prefetched into the L2 cache, by the blocks of the first tokens alone. First
    // items are whole.
    int32_t partition = partitions.first(), early = min(partitions.units(partition), Layout::stages);
    {
      int32_t tile, token0;
      locate(partitions.first_item(), tile, token0);
      const Weights weights = weights_of(min(tile, p.tiles - 1));
      const int32_t begin = partitions.unit(partition);
      for (int32_t i = 0; i < early; ++i) produce_weights(weights, own, begin + i, i, false);
      if constexpr (Layout::boxed) {
        const int32_t end = min(p.concurrent ? partitions.unit(partition + 1) : p.units, begin + early + p.prefetch);
        for (int32_t unit = begin + early; token0 < p.token_blocks * tokens && unit < end; ++unit)
          for_boxes(weights, unit, [](const CUtensorMap* map, int32_t x, int32_t y, uint32_t) { tensor_prefetch(map, x, y); });
      }
    }
    grid_wait();
    grid_trigger();
    StageCursor cursor;
    for (int32_t item = partitions.first_item(); item < p.items; item += p.item_stride) {
      int32_t tile, token0;
      locate(item, tile, token0);
      const bool half = is_half(item);
      const Weights weights = weights_of(min(tile, p.tiles - 1));
      do {
        const int32_t end = partitions.unit(partition + 1);
        for (int32_t unit = partitions.unit(partition); unit < end; ++unit, --early, cursor.next()) {
          if (early <= 0) {
            barrier_wait(empty + cursor.stage * 8, cursor.phase ^ 1);
            produce_weights(weights, own, unit, cursor.stage, half);
          }
          produce_tokens(own, token0, unit, cursor.stage, half);
          if constexpr (kFetchesSums) fetch_sum(tile, token0, unit);
        }
        fill_epilogue_stages(own, tile, token0, partition, cursor);
      } while (partitions.next(partition));
    }
  }

  // A large tile adds to more residual than memory delivers during a few units, so one box is prefetched into L2 with
  // each of the first units. Later partitions find the stored sums there.
  static constexpr bool kFetchesSums = rows * tokens >= 128 * 128;
  __device__ __forceinline__ void fetch_sum(int32_t tile, int32_t token0, int32_t unit) const {
    constexpr int32_t box = Layout::out_box(false), across = rows / 32;
    if (p.epilogue != Epilogue::kAddF32 || !p.boxed_out || tile >= p.tiles || unit >= across * (tokens / box)) return;
    int32_t target;
    const int32_t row = first_row(tile, target);
    tensor_prefetch(&maps.out[target], row + unit % across * 32, token0 + unit / across * box);
  }

  __device__ __forceinline__ void await(const StageCursor& cursor) const { barrier_wait(full + cursor.stage * 8, cursor.phase); }
  __device__ __forceinline__ void release(int32_t stage) const {
    __syncwarp();
    if (peer_rank >= 0) barrier_arrive_at(empty + stage * 8, peer_rank);
  }
  // Passes over the stages of an epilogue.
  __device__ __forceinline__ void pass(StageCursor& cursor) const {
    for (int32_t i = epilogue_stages(); i > 0; --i, cursor.next()) {
      await(cursor);
      release(cursor.stage);
    }
  }
};

#endif

}  // namespace mr::cuda
