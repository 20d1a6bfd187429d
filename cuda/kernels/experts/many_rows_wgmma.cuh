// many_rows_wgmma: the grouped GEMM of the prefill class on devices with wgmma, for experts with many pairs. A block computes 16 panels
// of an expert's matrix, or 8 of its gate and the same 8 of its up, for the up to 128 pairs of one tile of the plan.
//
//   weights --bulk copies--> [stage 0][stage 1] ... --full--> 2 consumer warpgroups: a warp has two panels, unpacks one to A fragments
//   rows    --cp.async-----> [stage 0][stage 1] ... <-empty-- while the products of the other run; wgmma, 64 rows a warpgroup
//             4 producer warps                                |
//                                                             sums of gate and up meet in a lane --> epilogue --> out
//
// A stage is a unit of 64 inputs. Rows are gathered by pair, which tensor copies cannot do, so threads copy them to the places where
// a tensor copy would have put them. wgmma reads them through the async proxy: the thread that copied waits for its copies, fences
// them and only then arrives (announce). Panels of weights are copied whole and read by their warp alone.
//
// A warp sums in ascending order of the columns, in f32. The bits are those of many_rows.cuh, because mma and wgmma agree
// (gemm/mma_agreement.h). Products have 64, 96 or 128 columns, whichever hold the tile's pairs; what lies in columns without a pair does
// not matter, because columns do not meet. Blocks are persistent and take items from a counter (grouped_work.cuh); the next item's units
// arrive during the epilogue.
#pragma once

#include "kernels/experts/grouped_epilogue.cuh"
#include "kernels/experts/grouped_work.cuh"
#include "kernels/gemm/fragment.cuh"
#include "kernels/gemm/wgmma.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

template <int32_t T>
struct ManyWgmmaLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t pairs = kManyWgmmaTile, panels = 16, consumers = 8, producers = 4;  // the latter two in warps
  static constexpr int32_t threads = (consumers + producers) * 32;
  static constexpr int32_t unit = f.quants + f.high + f.scales, slot = unit + f.header;  // bytes of a panel in a stage
  // Whether every unit brings its group's header, because registers for two panels' headers of codes are not free.
  static constexpr bool repeats_header = T == kCodes;
  static constexpr int32_t rows = pairs * 128, stage = (rows + panels * slot + 1023) / 1024 * 1024;
  static constexpr int32_t exchange_each = Format<T>::six_bits ? 2 * f.units * 256 : 0;  // of a warp: what publish() writes
  // Where a warp transposes 32 outputs of 8 pairs. Four words of padding: both ways meet every bank once.
  static constexpr int32_t output = (32 + 4) * 4, outputs = 8 * output;
  static constexpr int32_t works = 10 * 16;  // what items the stages are of, and two items on their way
  static constexpr int32_t fixed = consumers * (exchange_each + outputs) + works + 128 + 1024;  // barriers; 1024: to align the stages
  static constexpr int32_t most = 227 * 1024, stages_that_fit = (most - fixed) / stage, stages = stages_that_fit > 8 ? 8 : stages_that_fit;
  static constexpr int32_t bytes = stages * stage + fixed;
  // Units whose rows are in flight. A unit is announced when the one this many after it has been requested, and consumers hold a
  // stage while they wait for the next one, so two stages fewer than there are at most.
  static constexpr int32_t in_flight = stages < 6 ? 2 : stages - 4;
  static_assert(stages >= 4 && in_flight <= stages - 2 && slot % 16 == 0 && stages <= 8);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A>
struct ManyWgmmaBlock {
  using Layout = ManyWgmmaLayout<T>;
  using StageCursor = PipelineState<Layout::stages>;
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t kRowsAtOnce = Layout::producers * 4;           // a row of a unit is eight pieces of 16 bytes
  static constexpr int32_t kRowSteps = Layout::pairs / kRowsAtOnce;       // pieces of a producer thread
  static constexpr int32_t kSlots = Layout::panels / Layout::producers;   // panels that a producer warp requests

  const GroupedParams& grouped;
  const GemvParams& p;
  uint32_t stages, exchange, outputs, works, full, empty;  // addresses; full and empty: a barrier for each stage
  int32_t warp, lane;
  const int32_t panels_each = p.pair != 0 ? Layout::panels / 2 : Layout::panels;  // of a target
  const int32_t panel_blocks = (p.targets[0].panels + panels_each - 1) / panels_each, units = p.groups * f.units;
  int32_t items = 0;

  __device__ __forceinline__ GroupedWork work_of(int32_t item) const {
    return {item, item < items ? grouped.plan.tiles[item / panel_blocks] : ExpertTile{}};
  }

  // A block's panels are numbered by warp, two for each: of a pair, slot 2w is a panel of gate and 2w + 1 the same panel of up.
  __device__ __forceinline__ const KernelTarget& target(int32_t slot) const { return p.targets[p.pair != 0 ? slot % 2 : 0]; }
  // May lie past the last panel.
  __device__ __forceinline__ int32_t panel_of(int32_t item, int32_t slot) const {
    return item % panel_blocks * panels_each + (p.pair != 0 ? slot / 2 : slot);
  }
  __device__ __forceinline__ uint32_t rows_in(int32_t stage) const { return stages + stage * Layout::stage; }
  __device__ __forceinline__ uint32_t weights_in(int32_t stage, int32_t slot) const {
    return stages + stage * Layout::stage + Layout::rows + slot * Layout::slot;
  }

  // Feed is where a producer warp copies an item's operands from. A warp past the last panel reads the last one.
  struct Feed {
    const uint8_t* panels[kSlots];
    uint32_t rows[kRowSteps];  // of this lane's pieces, in 16 bytes from x
    int32_t row_steps;         // those that have pairs
  };
  __device__ __forceinline__ int32_t thread() const { return (warp - Layout::consumers) * 32 + lane; }
  __device__ __forceinline__ int32_t first_slot() const { return (warp - Layout::consumers) * kSlots; }
  __device__ __forceinline__ int32_t piece() const { return thread() % 8; }

  __device__ __forceinline__ void aim(Feed& feed, const ExpertTile& tile, int32_t item) const {
#pragma unroll
    for (int32_t i = 0; i < kSlots; ++i) {
      const KernelTarget& of = target(i);
      const int64_t panel = min(panel_of(item, first_slot() + i), of.panels - 1);
      feed.panels[i] = of.data + tile.expert * grouped.matrix_bytes + panel * p.panel_bytes;
    }
    feed.row_steps = (tile.count - thread() / 8 + kRowsAtOnce - 1) / kRowsAtOnce;
#pragma unroll
    for (int32_t i = 0; i < kRowSteps; ++i) {
      const int32_t at = min(thread() / 8 + i * kRowsAtOnce, tile.count - 1);
      feed.rows[i] = static_cast<uint32_t>(grouped.plan.pairs[tile.first + at] / grouped.x_share * (p.x_stride / 8));
    }
  }

  // Runs in one thread of a warp: announces the bytes of the warp's panels and requests them.
  __device__ __forceinline__ void request_weights(const Feed& feed, int32_t unit, int32_t stage) const {
    const uint32_t done = full + stage * 8;
    const int32_t u = unit % f.units;
    const bool has_header = Layout::repeats_header || u == 0;
    barrier_expect(done, kSlots * (Layout::unit + (has_header ? f.header : 0)));
#pragma unroll
    for (int32_t i = 0; i < kSlots; ++i) {
      const uint32_t to = weights_in(stage, first_slot() + i);
      if constexpr (f.units == 1) {
        bulk_copy(to, feed.panels[i] + static_cast<int64_t>(unit) * Layout::unit, Layout::unit, done);
      } else {
        const uint8_t* const group = feed.panels[i] + static_cast<int64_t>(unit / f.units) * Format<T>::group_bytes;
        bulk_copy(to, group + Format<T>::quants_at(u), f.quants, done);
        if constexpr (f.high > 0) bulk_copy(to + f.quants, group + Format<T>::high_at(u), f.high, done);
        if constexpr (f.scales > 0) bulk_copy(to + f.quants + f.high, group + Format<T>::scales_at(u), f.scales, done);
        if (has_header) bulk_copy(to + Layout::unit, group + Format<T>::header_plane, f.header, done);
      }
    }
  }

  // Copies this thread's pieces of a unit's rows to their swizzled places. Rows without a pair keep what the stage holds; columns
  // past the last become zeros.
  __device__ __forceinline__ void request_rows(const Feed& feed, int32_t unit, int32_t stage) const {
    const uint32_t to = rows_in(stage) + thread() / 8 * 128 + (piece() ^ (thread() / 8 & 7)) * 16;
    const int32_t left = (p.cols - unit * kUnitCols) * 2 - piece() * 16;
    const uint8_t* const x = static_cast<const uint8_t*>(p.x) + (left > 0 ? unit * (kUnitCols * 2) + piece() * 16 : 0);
    if ((unit + 1) * kUnitCols <= p.cols) {
#pragma unroll
      for (int32_t i = 0; i < kRowSteps; ++i)
        if (i < feed.row_steps) copy16_through(to + i * (kRowsAtOnce * 128), x + static_cast<uint64_t>(feed.rows[i]) * 16);
    } else {
      const auto bytes = static_cast<uint32_t>(min(max(left, 0), 16));
#pragma unroll
      for (int32_t i = 0; i < kRowSteps; ++i)
        if (i < feed.row_steps) copy16_or_zero(to + i * (kRowsAtOnce * 128), x + static_cast<uint64_t>(feed.rows[i]) * 16, bytes);
    }
  }

  // Announces the warp's rows of a unit, which its threads' copies have brought: each thread fences its own, then one arrives.
  __device__ __forceinline__ void announce(StageCursor& landed) const {
    shared_fence();
    __syncwarp();
    if (lane == 0) barrier_arrive(full + landed.stage * 8);
    landed.next();
  }

  // Runs in a producer warp, and begins with `work`. The stage after the last unit brings no unit, but work without a tile.
  __device__ __forceinline__ void produce(GroupedWork work) const {
    StageCursor cursor, landed;
    int32_t unannounced = 0;
    for (uint32_t way = works + Layout::stages * 16, turn = 0; work.item < items; turn ^= 16) {
      Feed feed;
      aim(feed, work.tile, work.item);
#pragma unroll 1
      for (int32_t unit = 0; unit < units; ++unit, cursor.next()) {
        barrier_wait(empty + cursor.stage * 8, cursor.phase ^ 1);
        if (unit == 0 && thread() == 0) {
          work.write(works + cursor.stage * 16);
          const int32_t counted = count_grouped_item(grouped.plan.done);
          end_grouped_items(grouped.plan.done, counted, items);
          work_of(static_cast<int32_t>(gridDim.x) + counted).write(way + turn);
        }
        if (elected()) request_weights(feed, unit, cursor.stage);
        __syncwarp();
        request_rows(feed, unit, cursor.stage);
        copies_commit();
        if (unannounced < Layout::in_flight) {
          ++unannounced;
          continue;
        }
        copies_wait<Layout::in_flight>();
        announce(landed);
      }
      // All producer warps have read what was in this place two items ago, because they have met since then.
      named_barrier(1, Layout::producers * 32);
      work = GroupedWork::read(way + turn);
    }
    barrier_wait(empty + cursor.stage * 8, cursor.phase ^ 1);
    if (thread() == 0) work.write(works + cursor.stage * 16);
    if (lane == 0) barrier_arrive(full + cursor.stage * 8);
    copies_wait<0>();
    for (; unannounced >= 0; --unannounced) announce(landed);
  }

  // State is a consumer warp's position, and the fragments of its two panels: a[0] of the next unit, between units.
  struct State {
    StageCursor cursor;
    int32_t u = 0;  // of the unit in its group
    GroupHeader<T> headers[2];
    uint32_t a[2][4][4];
  };

  __device__ __forceinline__ void await(const StageCursor& cursor) const { barrier_wait(full + cursor.stage * 8, cursor.phase); }
  // Releases a stage, after products of all that the warp has read of it (see barrier_arrive).
  __device__ __forceinline__ void release(int32_t stage) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + stage * 8);
  }

  // Makes the fragments of panel r of a unit.
  template <int32_t r>
  __device__ __forceinline__ void unpack(State& s, int32_t stage) const {
    const uint32_t from = weights_in(stage, warp * 2 + r);
    if constexpr (Format<T>::is_float) {
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) load_rounded<T, A>(s.a[r][step], from, step, lane);
    } else {
      const uint32_t published = exchange + warp * Layout::exchange_each + r * (f.units * 256);
      RoundedUnit<T> weights;
      weights.quants.begin(from, from + f.quants, lane);
      if (f.units > 1 && (Layout::repeats_header || s.u == 0)) {
        s.headers[r].load(from + Layout::unit, lane);
        if constexpr (Format<T>::six_bits) {
          __syncwarp();  // every lane has read the scales of the group before
          s.headers[r].template publish<f.units>(published, 0, lane);
          __syncwarp();
        }
      }
      weights.scale(Format<T>::six_bits ? published + s.u * 256 : from + f.quants + f.high, s.headers[r], lane);
      weights.take_all(s.a[r]);
    }
  }

  template <int32_t sums>
  __device__ __forceinline__ void issue(float (&acc)[sums], const uint32_t (&a)[4][4], int32_t stage) const {
    wgmma_fence();
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) wgmma_m64<A>(acc, a[step], swizzled_rows(rows_in(stage)) + step * 2);
    wgmma_commit();
  }

  // Adds the products of an item. While those of one panel run, the other panel's next fragments are made. A barrier is polled before and
  // after, even if its phase has ended, because only branches keep the compiler from making fragments between products, and from
  // moving the wait for products up.
  template <int32_t sums>
  __device__ __forceinline__ void multiply(float (&acc)[2][sums], State& s) const {
#pragma unroll 1
    for (int32_t unit = 0; unit < units; ++unit) {
      const StageCursor at = s.cursor;
      issue(acc[0], s.a[0], at.stage);
      await(at);
      unpack<1>(s, at.stage);
      await(at);
      wgmma_wait<0>();
      wgmma_keep(s.a[0]);
      issue(acc[1], s.a[1], at.stage);
      s.cursor.next();
      s.u = (s.u + 1) % f.units;
      await(s.cursor);
      unpack<0>(s, s.cursor.stage);  // after the last unit of no use
      await(at);
      wgmma_wait<0>();
      wgmma_keep(s.a[1]);
      release(at.stage);
    }
    wgmma_settle(acc[0]);
    wgmma_settle(acc[1]);
  }

  // Multiplies an item by products of `columns` columns, and stores it.
  template <int32_t columns>
  __device__ __forceinline__ void compute(State& s, const ExpertTile& tile, int32_t item) const {
    int32_t own[columns / 32];  // numbers of the pairs lane, lane + 32, ...
#pragma unroll
    for (int32_t i = 0; i < columns / 32; ++i) own[i] = grouped.plan.pairs[tile.first + min(lane + i * 32, tile.count - 1)];
    float acc[2][columns / 2] = {};
    multiply(acc, s);
    const GroupedEpilogue<A> epilogue{grouped, p, lane};
    typename GroupedEpilogue<A>::RowBiases bias[2];
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) bias[r] = epilogue.biases(target(r), tile.expert, panel_of(item, warp * 2 + r));
    // 32 pairs at a time, and the remaining sums move to the beginning: unrolled for all pairs, the code is 100 KiB.
#pragma unroll 1
    for (int32_t left = tile.count; left > 0; left -= 32) {
#pragma unroll
      for (int32_t n = 0; n < 4; ++n) {
        if (n * 8 >= left) break;
        float sums[2][4];
#pragma unroll
        for (int32_t r = 0; r < 2; ++r) {
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) sums[r][i] = acc[r][n * 4 + i];
          epilogue.finish(sums[r], bias[r]);
        }
        if (p.pair != 0) {
          const int32_t pair = __shfl_sync(0xffffffffu, own[0], n * 8 + lane / 4);
          epilogue.store_gated(sums[0], sums[1], panel_of(item, warp * 2), n * 8 + lane / 4 < left ? pair : -1);
        } else {
          store_sums(sums, n, own[0], left, panel_of(item, warp * 2) * kPanelRows);
        }
      }
#pragma unroll
      for (int32_t r = 0; r < 2; ++r)
#pragma unroll
        for (int32_t i = 0; i < columns / 2 - 16; ++i) acc[r][i] = acc[r][i + 16];
#pragma unroll
      for (int32_t i = 0; i < columns / 32 - 1; ++i) own[i] = own[i + 1];
    }
  }

  // Stores the sums of 32 rows, from `row` on, of the pairs of fragment n of 32 pairs. own: the number of the lane's pair. Sums cross
  // shared memory, so that eight lanes store 128 bytes of a pair together.
  __device__ __forceinline__ void store_sums(const float (&sums)[2][4], int32_t n, int32_t own, int32_t left, int32_t row) const {
    const uint32_t place = outputs + warp * Layout::outputs;
    __syncwarp();  // every lane has read the fragment before
#pragma unroll
    for (int32_t r = 0; r < 2; ++r)
#pragma unroll
      for (int32_t i = 0; i < 4; ++i)
        store_shared4(place + (lane % 4 * 2 + i % 2) * Layout::output + (r * kPanelRows + i / 2 * 8 + lane / 4) * 4,
                      __float_as_uint(sums[r][i]));
    __syncwarp();
    const int32_t rows = p.targets[0].rows, first = row + lane % 8 * 4;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t of = i * 4 + lane / 8;
      const int32_t pair = __shfl_sync(0xffffffffu, own, n * 8 + of);
      const uint4 v = load_shared16(place + of * Layout::output + lane % 8 * 16);
      if (n * 8 + of >= left) continue;
      uint32_t* const out = static_cast<uint32_t*>(p.targets[0].out) + pair * p.targets[0].out_stride + first;
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      if (first + 4 <= rows && reinterpret_cast<uintptr_t>(out) % 16 == 0) {
        *reinterpret_cast<uint4*>(out) = v;
      } else {
#pragma unroll
        for (int32_t k = 0; k < 4; ++k)
          if (first + k < rows) out[k] = words[k];
      }
    }
  }

  // Runs in a consumer warp.
  __device__ __forceinline__ void consume() const {
    State s;
    await(s.cursor);
    unpack<0>(s, s.cursor.stage);
    for (;;) {
      const GroupedWork work = GroupedWork::read(works + s.cursor.stage * 16);
      if (work.item >= items) return;
      if (work.tile.count <= 64) compute<64>(s, work.tile, work.item);
      else if (work.tile.count <= 96) compute<96>(s, work.tile, work.item);
      else compute<128>(s, work.tile, work.item);
    }
  }
};

#endif

#if MR_HOPPER
template <int32_t T, class A>
__global__ void __launch_bounds__(ManyWgmmaLayout<T>::threads, 1) many_rows_wgmma(const __grid_constant__ GroupedParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = ManyWgmmaLayout<T>;
  static_assert(kRegistersFit<224, 56>);
  ManyWgmmaBlock<T, A> block{p, p.gemm};
  block.stages = (kept_address(dynamic_memory()) + 1023) & ~1023u;
  block.exchange = block.stages + Layout::stages * Layout::stage;
  block.outputs = block.exchange + Layout::consumers * Layout::exchange_each;
  block.works = block.outputs + Layout::consumers * Layout::outputs;
  block.full = block.works + Layout::works;
  block.empty = block.full + Layout::stages * 8;
  block.warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);  // the shuffle makes it uniform for the compiler
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < Layout::stages; ++i) {
      barrier_init(block.full + i * 8, 2 * Layout::producers);  // each for its panels, and for its rows
      barrier_init(block.empty + i * 8, Layout::consumers);
    }
    barrier_init_fence();
  }
  __syncthreads();
  grid_wait();
  grid_trigger();
  block.items = *p.plan.tile_count * block.panel_blocks;
  if (static_cast<int32_t>(blockIdx.x) >= block.items) return;
  if (block.warp >= Layout::consumers) {
    registers_down<56>();
    block.produce(block.work_of(static_cast<int32_t>(blockIdx.x)));
  } else {
    registers_up<224>();
    block.consume();
  }
#endif
}

// Its shared memory is more than any device has if the machine code is not of compute capability 9.0.
template <int32_t T, class A>
GemvKernel many_rows_wgmma_kernel_for() {
  using Layout = ManyWgmmaLayout<T>;
  return {reinterpret_cast<const void*>(&many_rows_wgmma<T, A>),
          [](int32_t capability) { return capability == 90 ? Layout::bytes : INT32_MAX; }, Layout::threads, Layout::panels,
          Layout::pairs};
}
#endif

// Quantised weights multiply f16 activations alone. Float weights that are rounded to the other type, and F32, have no kernel.
template <int32_t T>
GemvKernel many_rows_wgmma_kernel(Act act) {
#if MR_HOPPER
  if constexpr (T == kBF16) {
    if (act == Act::kBF16) return many_rows_wgmma_kernel_for<T, __nv_bfloat16>();
  } else if constexpr (T != kF32) {
    if (act == Act::kF16) return many_rows_wgmma_kernel_for<T, __half>();
  }
#endif
  (void)act;
  return {};
}

}  // namespace mr::cuda
