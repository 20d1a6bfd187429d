// several_wgmma_pipeline: the shared memory of a several_rows_wgmma block, and the producer warps that fill it.
//
// A stage is a group, or as many units as keep its weights within 32 KiB: the packed bytes of 12 panels, each contiguous in its matrix
// and copied whole, and for every unit of 64 inputs the rows of up to 64 pairs, as swizzled rows of 128 bytes. Rows are gathered by
// pair, so threads copy them to the places where a tensor copy would have put them, wait, fence them and only then arrive
// (announce). Two arrivals of each producer warp fill a stage: for its weights and for its rows.
//
// A producer warp has whole eights of rows. If blocks fold (gemm/folded.cuh) it therefore makes their input sums too, once for all
// consumers, from rows that its own threads have copied.
#pragma once

#include "kernels/experts/grouped_work.cuh"
#include "kernels/gemm/folded.cuh"
#include "kernels/gemm/wgmma.cuh"

namespace mr::cuda {

template <int32_t T>
struct SeveralWgmmaLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t pairs = kDecodeWgmmaTile, warpgroups = 3, panels = 4 * warpgroups;
  static constexpr int32_t consumers = panels, producers = 4, threads = (consumers + producers) * 32;  // the first two in warps
  static constexpr int32_t unit = f.quants + f.high + f.scales;
  static constexpr int32_t units = f.units > 1 ? f.units : panels * unit * 4 <= 32768 ? 4 : panels * unit * 2 <= 32768 ? 2 : 1;
  // Bytes of a stage: a panel's weights, a unit's rows, and three terms of the input sums of eight rows for each lane.
  static constexpr int32_t panel = units * unit + f.header, unit_rows = pairs * 128, rows = units * unit_rows;
  static constexpr int32_t sums_of_eight = 3 * 128, sums = kFolds<T> ? pairs / 8 * sums_of_eight : 0;
  static constexpr int32_t sums_at = rows + panels * panel, stage = (sums_at + sums + 1023) / 1024 * 1024;
  static constexpr int32_t exchange_each = 512;  // of a consumer warp: the sums of a fragment
  static constexpr int32_t works = 10 * 16;      // the items of the stages, and two items on their way
  static constexpr int32_t fixed = consumers * exchange_each + works + 128 + 1024;  // barriers; 1024: to align the stages
  static constexpr int32_t most = 227 * 1024, stages_that_fit = (most - fixed) / stage, stages = stages_that_fit > 8 ? 8 : stages_that_fit;
  static constexpr int32_t bytes = stages * stage + fixed;
  // Stages whose rows are in flight. A stage is announced when the one this many after it has been requested, and consumers hold a
  // stage while they wait for the next one, so two stages fewer than there are at most.
  static constexpr int32_t in_flight = stages > 3 ? 2 : 1;
  static_assert(stages >= 3 && panel % 16 == 0);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T>
struct SeveralWgmmaPipeline {
  using Layout = SeveralWgmmaLayout<T>;
  using StageCursor = PipelineState<Layout::stages>;
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t kUnits = Layout::units, kSlots = Layout::panels / Layout::producers;  // panels of a producer warp
  static constexpr int32_t kEights = Layout::pairs / 8 / Layout::producers, kRowSteps = 2 * kEights;  // pieces of a lane in a unit

  const GroupedParams& grouped;
  const GemvParams& p;
  uint32_t stages, exchange, works, full, empty;  // addresses; full and empty: a barrier for each stage
  int32_t warp, lane;
  const int32_t panels_each = p.pair != 0 ? Layout::panels / 2 : Layout::panels;  // of a target
  const int32_t panel_blocks = (p.targets[0].panels + panels_each - 1) / panels_each;
  const int32_t units = p.groups * f.units;
  int32_t items = 0;

  // A block's panels are numbered by consumer warp. Of a pair, the first two warps of a warpgroup have panels of the gate, and the
  // other two the same panels of the up.
  __device__ __forceinline__ const KernelTarget& target(int32_t slot) const { return p.targets[p.pair != 0 ? slot % 4 / 2 : 0]; }
  // The first panel of an item, and that of a slot, which may lie past the last one.
  __device__ __forceinline__ int32_t first_panel(int32_t item) const { return item % panel_blocks * panels_each; }
  __device__ __forceinline__ int32_t panel_of(int32_t first, int32_t slot) const {
    return first + (p.pair != 0 ? slot / 4 * 2 + slot % 2 : slot);
  }
  __device__ __forceinline__ uint32_t rows_in(int32_t stage, int32_t u) const {
    return stages + stage * Layout::stage + u * Layout::unit_rows;
  }
  __device__ __forceinline__ uint32_t panel_in(int32_t stage, int32_t slot) const {
    return stages + stage * Layout::stage + Layout::rows + slot * Layout::panel;
  }
  // The words of lane l are 4 l bytes further, and those of the next term 128.
  __device__ __forceinline__ uint32_t sums_in(int32_t stage, int32_t eight) const {
    return stages + stage * Layout::stage + Layout::sums_at + eight * Layout::sums_of_eight;
  }
  __device__ __forceinline__ GroupedWork work_of(int32_t item) const {
    return {item, item < items ? grouped.plan.tiles[item / panel_blocks] : ExpertTile{}};
  }

  __device__ __forceinline__ void await(const StageCursor& cursor) const { barrier_wait(full + cursor.stage * 8, cursor.phase); }
  // Releases a stage, after products of all that the warp has read of it (see barrier_arrive).
  __device__ __forceinline__ void release(int32_t stage) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + stage * 8);
  }

  // Feed is what a producer warp copies for an item.
  struct Feed {
    int32_t expert, panel, count;  // panel: the first of the item; count: pairs of the tile
    uint32_t rows[kRowSteps];      // of this lane's pieces, in 16 bytes from x
  };
  __device__ __forceinline__ int32_t producer() const { return warp - Layout::consumers; }
  __device__ __forceinline__ int32_t first_slot() const { return producer() * kSlots; }
  // The row of a lane's step i, in an eight of the warp, and its piece of 16 bytes.
  __device__ __forceinline__ int32_t row_of(int32_t i) const { return (producer() + i / 2 * Layout::producers) * 8 + i % 2 * 4 + lane / 8; }
  __device__ __forceinline__ int32_t piece() const { return lane % 8; }

  // Loads the numbers of the pairs of this lane's rows.
  __device__ __forceinline__ void load_pairs(int32_t (&pairs)[kRowSteps], const ExpertTile& tile) const {
#pragma unroll
    for (int32_t i = 0; i < kRowSteps; ++i) pairs[i] = grouped.plan.pairs[tile.first + min(row_of(i), tile.count - 1)];
  }

  __device__ __forceinline__ Feed feed_of(const GroupedWork& work, const int32_t (&pairs)[kRowSteps]) const {
    Feed feed{work.tile.expert, first_panel(work.item), work.tile.count, {}};
#pragma unroll
    for (int32_t i = 0; i < kRowSteps; ++i) feed.rows[i] = static_cast<uint32_t>(pairs[i] / grouped.x_share * (p.x_stride / 8));
    return feed;
  }

  // Runs in one thread of a warp: announces the bytes of the warp's panels and requests them. A panel past the last is read as the
  // last. Only types without groups have stages that end past the last unit.
  __device__ __forceinline__ void request_weights(const Feed& feed, int32_t unit, int32_t stage) const {
    const uint32_t done = full + stage * 8;
    const int32_t bytes = f.units > 1 || unit + kUnits <= units ? Layout::panel : (units - unit) * Layout::unit;
    const int64_t from = feed.expert * grouped.matrix_bytes + unit / kUnits * Layout::panel;
    barrier_expect(done, kSlots * bytes);
#pragma unroll
    for (int32_t i = 0; i < kSlots; ++i) {
      const KernelTarget& of = target(first_slot() + i);
      const int64_t panel = min(panel_of(feed.panel, first_slot() + i), of.panels - 1);
      bulk_copy(panel_in(stage, first_slot() + i), of.data + from + panel * p.panel_bytes, bytes, done);
    }
  }

  // Copies this lane's pieces of a stage's rows to their swizzled places. Rows without a pair keep what the stage holds; columns past
  // the last become zeros.
  __device__ __forceinline__ void request_rows(const Feed& feed, int32_t unit, int32_t stage) const {
    const int32_t left = (p.cols - unit * kUnitCols) * 2 - piece() * 16;  // bytes from the lane's piece to the end of the row
#pragma unroll
    for (int32_t i = 0; i < kRowSteps; ++i) {
      if (row_of(i) >= feed.count) continue;
      const uint32_t to = rows_in(stage, 0) + row_of(i) * 128 + (piece() ^ (row_of(i) & 7)) * 16;
      const uint8_t* const row = static_cast<const uint8_t*>(p.x) + static_cast<uint64_t>(feed.rows[i]) * 16;
      const uint8_t* const from = row + unit * (kUnitCols * 2) + piece() * 16;
#pragma unroll
      for (int32_t u = 0; u < kUnits; ++u) {
        constexpr int32_t bytes = kUnitCols * 2;  // of a row's unit
        if constexpr (f.units > 1) {  // whole groups
          copy16_through(to + u * Layout::unit_rows, from + u * bytes);
        } else {
          copy16_or_zero(to + u * Layout::unit_rows, left > u * bytes ? from + u * bytes : row,
                         static_cast<uint32_t>(min(max(left - u * bytes, 0), 16)));
        }
      }
    }
  }

  // Makes the input sums of a stage's rows that this warp has copied, and of which `count` have pairs.
  __device__ __forceinline__ void sum_inputs(int32_t stage, int32_t count) const {
#pragma unroll 1
    for (int32_t eight = producer(); eight * 8 < count; eight += Layout::producers) {
      InputSums inputs;
      inputs.clear();
#pragma unroll
      for (int32_t u = 0; u < kUnits; ++u) {
        const uint32_t row = rows_in(stage, u) + (eight * 8 + lane % 8) * 128;
        uint32_t x[4];
        load_matrices(x, row + (lane / 8 ^ (lane % 8)) * 16);
        inputs.add(x, u * 2, lane);
        load_matrices(x, row + ((lane / 8 + 4) ^ (lane % 8)) * 16);
        inputs.add(x, u * 2 + 1, lane);
      }
      uint32_t terms[3];
      inputs.split(terms);
#pragma unroll
      for (int32_t t = 0; t < 3; ++t) store_shared4(sums_in(stage, eight) + t * 128 + lane * 4, terms[t]);
    }
  }

  // Announces the warp's rows of a stage, which its threads' copies have written: each thread fences its own, then one arrives.
  __device__ __forceinline__ void announce(StageCursor& landed, int32_t count) const {
    if constexpr (kFolds<T>) {
      __syncwarp();
      sum_inputs(landed.stage, count);
    }
    shared_fence();
    __syncwarp();
    if (lane == 0) barrier_arrive(full + landed.stage * 8);
    landed.next();
  }

  // Runs in a producer warp. An item's tile and pairs are loaded during the item before, and its number is taken during the one before
  // that, so that no request waits for them. The stage after the last unit has no weights, but work without a tile.
  __device__ __forceinline__ void produce() const {
    StageCursor cursor, landed;
    int32_t unannounced = 0, counts[Layout::in_flight + 1] = {};  // pairs of the requested stages, the latest first
    const bool leads = producer() == 0 && lane == 0;
    const int32_t step = static_cast<int32_t>(gridDim.x);
    const bool takes = items > 2 * step;  // otherwise no block has a third item
    int32_t following = static_cast<int32_t>(blockIdx.x) + step;
    GroupedWork work = work_of(static_cast<int32_t>(blockIdx.x));
    int32_t pairs[kRowSteps];
    load_pairs(pairs, work.tile);
    for (uint32_t way = works + Layout::stages * 16, turn = 0; work.item < items; turn ^= 16) {
      const Feed feed = feed_of(work, pairs);
      const GroupedWork next = work_of(following);
      int32_t counted = items;
#pragma unroll 1
      for (int32_t unit = 0; unit < units; unit += kUnits, cursor.next()) {
        barrier_wait(empty + cursor.stage * 8, cursor.phase ^ 1);
        if (unit == 0 && leads) {
          work.write(works + cursor.stage * 16);
          if (takes) counted = count_grouped_item(grouped.plan.done);
        }
        if (elected()) request_weights(feed, unit, cursor.stage);
        __syncwarp();
        request_rows(feed, unit, cursor.stage);
        copies_commit();
        if (unit == 0 && next.item < items) load_pairs(pairs, next.tile);
        push(counts, feed.count);
        if (unannounced < Layout::in_flight) {
          ++unannounced;
          continue;
        }
        copies_wait<Layout::in_flight>();
        announce(landed, counts[Layout::in_flight]);
      }
      if (leads) {
        if (takes) end_grouped_items(grouped.plan.done, counted, items);
        store_shared4(way + turn, static_cast<uint32_t>(2 * step + counted));
      }
      // All producer warps have read what was in this place two items ago, because they have met since then.
      named_barrier(1, Layout::producers * 32);
      following = static_cast<int32_t>(load_shared4(way + turn));
      work = next;
    }
    barrier_wait(empty + cursor.stage * 8, cursor.phase ^ 1);
    if (leads) work.write(works + cursor.stage * 16);
    if (lane == 0) barrier_arrive(full + cursor.stage * 8);
    copies_wait<0>();
    push(counts, 0);
#pragma unroll
    for (int32_t i = Layout::in_flight; i >= 0; --i)
      if (i <= unannounced) announce(landed, counts[i]);
  }

 private:
  __device__ __forceinline__ static void push(int32_t (&counts)[Layout::in_flight + 1], int32_t count) {
#pragma unroll
    for (int32_t i = Layout::in_flight; i > 0; --i) counts[i] = counts[i - 1];
    counts[0] = count;
  }
};

#endif

}  // namespace mr::cuda
