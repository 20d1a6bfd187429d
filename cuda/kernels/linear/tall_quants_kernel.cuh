// tall_quants_kernel: the decode class of products by wgmma for quantised weights, f16 tokens and many of them; see product.h.
//
// A cluster of two blocks takes tiles of 128 rows by `tokens` tokens, and each block four of the eight segments of the columns,
// one after another. The two warpgroups that multiply have 64 rows each, of a pair the gate's and the up's. They read rings that a
// warp each fills: of weights, a stage a group of eight panels, and of tokens, a stage a unit of 64 inputs as swizzled rows of 128
// bytes; where blocks fold, also of the terms of the inputs' sums (terms.h). Products of two parts are under way at once, so that
// scaling the sums of one, and unpacking the next, leaves no pause. tall_join.cuh adds the blocks' sums.
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/folded.cuh"
#include "kernels/linear/prefill_kernel.cuh"
#include "kernels/linear/tall_join.cuh"
#include "kernels/linear/terms.h"

#if MR_HOPPER
#include <cuda.h>
#endif

namespace mr::cuda {

template <int32_t T, int32_t tokens_>
struct TallQuantsLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr bool folds = kFolds<T, __half>;
  static constexpr int32_t tokens = tokens_, panel = f.group_bytes();
  // Groups of up to 2048 bytes come four panels at a time, since the thread that asks takes as long for one as for four.
  static constexpr bool boxed = panel <= 2048;
  static constexpr int32_t weights = (kTallPanels * panel + 127) / 128 * 128, rows = tokens * 128;
  static constexpr int32_t terms_stages = folds ? 2 : 0, terms = tokens * kTermBytes;
  static constexpr int32_t join = TallJoinLayout<tokens>::bytes, barriers = 512;
  static constexpr int32_t room = 227 * 1024 - join - barriers - terms_stages * terms - 1024;  // 1024: to align the ring
  static constexpr int32_t group_stages = f.units == 1 ? 0 : 4;  // of weights, where a group is several units
  static constexpr int32_t row_stages_that_fit = f.units == 1 ? room / (weights + rows) : (room - group_stages * weights) / rows;
  static constexpr int32_t row_stages = row_stages_that_fit > 12 ? 12 : row_stages_that_fit;
  static constexpr int32_t weight_stages = f.units == 1 ? row_stages : group_stages;
  static constexpr int32_t bytes = row_stages * rows + terms_stages * terms + weight_stages * weights + join + barriers + 1024;
  static_assert(row_stages >= 4 && 2 * (row_stages + terms_stages + weight_stages + 1) * 8 <= barriers);
};

#if MR_HOPPER
struct TallQuantsMaps {
  CUtensorMap tokens;  // boxes of one unit's columns and a tile's tokens
  CUtensorMap terms;   // boxes of one group's terms and a tile's tokens
  CUtensorMap weights[3];  // of each target, where boxed: boxes of one group of four panels, in eight bytes
};
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int32_t kTallQuantsSpare = 2;  // warps behind those that ask for data

template <int32_t T, int32_t tokens>
struct TallQuantsBlock : TallJoin<__half, tokens, kTallCluster, kTallQuantsSpare> {
  using Layout = TallQuantsLayout<T, tokens>;
  using Join = TallJoin<__half, tokens, kTallCluster, kTallQuantsSpare>;
  using typename Join::Sums;
  using Join::first_item, Join::lane, Join::p, Join::rank, Join::ready, Join::warp;
  static constexpr WeightFormat f = Format<T>::f;

  // A ring of `stages` stages of `size` bytes, with a barrier each for being full and being empty.
  template <int32_t stages, int32_t size>
  struct Ring {
    uint32_t memory, full, empty;
    int32_t stage = 0;
    uint32_t phase = 0;

    __device__ __forceinline__ uint32_t at() const { return memory + stage * size; }
    __device__ __forceinline__ uint32_t done() const { return full + stage * 8; }
    __device__ __forceinline__ void await_full() const { barrier_wait(full + stage * 8, phase); }
    __device__ __forceinline__ void await_empty() const { barrier_wait(empty + stage * 8, phase ^ 1); }
    __device__ __forceinline__ void next() {
      if (++stage < stages) return;
      stage = 0;
      phase ^= 1;
    }
    __device__ __forceinline__ void init() const {
      for (int32_t i = 0; i < stages; ++i) {
        barrier_init(full + i * 8, 1);
        barrier_init(empty + i * 8, 8);  // the warps that multiply
      }
    }
  };

  const TallQuantsMaps& maps;
  Ring<Layout::row_stages, Layout::rows> rows;
  Ring<Layout::terms_stages == 0 ? 1 : Layout::terms_stages, Layout::terms> terms;
  Ring<Layout::weight_stages, Layout::weights> weights;

  // The first group of this block's segment s, 0..4.
  __device__ __forceinline__ int32_t segment_begin(int32_t s) const { return p.groups * (rank * 4 + s) / 8; }

  // Where the four panels of each warpgroup lie: their weight, and the first of them.
  struct Panels {
    int32_t target[2], first[2];
  };
  __device__ __forceinline__ Panels panels_of(int32_t item) const {
    const int32_t tile = item / p.token_tiles;
    if (p.pair) return {{0, 1}, {tile * 4, tile * 4}};
    const int32_t i = target_index(p, tile), first = (tile - p.targets[i].first_tile) * kTallPanels;
    return {{i, i}, {first, first + 4}};
  }

  // One thread asks for all weights. Panels past the last are zeros where they come as boxes, else the last.
  __device__ __forceinline__ void ask_weights() {
    const int32_t begin = segment_begin(0), end = segment_begin(4);
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      const Panels panels = panels_of(item);
#pragma unroll 1
      for (int32_t group = begin; group < end; ++group, weights.next()) {
        weights.await_empty();
        barrier_expect(weights.done(), kTallPanels * Layout::panel);
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
          const uint32_t to = weights.at() + half * 4 * Layout::panel;
          if constexpr (Layout::boxed) {
            tensor_copy(to, &maps.weights[panels.target[half]], group * (Layout::panel / 8), panels.first[half], weights.done());
          } else {
            const DecodeTarget& target = p.targets[panels.target[half]];
            const uint8_t* const from = target.data + static_cast<int64_t>(group) * Layout::panel;
#pragma unroll
            for (int32_t i = 0; i < 4; ++i)
              bulk_copy(to + i * Layout::panel, from + min(panels.first[half] + i, target.panels - 1) * p.panel_bytes, Layout::panel,
                        weights.done());
          }
        }
      }
    }
  }

  // One thread asks for all tokens and terms.
  __device__ __forceinline__ void ask_tokens() {
    const int32_t begin = segment_begin(0), end = segment_begin(4);
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      const int32_t token0 = item % p.token_tiles * tokens;
#pragma unroll 1
      for (int32_t group = begin; group < end; ++group) {
        if constexpr (Layout::folds) {
          terms.await_empty();
          barrier_expect(terms.done(), Layout::terms);
          tensor_copy(terms.at(), &maps.terms, group * (kTermBytes / 2), token0, terms.done());
          terms.next();
        }
#pragma unroll 1
        for (int32_t unit = group * f.units; unit < (group + 1) * f.units; ++unit, rows.next()) {
          rows.await_empty();
          barrier_expect(rows.done(), Layout::rows);
          tensor_copy(rows.at(), &maps.tokens, unit * kUnitCols, token0, rows.done());
        }
      }
    }
  }

  __device__ __forceinline__ void release(uint32_t barrier) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  }

  __device__ __forceinline__ static void add(Sums& acc, const Sums& c, const float (&factor)[2]) {
#pragma unroll
    for (int32_t i = 0; i < tokens / 2; ++i) acc[i] = fmaf(factor[i / 2 % 2], c[i], acc[i]);
  }

  // What lasts from a folded block's first unit to its last.
  struct Folded {
    FoldedHeader header;
    Sums products, min_products;
    uint32_t a[2][4][4];
    uint32_t before;  // the barrier of the tokens that the products under way read
  };

  // The products of unit u of a folded block, asynchronous; those of the unit before end, and its tokens are released.
  template <int32_t u>
  __device__ __forceinline__ void issue_folded(Folded& block, uint32_t panel) {
    UnitQuants<T, __half, 1> quants;
    quants.begin(panel + Format<T>::quants_at(u), panel + Format<T>::high_at(u), lane);
    uint32_t (&a)[4][4] = block.a[u % 2];
    folded_unit<T, u>(block.header, quants, false, a);
    if constexpr (u == 3) {
      release(weights.empty + weights.stage * 8);
      weights.next();
    }
    rows.await_full();
    const uint64_t x = swizzled_rows(rows.at());
    wgmma_fence();
    wgmma_m64<__half, u != 0>(block.products, a[0], x);
#pragma unroll
    for (int32_t step = 1; step < 4; ++step) wgmma_m64<__half>(block.products, a[step], x + step * 2);
    wgmma_commit();
    if constexpr (u > 0) {
      wgmma_wait<1>();
      release(block.before);
    }
    block.before = rows.empty + rows.stage * 8;
    rows.next();
  }

  // Adds the products of `groups` groups whose scales fold.
  __device__ __forceinline__ void multiply_folded(Sums& acc, int32_t groups) {
#pragma unroll 1
    for (int32_t group = 0; group < groups; ++group) {
      Folded block;
      weights.await_full();
      const uint32_t panel = weights.at() + warp * Layout::panel;
      block.header.load(panel + Format<T>::header_plane, lane);
      issue_folded<0>(block, panel);
      issue_folded<1>(block, panel);
      issue_folded<2>(block, panel);
      issue_folded<3>(block, panel);
      terms.await_full();
      const uint32_t mins[4] = {block.header.mins[0], block.header.mins[1], block.header.mins[0], block.header.mins[1]};
      wgmma_fence();
      wgmma_m64<__nv_bfloat16, false>(block.min_products, mins, swizzled_rows64(terms.at()));
      wgmma_m64<__nv_bfloat16>(block.min_products, mins, swizzled_rows64(terms.at()) + 2);
      wgmma_commit();
      wgmma_wait<1>();
      release(block.before);
      add(acc, block.products, block.header.d);
      wgmma_wait<0>();
      release(terms.empty + terms.stage * 8);
      terms.next();
      add(acc, block.min_products, block.header.dmin);
    }
  }

  // A unit of blocks of 32, or of 16, is as many parts.
  static constexpr int32_t parts = UnitScales<T, __half>::blocks, steps = 4 / parts;
  using Fragments = uint32_t[steps][1][4];

  // What lasts from a segment's first unit to its last, where blocks are scaled one by one.
  struct Scaled {
    UnitQuants<T, __half, 1> quants;
    GroupHeader<T, __half> header;
    UnitScales<T, __half> scales;
    Fragments a[2];
  };

  // Begins unit u of a group, whose weights have come, and unpacks its first part.
  __device__ __forceinline__ void begin_unit(Scaled& s, int32_t u) const {
    const uint32_t panel = weights.at() + warp * Layout::panel;
    if (u == 0) s.header.load(panel + Format<T>::header_plane, lane);
    s.quants.begin(panel + Format<T>::quants_at(u), panel + Format<T>::high_at(u), lane);
    s.scales.load(panel + Format<T>::scales_at(u), s.header, lane);
    unpack<0>(s);
  }

  template <int32_t part>
  __device__ __forceinline__ static void unpack(Scaled& s) {
    s.quants.template take<part * steps>(s.a[part % 2][0]);
    if constexpr (steps == 2) s.quants.template take<part * steps + 1>(s.a[part % 2][1]);
  }

  // The products of a part, asynchronous.
  template <int32_t part>
  __device__ __forceinline__ void issue_part(const Scaled& s, Sums& c) const {
    const uint64_t x = swizzled_rows(rows.at()) + part * steps * 2;
    wgmma_fence();
    wgmma_m64<__half, false>(c, s.a[part % 2][0][0], x);
    if constexpr (steps == 2) wgmma_m64<__half>(c, s.a[part % 2][1][0], x + 2);
    wgmma_commit();
  }

  // Adds the products of `units` units whose blocks are scaled one by one; the first is the first of a group. While a part is
  // multiplied, the one before it is added and the one behind it unpacked.
  __device__ __forceinline__ void multiply_scaled(Sums& acc, int32_t units) {
    if (units == 0) return;
    Scaled s;
    weights.await_full();
    begin_unit(s, 0);
#pragma unroll 1
    for (int32_t unit = 0, u = 0; unit < units; ++unit) {
      Sums c[2];
      float factors[parts][2];
#pragma unroll
      for (int32_t part = 0; part < parts; ++part) {
        factors[part][0] = s.scales.scale[0][part];
        factors[part][1] = s.scales.scale[1][part];
      }
      rows.await_full();
      issue_part<0>(s, c[0]);
      unpack<1>(s);
      issue_part<1>(s, c[1]);
      wgmma_wait<1>();
      add(acc, c[0], factors[0]);
      if constexpr (parts == 4) {
        unpack<2>(s);
        issue_part<2>(s, c[0]);
        wgmma_wait<1>();
        add(acc, c[1], factors[1]);
        unpack<3>(s);
        issue_part<3>(s, c[1]);
        wgmma_wait<1>();
        add(acc, c[0], factors[2]);
      }
      // What this unit has of its weights lies in registers.
      const bool ends = ++u == f.units;
      if (ends) {
        u = 0;
        release(weights.empty + weights.stage * 8);
        weights.next();
      }
      if (unit + 1 < units) {
        if (ends) weights.await_full();
        begin_unit(s, u);
      }
      wgmma_wait<0>();
      release(rows.empty + rows.stage * 8);
      rows.next();
      add(acc, c[1], factors[parts - 1]);
    }
  }

  __device__ __forceinline__ void consume() {
    uint32_t phase = 0;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride, phase ^= 1) {
#pragma unroll 1
      for (int32_t pair = 0; pair < 2; ++pair) {
        Sums sum;
#pragma unroll 1
        for (int32_t s = pair * 2; s < pair * 2 + 2; ++s) {
          const int32_t groups = segment_begin(s + 1) - segment_begin(s);
          Sums acc = {};
          if constexpr (Layout::folds) multiply_folded(acc, groups);
          else multiply_scaled(acc, groups * f.units);
#pragma unroll
          for (int32_t i = 0; i < tokens / 2; ++i) sum[i] = s % 2 == 0 ? acc[i] : sum[i] + acc[i];
        }
        if (pair == 0) {
          this->await_free(phase);
          this->template store<false>(sum);
        } else {
          this->template store<true>(sum);
        }
      }
      this->signal(ready);
      if (this->last(item)) this->template finish<true>(item, phase);
    }
  }
};

#endif

#if MR_HOPPER
template <int32_t T, int32_t tokens>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    tall_quants_product(const __grid_constant__ PrefillParams p, const __grid_constant__ TallQuantsMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = TallQuantsLayout<T, tokens>;
  extern __shared__ uint8_t memory[];
  constexpr int32_t kRegisters = 208, kSpareRegisters = 88;
  static_assert(kRegistersFit<kRegisters, kSpareRegisters>);
  TallQuantsBlock<T, tokens> block{{p}, maps};
  block.rank = static_cast<int32_t>(cluster_rank());
  block.warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);  // known to be one for all lanes
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  const uint32_t base = kept_address(memory);
  block.rows.memory = (base + 1023) & ~1023u;
  block.terms.memory = block.rows.memory + Layout::row_stages * Layout::rows;
  block.weights.memory = block.terms.memory + Layout::terms_stages * Layout::terms;
  block.join = block.weights.memory + Layout::weight_stages * Layout::weights;
  block.joins = reinterpret_cast<float*>(memory + (block.join - base));
  block.rows.full = block.join + Layout::join;
  block.rows.empty = block.rows.full + Layout::row_stages * 8;
  block.weights.full = block.rows.empty + Layout::row_stages * 8;
  block.weights.empty = block.weights.full + Layout::weight_stages * 8;
  block.ready = block.weights.empty + Layout::weight_stages * 8;
  block.free = block.ready + 8;
  block.terms.full = block.free + 8;
  block.terms.empty = block.terms.full + Layout::terms_stages * 8;
  if (threadIdx.x == 0) {
    block.rows.init();
    block.weights.init();
    if (Layout::folds) block.terms.init();
    barrier_init(block.ready, 8 * kTallCluster);
    barrier_init(block.free, kTallQuantsSpare * kTallCluster);
    barrier_init_fence();
  }
  cluster_sync();
  if (block.warp >= 8) {
    registers_down<kSpareRegisters>();
    if (block.warp == 8) {
      if (elected()) block.ask_weights();
    } else {
      grid_wait();
      grid_trigger();
      if (block.warp > 9) block.end_others();
      else if (elected()) block.ask_tokens();
    }
  } else {
    registers_up<kRegisters>();
    grid_wait();
    block.consume();
  }
  __syncwarp();
  cluster_sync();  // others may still read this block's sums
#endif
}

template <int32_t T>
PrefillKernel tall_quants_kernel_of() {
  return {reinterpret_cast<const void*>(&tall_quants_product<T, kTallQuantsTokens>), TallQuantsLayout<T, kTallQuantsTokens>::bytes,
          kPrefillThreads, kTallQuantsTokens};
}
#else
template <int32_t T>
PrefillKernel tall_quants_kernel_of() {
  return {};
}
#endif

}  // namespace mr::cuda
