// tall_kernel: the decode class of products by wgmma for float weights and many tokens; see product.h for what it promises.
//
// A cluster of two blocks takes tiles of 128 rows by `tokens` tokens, and each block four of the eight segments of the
// columns, one after another. Its two warpgroups that multiply have 64 rows each, of a pair the gate's and the up's, and read
// one ring that a warp fills: a stage is one unit of 64 inputs, the panels' weights and the tokens as swizzled rows of 128
// bytes. The sum of a block's segments lies in its shared memory for the cluster, and each block joins and ends half of the
// rows: by spare warps while the next tile is multiplied, the last tile by those that multiplied it.
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/fragment.cuh"
#include "kernels/linear/prefill_kernel.cuh"
#include "kernels/linear/tall.h"
#include "kernels/linear/targets.cuh"

namespace mr::cuda {

template <int32_t tokens_>
struct TallLayout {
  static constexpr int32_t tokens = tokens_, panels = kTallPanels;
  static constexpr int32_t panel = 2048;  // bytes of one unit: 16 rows of 64 two-byte weights
  static constexpr int32_t weights = panels * panel, rows = tokens * 128;
  static constexpr int32_t stage = weights + rows;
  static constexpr int32_t join_stride = panels * kPanelRows + 4;  // floats; a token's column
  static constexpr int32_t join = tokens * join_stride * 4;
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
struct TallBlock {
  using Layout = TallLayout<tokens>;
  using Sums = float[tokens / 2];

  const PrefillParams& p;
  const TallMaps& maps;
  uint32_t ring, join, full, empty;  // shared memory addresses
  uint32_t ready, free;              // of a tile's sums: all are there, all were read
  float* joins;
  int32_t rank, warp, lane;

  struct Place {
    int32_t stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
      if (++stage < Layout::stages) return;
      stage = 0;
      phase ^= 1;
    }
  };

  // The first unit of this block's segment s, 0..4.
  __device__ __forceinline__ int32_t segment_begin(int32_t s) const { return p.groups * (rank * 4 + s) / 8; }
  __device__ __forceinline__ int32_t first_item() const { return static_cast<int32_t>(blockIdx.x) / kTallCluster; }

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
    if (lane != 0) return;
    const uint32_t done = full + stage * 8, to = ring + stage * Layout::stage;
    barrier_expect(done, Layout::stage);
#pragma unroll
    for (int32_t g = 0; g < 2; ++g)
      tensor_copy(to + g * 4 * Layout::panel, panels.map[g], unit * (Layout::panel / 8), panels.first[g], done);
  }

  __device__ __forceinline__ void ask_tokens(int32_t item, int32_t unit, int32_t stage) const {
    const uint32_t to = ring + stage * Layout::stage + Layout::weights;
    if (lane == 0) tensor_copy(to, &maps.tokens, unit * kUnitCols, item % p.token_tiles * tokens, full + stage * 8);
  }

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

  __device__ __forceinline__ bool last(int32_t item) const { return item + p.item_stride >= p.items; }

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
        if (pair == 0) {
          barrier_wait_cluster(free, phase ^ 1);
          store<false>(segments);
        } else {
          store<true>(segments);
        }
      }
      signal(ready);
      if (last(item)) finish<true>(item, phase);
    }
  }

  // The spare warps: those behind the one that asks for data.
  static constexpr int32_t spare = 3;
  __device__ __forceinline__ void end_others() const {
    grid_wait();
    uint32_t phase = 0;
    for (int32_t item = first_item(); item < p.items && !last(item); item += p.item_stride, phase ^= 1) {
      finish<false>(item, phase);
      signal(free);
    }
  }

  // This warp is done with the sums, in the way that the barrier says, in every block of the cluster.
  __device__ __forceinline__ void signal(uint32_t barrier) const {
    __syncwarp();
    if (lane < kTallCluster) barrier_publish_at(barrier, lane);
  }

  // The sum of a pair of segments, the second pair on top of the first's: column = token, then row.
  template <bool second>
  __device__ __forceinline__ void store(const Sums (&segments)[2]) const {
    float* at = joins + lane % 4 * 2 * Layout::join_stride + warp * kPanelRows + lane / 4;
#pragma unroll
    for (int32_t n = 0; n < tokens / 8; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        float& sum = at[(n * 8 + i % 2) * Layout::join_stride + i / 2 * 8];
        const float both = segments[0][n * 4 + i] + segments[1][n * 4 + i];
        sum = second ? sum + both : both;
      }
    }
  }

  // Columns past the last are read as the last.
  __device__ __forceinline__ float joined(int32_t column, int32_t row) const {
    const uint32_t at = join + (min(column, tokens - 1) * Layout::join_stride + row) * 4;
    return load_remote(at, 0) + load_remote(at, 1);
  }

  // This block's half of the tile's rows, by the warps that multiply or by the spare ones: each takes some columns.
  template <bool multiplying>
  __device__ __forceinline__ void finish(int32_t item, uint32_t phase) const {
    constexpr int32_t workers = multiplying ? 8 : spare, together = multiplying ? tokens / 8 : 4;
    const int32_t tile = item / p.token_tiles, token0 = item % p.token_tiles * tokens;
    const int32_t columns = min(p.tokens - token0, tokens), worker = multiplying ? warp : warp - 9;
    // Those that multiply ask first for what is added to; spare warps that have no column wait too, before they say so.
    const bool waits = !multiplying || p.pair;
    if (waits) barrier_wait_cluster(ready, phase);
    if (p.pair) {
#pragma unroll 1
      for (int32_t c = worker; c < columns; c += workers * together) end_pair<workers, together>(tile, token0, c, columns);
      return;
    }
    int32_t within;
    const DecodeTarget& target = target_of(p, tile, within);
    const Rows rows{target, within * (Layout::panels * kPanelRows) + rank * 64 + lane, rank * 64 + lane, token0, columns};
    const uint32_t wait_for = waits ? 0 : 1 + phase;
    switch (p.end) {
      case ProductEnd::kStoreF32: return end_rows<ProductEnd::kStoreF32, workers, together>(rows, worker, wait_for);
      case ProductEnd::kAddF32: return end_rows<ProductEnd::kAddF32, workers, together>(rows, worker, wait_for);
      case ProductEnd::kStoreAct: return end_rows<ProductEnd::kStoreAct, workers, together>(rows, worker, wait_for);
      case ProductEnd::kSwiGLU: return;
    }
  }

  struct Rows {
    const DecodeTarget& target;
    int32_t row, local;  // of this lane, and 32 further on: in the weight, and in the tile
    int32_t token0, columns;
  };

  // Columns worker, worker + workers, ..., `together` at a time. wait_for: 0, or 1 and the phase that the sums come with.
  template <ProductEnd kind, int32_t workers, int32_t together>
  __device__ __forceinline__ void end_rows(const Rows& rows, int32_t worker, uint32_t wait_for) const {
    const DecodeTarget& target = rows.target;
    const bool has[2] = {rows.row < target.rows, rows.row + 32 < target.rows};
    float y[together][2], bias[2] = {0, 0};
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      if (target.bias != nullptr && has[r]) bias[r] = target.bias[rows.row + r * 32];
    }
#pragma unroll 1
    for (int32_t c = worker; c < rows.columns; c += workers * together) {
      const int64_t first = (rows.token0 + c) * target.out_stride + rows.row, step = workers * target.out_stride;
      if constexpr (kind == ProductEnd::kAddF32) {
        const float* from = static_cast<const float*>(target.out) + first;
#pragma unroll
        for (int32_t j = 0; j < together; ++j) {
#pragma unroll
          for (int32_t r = 0; r < 2; ++r) y[j][r] = has[r] && c + j * workers < rows.columns ? from[j * step + r * 32] : 0;
        }
      }
      if (wait_for != 0) barrier_wait_cluster(ready, wait_for - 1);
#pragma unroll
      for (int32_t j = 0; j < together; ++j) {
#pragma unroll
        for (int32_t r = 0; r < 2; ++r) {
          float sum = joined(c + j * workers, rows.local + r * 32) * p.x_scale;
          if (target.bias != nullptr) sum += bias[r];
          y[j][r] = kind == ProductEnd::kAddF32 ? y[j][r] + sum : sum;
        }
      }
#pragma unroll
      for (int32_t j = 0; j < together; ++j) {
#pragma unroll
        for (int32_t r = 0; r < 2; ++r) {
          if (!has[r] || c + j * workers >= rows.columns) continue;
          const int64_t at = first + j * step + r * 32;
          if constexpr (kind == ProductEnd::kStoreAct) static_cast<A*>(target.out)[at] = A(y[j][r]);
          else static_cast<float*>(target.out)[at] = y[j][r];
        }
      }
    }
  }

  // Likewise of a pair: the gate's rows, and with them the up's.
  template <int32_t workers, int32_t together>
  __device__ __forceinline__ void end_pair(int32_t tile, int32_t token0, int32_t c, int32_t columns) const {
    const DecodeTarget& target = p.targets[0];
    const int32_t local = rank * 32 + lane, row = tile * 64 + local;
    const bool has = row < target.rows;
    float gate[together], up[together], bias[2] = {0, 0};
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      if (p.targets[i].bias != nullptr && has) bias[i] = p.targets[i].bias[row];
    }
#pragma unroll
    for (int32_t j = 0; j < together; ++j) {
      gate[j] = joined(c + j * workers, local) * p.x_scale;
      up[j] = joined(c + j * workers, local + 64) * p.x_scale;
    }
    if (!has) return;
#pragma unroll
    for (int32_t j = 0; j < together; ++j) {
      const int32_t column = c + j * workers;
      if (column >= columns) continue;
      if (target.bias != nullptr) gate[j] += bias[0];
      if (p.targets[1].bias != nullptr) up[j] += bias[1];
      static_cast<A*>(target.out)[(token0 + column) * target.out_stride + row] =
          A(gate[j] / (1.0f + expf(-gate[j])) * up[j] * p.pair_share);
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
  TallBlock<A, tokens> block{p, maps};
  block.rank = static_cast<int32_t>(cluster_rank());
  block.warp = static_cast<int32_t>(threadIdx.x) / 32;
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  block.ring = shared_address(tall_memory);
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
    barrier_init(block.free, TallBlock<A, tokens>::spare * kTallCluster);
    barrier_init_fence();
  }
  cluster_sync();
  if (block.warp >= 8) {
    registers_down<72>();
    if (block.warp == 8) block.produce();
    else block.end_others();
  } else {
    registers_up<216>();
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
