// tall_kernel: the decode class of products by wgmma for float weights and many tokens; see product.h for what it promises.
//
// A cluster of two blocks takes tiles of 128 rows by `tokens` tokens, and each block four of the eight segments of the
// columns, one after another. Its two warpgroups that multiply have 64 rows each, of a pair the gate's and the up's, and read
// one ring that a warp fills: a stage is one unit of 64 inputs, the panels' weights and the tokens as swizzled rows of 128
// bytes. tall_join.cuh adds the blocks' sums.
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/fragment.cuh"
#include "kernels/linear/prefill_layout.cuh"
#include "kernels/linear/tall_join.cuh"

namespace mr::cuda {

constexpr int32_t kTallSpare = 3;  // warps behind the one that asks for data

template <int32_t tokens_>
struct TallLayout {
  static constexpr int32_t tokens = tokens_, panels = kTallPanels;
  static constexpr int32_t panel = 2048;  // bytes of one unit: 16 rows of 64 two-byte weights
  static constexpr int32_t weights = panels * panel, rows = tokens * 128;
  static constexpr int32_t stage = weights + rows;
  static constexpr int32_t join = TallJoinLayout<tokens>::bytes;
  static constexpr int32_t barriers = 256;
  static constexpr int32_t stages_that_fit = (227 * 1024 - join - barriers) / stage;
  static constexpr int32_t stages = stages_that_fit > 8 ? 8 : stages_that_fit;
  static constexpr int32_t bytes = stages * stage + join + barriers;
  static_assert(stages >= 3 && (2 * stages + 2) * 8 <= barriers);
};

#if MR_HOPPER
struct TallMaps {
  CUtensorMap tokens;      // boxes of one unit's columns and a tile's tokens
  CUtensorMap weights[3];  // of each target: boxes of one unit of four panels, in eight bytes
};
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class A, int32_t tokens>
struct TallBlock : TallJoin<A, tokens, kTallSpare, 8> {
  using Layout = TallLayout<tokens>;
  using Join = TallJoin<A, tokens, kTallSpare, 8>;
  using typename Join::Sums;
  using Join::first_item, Join::lane, Join::p, Join::rank, Join::ready, Join::warp;

  const TallMaps& maps;
  uint32_t ring, full, empty;  // shared memory addresses

  using Place = RingPlace<Layout::stages>;

  // The first unit of this block's segment s, 0..4.
  __device__ __forceinline__ int32_t segment_begin(int32_t s) const { return p.groups * (rank * 4 + s) / 8; }

  // Where the four panels of each warpgroup lie: the map of their weight, and the first of them.
  struct Panels {
    const CUtensorMap* map[2];
    int32_t first[2];
  };
  __device__ __forceinline__ Panels panel_of(int32_t item) const {
    const int32_t tile = item / p.token_tiles;
    if (p.pair) return {{&maps.weights[0], &maps.weights[1]}, {tile * 4, tile * 4}};
    const int32_t i = target_index(p, tile), within = tile - p.targets[i].first_tile;
    const CUtensorMap* map = &maps.weights[i];
    return {{map, map}, {within * 8, within * 8 + 4}};
  }

  // Panels past the last are zeros.
  __device__ __forceinline__ void ask_weights(const Panels& panels, int32_t unit, int32_t stage) const {
    const uint32_t done = full + stage * 8, to = ring + stage * Layout::stage;
    barrier_expect(done, Layout::stage);
#pragma unroll
    for (int32_t g = 0; g < 2; ++g)
      tensor_copy(to + g * 4 * Layout::panel, panels.map[g], unit * (Layout::panel / 8), panels.first[g], done);
  }

  __device__ __forceinline__ void ask_tokens(int32_t item, int32_t unit, int32_t stage) const {
    const uint32_t to = ring + stage * Layout::stage + Layout::weights;
    tensor_copy(to, &maps.tokens, unit * kUnitCols, item % p.token_tiles * tokens, full + stage * 8);
  }

  // By one thread.
  __device__ __forceinline__ void produce() const {
    // The ring's first round asks for weights before the kernel ahead has ended, and for tokens after.
    const int32_t begin = segment_begin(0), end = segment_begin(4);
    int32_t early = 0;
    for (int32_t item = first_item(); item < p.items && early < Layout::stages && begin < end; item += p.item_stride) {
      const auto panel = panel_of(item);
      for (int32_t unit = begin; unit < end && early < Layout::stages; ++unit) ask_weights(panel, unit, early++);
    }
    grid_wait();
    grid_trigger();
    Place at;
    int32_t asked = 0;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      const auto panel = panel_of(item);
      for (int32_t unit = begin; unit < end; ++unit, ++asked, at.next()) {
        if (asked >= early) {
          barrier_wait(empty + at.stage * 8, at.phase ^ 1);
          ask_weights(panel, unit, at.stage);
        }
        ask_tokens(item, unit, at.stage);
      }
    }
  }

  __device__ __forceinline__ void load(uint32_t (&a)[4][4], const Place& at) const {
    const uint32_t panel = ring + at.stage * Layout::stage + warp * Layout::panel;
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) {
      const uint4 v = load_shared16(panel + step * 512 + lane * 16);
      a[step][0] = v.x;
      a[step][1] = v.y;
      a[step][2] = v.z;
      a[step][3] = v.w;
    }
  }

  __device__ __forceinline__ void release(int32_t stage) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + stage * 8);
  }

  // Adds the products of `units` units; a unit's fragments are loaded while those before multiply.
  __device__ __forceinline__ void multiply(Sums& acc, Place& at, int32_t units) const {
    if (units == 0) return;
    uint32_t a[2][4][4];
    barrier_wait(full + at.stage * 8, at.phase);
    load(a[0], at);
#pragma unroll 1
    for (int32_t unit = 0; unit < units; unit += 2) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        if (unit + i >= units) break;
        const int32_t now = at.stage;
        const uint64_t rows = swizzled_rows(ring + now * Layout::stage + Layout::weights);
        wgmma_fence();
#pragma unroll
        for (int32_t step = 0; step < 4; ++step) wgmma_m64<A>(acc, a[i][step], rows + step * 2);
        wgmma_commit();
        at.next();
        if (unit + i + 1 < units) {
          barrier_wait(full + at.stage * 8, at.phase);
          load(a[1 - i], at);
        }
        wgmma_wait<0>();
        release(now);
      }
    }
  }

  __device__ __forceinline__ void consume() const {
    grid_wait();
    Place at;
    uint32_t phase = 0;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride, phase ^= 1) {
#pragma unroll 1
      for (int32_t pair = 0; pair < 2; ++pair) {
        Sums segments[2] = {};
#pragma unroll
        for (int32_t s = 0; s < 2; ++s)
          multiply(segments[s], at, segment_begin(pair * 2 + s + 1) - segment_begin(pair * 2 + s));
#pragma unroll
        for (int32_t i = 0; i < tokens / 2; ++i) segments[0][i] = segments[0][i] + segments[1][i];
        if (pair == 0) {
          this->await_free(phase);
          this->for_sums([&](float& sum, int32_t i) { sum = segments[0][i]; });
        } else {
          this->for_sums([&](float& sum, int32_t i) { sum = sum + segments[0][i]; });
        }
      }
      this->signal(ready);
      if (this->last(item)) this->template finish<true>(item, phase);
    }
  }
};

#endif

#if MR_HOPPER
template <class A, int32_t tokens>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    tall_product(const __grid_constant__ PrefillParams p, const __grid_constant__ TallMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = TallLayout<tokens>;
  extern __shared__ __align__(1024) uint8_t tall_memory[];
  constexpr int32_t kRegisters = 208, kSpareRegisters = 88;
  static_assert(kRegistersFit<kRegisters, kSpareRegisters>);
  TallBlock<A, tokens> block{{p}, maps};
  block.rank = static_cast<int32_t>(cluster_rank());
  block.warp = static_cast<int32_t>(threadIdx.x) / 32;
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  block.ring = kept_address(tall_memory);
  block.join = block.ring + Layout::stages * Layout::stage;
  block.joins = reinterpret_cast<float*>(tall_memory + Layout::stages * Layout::stage);
  block.full = block.join + Layout::join;
  block.empty = block.full + Layout::stages * 8;
  block.ready = block.empty + Layout::stages * 8;
  block.free = block.ready + 8;
  if (threadIdx.x == 0) {
    for (int32_t s = 0; s < Layout::stages; ++s) {
      barrier_init(block.full + s * 8, 1);
      barrier_init(block.empty + s * 8, 8);
    }
    barrier_init(block.ready, 8 * kTallCluster);
    barrier_init(block.free, kTallSpare * kTallCluster);
    barrier_init_fence();
  }
  cluster_sync();
  if (block.warp >= 8) {
    registers_down<kSpareRegisters>();
    if (block.warp == 8) {
      if (elected()) block.produce();
    } else {
      grid_wait();
      block.end_others();
    }
  } else {
    registers_up<kRegisters>();
    block.consume();
  }
  __syncwarp();
  cluster_sync();  // others may still read this block's sums
#endif
}

template <class A, int32_t tokens>
PrefillKernel tall_kernel_of() {
  return {reinterpret_cast<const void*>(&tall_product<A, tokens>), TallLayout<tokens>::bytes, kPrefillThreads, tokens};
}
#else
template <class A, int32_t tokens>
PrefillKernel tall_kernel_of() {
  return {};
}
#endif

template <class A>
PrefillKernel tall_kernel_for() {
  return tall_kernel_of<A, kTallTokens>();
}

}  // namespace mr::cuda
