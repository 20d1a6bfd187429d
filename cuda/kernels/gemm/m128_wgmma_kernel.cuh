// m128_wgmma_kernel: the decode class by wgmma for float weights and many tokens; see gemm.h for the contract.
//
// A cluster of two blocks processes tiles of 128 rows by `tokens` tokens. Each block has four of the eight split-K
// slices and multiplies them one after another. Its two consumer warpgroups have 64 rows each (of a pair the gate's and
// the up's) and read one pipeline that a producer warp fills: a stage is one unit of 64 inputs, with the panels'
// weights and the tokens as swizzled rows of 128 bytes. m128_wgmma_reduction.cuh adds the sums of the two blocks.
#pragma once

#include "kernels/gemm/fragment.cuh"
#include "kernels/gemm/m128_wgmma_quant_kernel.cuh"
#include "kernels/gemm/m128_wgmma_reduction.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

constexpr int32_t kM128SpareWarps = 3;  // warps of the producer warpgroup that run epilogues

struct M128Layout {
  static constexpr int32_t tokens = kM128Tokens, panels = kM128Panels;
  static constexpr int32_t panel = 2048;  // bytes of one unit: 16 rows of 64 two-byte weights
  static constexpr int32_t weights = panels * panel, rows = tokens * 128;
  static constexpr int32_t stage = weights + rows;
  static constexpr int32_t reduction = M128ReductionLayout::bytes;
  static constexpr int32_t barriers = 256;
  static constexpr int32_t stages_that_fit = (227 * 1024 - reduction - barriers) / stage;
  static constexpr int32_t stages = stages_that_fit > 8 ? 8 : stages_that_fit;
  static constexpr int32_t bytes = stages * stage + reduction + barriers;
  static_assert(stages >= 3 && (2 * stages + 2) * 8 <= barriers);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct M128Pipeline {
  using Layout = M128Layout;
  using Tiles = M128Tiles<M128Share::kK>;
  using StageCursor = PipelineState<Layout::stages>;

  const Tiles& tiles;
  const M128Maps& maps;
  uint32_t stage_memory, full, empty;  // shared memory addresses
  const WgmmaParams& p = tiles.p;

  __device__ __forceinline__ void init_barriers() const {
    for (int32_t s = 0; s < Layout::stages; ++s) {
      barrier_init(full + s * 8, 1);
      barrier_init(empty + s * 8, 8);  // the consumer warps
    }
  }

  // Panels says where the four panels of each warpgroup are: the map of their weight, and the first panel.
  struct Panels {
    const CUtensorMap* map[2];
    int32_t first[2];
  };
  __device__ __forceinline__ Panels panel_of(int32_t item) const {
    const int32_t tile = tiles.tile_of(item);
    if (p.pair) return {{maps.weights[0], maps.weights[1]}, {tile * 4, tile * 4}};
    const int32_t i = target_index(p, tile), within = tile - p.targets[i].first_tile;
    const CUtensorMap* map = maps.weights[i];
    return {{map, map}, {within * 8, within * 8 + 4}};
  }

  // Panels past the last become zeros.
  __device__ __forceinline__ void produce_weights(const Panels& panels, int32_t unit, int32_t stage) const {
    const uint32_t done = full + stage * 8, to = stage_memory + stage * Layout::stage;
    barrier_expect(done, Layout::stage);
#pragma unroll
    for (int32_t g = 0; g < 2; ++g)
      tensor_stream(to + g * 4 * Layout::panel, panels.map[g], unit * (Layout::panel / 8), panels.first[g], done);
  }

  __device__ __forceinline__ void produce_tokens(int32_t item, int32_t unit, int32_t stage) const {
    const uint32_t to = stage_memory + stage * Layout::stage + Layout::weights;
    tensor_copy(to, &maps.tokens, unit * kUnitCols, tiles.token_of(item), full + stage * 8);
  }

  // Runs in one thread.
  __device__ __forceinline__ void produce() const {
    map_prefetch(&maps.tokens);
    // The first round of stages requests weights before the kernel ahead has ended, and tokens after it.
    const int32_t begin = tiles.slice_group(0), end = tiles.slice_group(Tiles::slices);
    int32_t early = 0;
    for (int32_t item = tiles.first_item(); item < p.items && early < Layout::stages && begin < end; item += p.item_stride) {
      const auto panel = panel_of(item);
      for (int32_t unit = begin; unit < end && early < Layout::stages; ++unit) produce_weights(panel, unit, early++);
    }
    grid_wait();
    StageCursor cursor;
    int32_t asked = 0;
    for (int32_t item = tiles.first_item(); item < p.items; item += p.item_stride) {
      const auto panel = panel_of(item);
      for (int32_t unit = begin; unit < end; ++unit, ++asked, cursor.next()) {
        if (asked >= early) {
          barrier_wait(empty + cursor.stage * 8, cursor.phase ^ 1);
          produce_weights(panel, unit, cursor.stage);
        }
        produce_tokens(item, unit, cursor.stage);
      }
    }
  }

  __device__ __forceinline__ void await(const StageCursor& cursor) const { barrier_wait(full + cursor.stage * 8, cursor.phase); }
  __device__ __forceinline__ uint64_t rows_at(int32_t stage) const {
    return swizzled_rows(stage_memory + stage * Layout::stage + Layout::weights);
  }
  __device__ __forceinline__ void release_unit(int32_t stage) const { warp_release(empty + stage * 8, tiles.lane); }
};

template <class A>
struct M128Block {
  using Layout = M128Layout;
  using Tiles = M128Tiles<M128Share::kK>;
  using StageCursor = M128Pipeline::StageCursor;
  using Reduction = M128Reduction<A, M128Share::kK, kM128SpareWarps, 8>;
  using Sums = typename Reduction::Sums;

  const Tiles& tiles;
  const M128Pipeline& pipeline;
  const Reduction& reduction;

  // Adds the products of `units` units.
  __device__ __forceinline__ void multiply(Sums& acc, StageCursor& cursor, int32_t units) const {
    multiply_units<A>(pipeline, acc, cursor, units, [&](uint32_t (&a)[4][4], int32_t stage, int32_t) {
#pragma unroll
      for (int32_t step = 0; step < 4; ++step)
        load_fragment(a[step], pipeline.stage_memory + stage * Layout::stage + tiles.warp * Layout::panel, step, tiles.lane);
    });
  }

  __device__ __forceinline__ void consume() const {
    grid_wait();
    StageCursor cursor;
    uint32_t phase = 0;
    for (int32_t item = tiles.first_item(); item < tiles.p.items; item += tiles.p.item_stride, phase ^= 1) {
#pragma unroll 1
      for (int32_t pair = 0; pair < 2; ++pair) {
        Sums slices[2] = {};
#pragma unroll
        for (int32_t s = 0; s < 2; ++s)
          multiply(slices[s], cursor, tiles.slice_group(pair * 2 + s + 1) - tiles.slice_group(pair * 2 + s));
#pragma unroll
        for (int32_t i = 0; i < kM128Tokens / 2; ++i) slices[0][i] = slices[0][i] + slices[1][i];
        if (pair == 0) {
          reduction.wait_until_free(phase);
          reduction.for_sums([&](float& sum, int32_t i) { sum = slices[0][i]; });
        } else {
          reduction.for_sums([&](float& sum, int32_t i) { sum = sum + slices[0][i]; });
        }
      }
      reduction.signal(reduction.ready);
      if (tiles.last(item)) reduction.template finish<true>(item, phase);
    }
  }
};

#endif

#if MR_HOPPER
template <class A>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    gemm_m128_wgmma(const __grid_constant__ WgmmaParams p, const __grid_constant__ M128Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = M128Layout;
  extern __shared__ __align__(1024) uint8_t m128_memory[];
  const M128Tiles<M128Share::kK> tiles{p, static_cast<int32_t>(cluster_rank()), static_cast<int32_t>(threadIdx.x) / 32,
                                       static_cast<int32_t>(threadIdx.x) % 32};
  M128Pipeline pipeline{tiles, maps};
  typename M128Block<A>::Reduction reduction{tiles};
  pipeline.stage_memory = kept_address(m128_memory);
  reduction.sums = pipeline.stage_memory + Layout::stages * Layout::stage;
  reduction.partial_sums = reinterpret_cast<float*>(m128_memory + Layout::stages * Layout::stage);
  pipeline.full = reduction.sums + Layout::reduction;
  pipeline.empty = pipeline.full + Layout::stages * 8;
  reduction.ready = pipeline.empty + Layout::stages * 8;
  reduction.free = reduction.ready + 8;
  const M128Block<A> block{tiles, pipeline, reduction};
  run_m128<208, 88>(pipeline, block, reduction);
#endif
}
#endif

template <int32_t T>
WgmmaKernel m128_wgmma_kernel(Act act, M128Share share) {
#if MR_HOPPER
  if constexpr (quantised(T)) {
    return act == Act::kF16 ? m128_wgmma_quant_kernel_for<T>(share) : WgmmaKernel{};
  } else if constexpr (T != kF32) {
    using A = std::conditional_t<T == kF16, __half, __nv_bfloat16>;
    if (share == M128Share::kK && act == (T == kF16 ? Act::kF16 : Act::kBF16))
      return {reinterpret_cast<const void*>(&gemm_m128_wgmma<A>), M128Layout::bytes, kWgmmaThreads, kM128Tokens};
  }
#endif
  (void)act, (void)share;
  return {};
}

}  // namespace mr::cuda
