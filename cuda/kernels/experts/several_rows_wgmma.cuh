// several_rows_wgmma: the grouped GEMM of the decode class on devices with wgmma, where experts have several pairs. A block computes 12
// panels of an expert's matrix, or 6 of its gate and the same 6 of its up, for the up to 64 pairs of one tile of the plan.
//
//   weights --bulk copies--> [stage 0][stage 1] ... --full-->  3 consumer warpgroups: a warp unpacks its panel to A fragments, once for
//   rows    --cp.async-----> [stage 0][stage 1] ... <-empty--  all pairs; wgmma, 64 rows a warpgroup
//             4 producer warps                                 |
//                            sums of gate and up meet in shared memory, a fragment at a time --> epilogue --> out
//
// Weights are read and unpacked once for a tile, so tiles are as large as most experts' pairs. Products have 16, 32, 48 or 64 columns,
// whichever hold the tile's pairs. A warp unpacks while its last products run, and while those of the two other warps of its scheduler
// do. It has all of K and keeps the sum of the current split-K slice and the sum of the slices before it, so a pair has the bits of
// few_rows.cuh: mma and wgmma agree (gemm/mma_agreement.h), and folded blocks multiply mins by mma as few_rows does.
//
// Blocks are persistent and take items from a counter (grouped_work.cuh); the next item's stages arrive during the epilogue. The content of
// columns without a pair does not matter, because columns do not meet.
#pragma once

#include "kernels/experts/grouped_epilogue.cuh"
#include "kernels/experts/several_wgmma_pipeline.cuh"
#include "kernels/gemm/mxfp4_unit.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A>
struct SeveralWgmmaBlock {
  using Pipeline = SeveralWgmmaPipeline<T>;
  using Layout = typename Pipeline::Layout;
  using StageCursor = typename Pipeline::StageCursor;
  static constexpr WeightFormat f = Pipeline::f;
  static constexpr int32_t kUnits = Layout::units;

  const Pipeline& pipeline;
  const GroupedParams& grouped = pipeline.grouped;
  const GemvParams& p = pipeline.p;
  const int32_t warp = pipeline.warp, lane = pipeline.lane;

  // Adds the sums of a slice that has ended to those of the slices before.
  template <int32_t sums>
  __device__ __forceinline__ static void add_slice(float (&total)[sums], float (&acc)[sums]) {
#pragma unroll
    for (int32_t i = 0; i < sums; ++i) {
      total[i] += acc[i];
      acc[i] = 0;
    }
  }

  // Makes the fragments of unit u of a stage.
  __device__ __forceinline__ void load(uint32_t (&a)[4][4], GroupHeader<T>& header, int32_t stage, int32_t u) const {
    const uint32_t panel = pipeline.panel_in(stage, warp);
    if constexpr (Format<T>::is_float) {
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) load_fragment(a[step], panel + u * Layout::unit, step, lane);
    } else if constexpr (T == kMXFP4) {
      const uint32_t from = panel + u * Layout::unit;
      take_mxfp4_unit(a, from, from + f.quants, lane);
    } else {
      RoundedUnit<T> unit;
      if constexpr (f.units > 1) {
        if (u == 0) header.load(panel + Format<T>::header_plane, lane);
        unit.begin(panel + Format<T>::quants_at(u), panel + Format<T>::high_at(u), panel + Format<T>::scales_at(u), header, lane);
      } else {
        const uint32_t from = panel + u * Layout::unit;
        unit.begin(from, from + f.quants, from + f.quants + f.high, header, lane);
      }
      unit.take_all(a);
    }
  }

  // Adds the products of an item. The next unit's fragments are made while this unit's products run. A barrier is polled before, even
  // if its phase has ended, because only branches keep the compiler from moving the wait for products up.
  template <int32_t sums>
  __device__ __forceinline__ void multiply(float (&total)[sums], StageCursor& cursor) const {
    constexpr int32_t kTurns = kUnits > 1 ? kUnits : 2;  // units of an iteration: of whole stages, and even, because fragments alternate
    float acc[sums] = {};
    SliceCursor<f.units> slices;
    slices.next(p.groups);
    GroupHeader<T> header;
    uint32_t a[2][4][4];
    load(a[0], header, cursor.stage, 0);
#pragma unroll 1
    for (int32_t unit = 0; unit < pipeline.units; unit += kTurns) {
#pragma unroll
      for (int32_t i = 0; i < kTurns; ++i) {
        const int32_t u = i % kUnits, stage = cursor.stage;
        const bool last = unit + i + 1 == pipeline.units, ends = u + 1 == kUnits || (f.units == 1 && last);
        const uint64_t rows = swizzled_rows(pipeline.rows_in(stage, u));
        wgmma_fence();
#pragma unroll
        for (int32_t step = 0; step < 4; ++step) wgmma_m64<A>(acc, a[i % 2][step], rows + step * 2);
        wgmma_commit();
        if (ends) cursor.next();
        if (!last) {
          pipeline.await(cursor);
          load(a[1 - i % 2], header, cursor.stage, (i + 1) % kUnits);
        }
        wgmma_wait<0>();
        wgmma_keep(a[i % 2]);
        if (ends) pipeline.release(stage);
        if (unit + i + 1 == slices.end) {
          wgmma_settle(acc);
          add_slice(total, acc);
          slices.next(p.groups);
        }
        if (f.units == 1 && last) break;
      }
    }
  }

  // Issues the products of unit u of a folded block, half a unit at a time, so that few registers hold fragments: while the products of
  // one half run, the fragments of the next are made.
  template <int32_t u, int32_t sums>
  __device__ __forceinline__ void issue_folded(float (&products)[sums], uint32_t (&a)[2][2][4], const FoldedHeader& header,
                                               const StageCursor& at) const {
    const uint32_t panel = pipeline.panel_in(at.stage, warp);
    UnitQuants<T> quants;
    quants.begin(panel + Format<T>::quants_at(u), panel + Format<T>::high_at(u), lane);
    issue_half<u, 0>(products, a, header, quants, at);
    issue_half<u, 1>(products, a, header, quants, at);
  }
  template <int32_t u, int32_t half, int32_t sums>
  __device__ __forceinline__ void issue_half(float (&products)[sums], uint32_t (&a)[2][2][4], const FoldedHeader& header,
                                             const UnitQuants<T>& quants, const StageCursor& at) const {
    const uint32_t g = header.scale<u * 2 + half>(0, false), g8 = header.scale<u * 2 + half>(1, false);
    folded_fragment<T, half * 2>(quants, g, g8, a[half][0]);
    folded_fragment<T, half * 2 + 1>(quants, g, g8, a[half][1]);
    pipeline.await(at);
    const uint64_t rows = swizzled_rows(pipeline.rows_in(at.stage, u)) + half * 4;
    wgmma_fence();
    wgmma_m64<A, u + half != 0>(products, a[half][0], rows);
    wgmma_m64<A>(products, a[half][1], rows + 2);
    wgmma_commit();
    if constexpr (u + half != 0) {
      wgmma_wait<1>();
      wgmma_keep(a[1 - half]);
    }
  }

  // Adds the products of an item of a type that folds. A stage is a group.
  template <int32_t sums>
  __device__ __forceinline__ void multiply_folded(float (&total)[sums], StageCursor& cursor, int32_t count) const {
    float acc[sums] = {};
    SliceCursor<f.units> slices;
    slices.next(p.groups);
#pragma unroll 1
    for (int32_t unit = 0; unit < pipeline.units; unit += kUnits) {
      pipeline.await(cursor);
      FoldedHeader header;
      header.load(pipeline.panel_in(cursor.stage, warp) + Format<T>::header_plane, lane);
      float products[sums];
      uint32_t a[2][2][4];
      issue_folded<0>(products, a, header, cursor);
      issue_folded<1>(products, a, header, cursor);
      issue_folded<2>(products, a, header, cursor);
      issue_folded<3>(products, a, header, cursor);
      wgmma_wait<0>();
      wgmma_keep(a[1]);
      wgmma_settle(products);
#pragma unroll
      for (int32_t n = 0; n < sums / 4; ++n) {
        if (n * 8 >= count) break;
        const uint32_t from = pipeline.sums_in(cursor.stage, n) + lane * 4;
        const uint32_t input_sums[3] = {load_shared4(from), load_shared4(from + 128), load_shared4(from + 256)};
        float these[4] = {acc[n * 4], acc[n * 4 + 1], acc[n * 4 + 2], acc[n * 4 + 3]};
        const float of_eight[4] = {products[n * 4], products[n * 4 + 1], products[n * 4 + 2], products[n * 4 + 3]};
        header.add_with_mins(these, of_eight, input_sums);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) acc[n * 4 + i] = these[i];
      }
      pipeline.release(cursor.stage);
      cursor.next();
      if (unit + kUnits == slices.end) {
        add_slice(total, acc);
        slices.next(p.groups);
      }
    }
  }

  // Multiplies an item by products of `columns` columns, and stores it.
  template <int32_t columns>
  __device__ __forceinline__ void compute(StageCursor& cursor, const GroupedWork& work) const {
    constexpr int32_t kSums = columns / 2, kNumbers = (columns + 31) / 32;
    const int32_t count = work.tile.count;
    int32_t own[kNumbers];  // numbers of the pairs lane, lane + 32; below 0: no pair is there
#pragma unroll
    for (int32_t i = 0; i < kNumbers; ++i) own[i] = lane + i * 32 < count ? grouped.plan.pairs[work.tile.first + lane + i * 32] : -1;
    float sums[kSums] = {};
    if constexpr (kFolds<T>) multiply_folded(sums, cursor, count);
    else multiply(sums, cursor);
    const int32_t panel = pipeline.panel_of(pipeline.first_panel(work.item), warp);
    const GroupedEpilogue<A> epilogue{grouped, p, lane};
    const auto bias = epilogue.biases(pipeline.target(warp), work.tile.expert, panel);
#pragma unroll
    for (int32_t i = 0; i < kSums; ++i) sums[i] = sums[i] * p.x_scale + bias.of[i % 4 / 2];
    // 16 pairs at a time, and the remaining sums move to the beginning: unrolled, most of the code would be this loop.
#pragma unroll 1
    for (int32_t first = 0; first < count; first += 16) {
      const float low[4] = {sums[0], sums[1], sums[2], sums[3]}, high[4] = {sums[4], sums[5], sums[6], sums[7]};
      const int32_t numbers = first < 32 ? own[0] : own[kNumbers - 1];
      if (p.pair != 0) store_gated(epilogue, low, high, numbers, first, panel);
      else store_sums(epilogue, low, high, numbers, first, panel);
#pragma unroll
      for (int32_t i = 0; i + 8 < kSums; ++i) sums[i] = sums[i + 8];
    }
  }

  // Store the sums of the pairs from `first` on, of two fragments. own: the numbers of 32 pairs, these among them.
  __device__ __forceinline__ void store_sums(const GroupedEpilogue<A>& epilogue, const float (&low)[4], const float (&high)[4],
                                             int32_t own, int32_t first, int32_t panel) const {
    const int32_t at = first % 32 + lane % 4 * 2;
    epilogue.store_sums(low, panel, {__shfl_sync(0xffffffffu, own, at), __shfl_sync(0xffffffffu, own, at + 1)});
    epilogue.store_sums(high, panel, {__shfl_sync(0xffffffffu, own, at + 8), __shfl_sync(0xffffffffu, own, at + 9)});
  }

  // The gate's warp stores the outputs of the first fragment, and the up's warp those of the second. Each gives the other its sums of the
  // fragment that the other stores.
  __device__ __forceinline__ void store_gated(const GroupedEpilogue<A>& epilogue, const float (&low)[4], const float (&high)[4],
                                              int32_t own, int32_t first, int32_t panel) const {
    const bool is_up = warp % 4 >= 2;
    const int32_t barrier = 2 + warp / 4 * 2 + warp % 2;  // one for each two warps
    const uint32_t given = pipeline.exchange + warp * Layout::exchange_each + lane * 16;
    const uint32_t got = pipeline.exchange + (warp ^ 2) * Layout::exchange_each + lane * 16;
    uint32_t words[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) words[i] = __float_as_uint(is_up ? low[i] : high[i]);
    store_shared16(given, make_uint4(words[0], words[1], words[2], words[3]));
    named_barrier(barrier, 64);
    const uint4 v = load_shared16(got);
    named_barrier(barrier, 64);  // both have read
    const float others[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
    float gate[4], up[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      gate[i] = is_up ? others[i] : low[i];
      up[i] = is_up ? high[i] : others[i];
    }
    epilogue.store_gated(gate, up, panel, __shfl_sync(0xffffffffu, own, first % 32 + (is_up ? 8 : 0) + lane / 4));
  }

  // Runs in a consumer warp.
  __device__ __forceinline__ void consume() const {
    StageCursor cursor;
    for (;;) {
      pipeline.await(cursor);
      const GroupedWork work = GroupedWork::read(pipeline.works + cursor.stage * 16);
      if (work.item >= pipeline.items) return;
      if (work.tile.count <= 16) compute<16>(cursor, work);
      else if (work.tile.count <= 32) compute<32>(cursor, work);
      else if (work.tile.count <= 48) compute<48>(cursor, work);
      else compute<64>(cursor, work);
    }
  }
};

#endif

#if MR_HOPPER
template <int32_t T, class A>
__global__ void __launch_bounds__(SeveralWgmmaLayout<T>::threads, 1) several_rows_wgmma(const __grid_constant__ GroupedParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = SeveralWgmmaLayout<T>;
  // A block has only the registers that it starts with, 128 a thread. If blocks fold, producers make input sums and consumers have half
  // as many registers of fragments.
  constexpr int32_t kRegisters = kFolds<T> ? 144 : 152, kSpareRegisters = kFolds<T> ? 80 : 56;
  static_assert(Layout::warpgroups * kRegisters + kSpareRegisters <= (Layout::warpgroups + 1) * 128);
  SeveralWgmmaPipeline<T> pipeline{p, p.gemm};
  pipeline.stages = (kept_address(dynamic_memory()) + 1023) & ~1023u;
  pipeline.exchange = pipeline.stages + Layout::stages * Layout::stage;
  pipeline.works = pipeline.exchange + Layout::consumers * Layout::exchange_each;
  pipeline.full = pipeline.works + Layout::works;
  pipeline.empty = pipeline.full + Layout::stages * 8;
  pipeline.warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);  // the shuffle makes it uniform for the compiler
  pipeline.lane = static_cast<int32_t>(threadIdx.x % 32);
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < Layout::stages; ++i) {
      barrier_init(pipeline.full + i * 8, 2 * Layout::producers);  // each for its panels, and for its rows
      barrier_init(pipeline.empty + i * 8, Layout::consumers);
    }
    barrier_init_fence();
  }
  __syncthreads();
  grid_wait();
  grid_trigger();
  pipeline.items = *p.plan.tile_count * pipeline.panel_blocks;
  if (static_cast<int32_t>(blockIdx.x) >= pipeline.items) return;
  if (pipeline.warp >= Layout::consumers) {
    registers_down<kSpareRegisters>();
    pipeline.produce();
  } else {
    registers_up<kRegisters>();
    const SeveralWgmmaBlock<T, A> block{pipeline};
    block.consume();
  }
#endif
}
#endif

// Operands of several terms have no such kernel: few models have them, and few_rows.cuh gives the same bits. The kernel's shared memory
// is more than any device has if the machine code is not of compute capability 9.0.
template <int32_t T>
GemvKernel several_rows_wgmma_kernel(Act act) {
  return with_multiplied_act<T, GemvKernel>(act, [](auto element) -> GemvKernel {
#if MR_HOPPER
    using A = decltype(element);
    using Layout = SeveralWgmmaLayout<T>;
    if constexpr (OperandSplit<T, A>::single) {
      return {reinterpret_cast<const void*>(&several_rows_wgmma<T, A>),
              [](int32_t capability) { return capability == 90 ? Layout::bytes : INT32_MAX; }, Layout::threads, Layout::panels,
              Layout::pairs};
    }
#endif
    (void)element;
    return {};
  });
}

}  // namespace mr::cuda
