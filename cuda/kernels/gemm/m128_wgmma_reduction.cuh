// m128_wgmma_reduction: how blocks share tiles of 128 rows in clusters of two, how their sums are added, and the epilogue.
//
// M128Share::kK: the two blocks share a tile along K. Each stores its sums of a tile in its shared memory, one column for
// each token, and reads the other block's through distributed shared memory. Each finishes half of the rows.
// M128Share::kTokens: the blocks have neighbouring tiles of the same tokens, each with the whole of K, and each loads half of
// the tokens for both. A block finishes its own tile.
// Spare warps finish a tile while the consumers multiply the next; the consumers themselves finish the last tile. Of a pair
// the first 64 rows are the gate's.
#pragma once

#include "kernels/act.cuh"
#include "kernels/gemm/m128_wgmma.h"
#include "kernels/gemm/pipeline.cuh"
#include "kernels/gemm/prefill_wgmma.h"
#include "kernels/gemm/activation.cuh"
#include "kernels/gemm/targets.cuh"
#include "kernels/launch.h"

#if MR_HOPPER
#include <cuda.h>
#endif

namespace mr::cuda {

#if MR_HOPPER
struct M128Maps {
  CUtensorMap tokens;      // boxes of one unit's columns and a tile's tokens
  CUtensorMap input_sums;  // boxes of one group's sums and a tile's tokens, if blocks fold
  CUtensorMap weights[kGemmTargets][kPrefillPlanes];  // of each target: boxes of a plane of four panels
};
#endif

struct M128ReductionLayout {
  static constexpr int32_t rows = kM128Panels * kPanelRows;  // floats of a token's column
  static constexpr int32_t bytes = kM128Tokens * rows * 4;
  // Four rows are a piece of 16 bytes. Piece i of column c is stored at i ^ swizzle(c), so that neither the products' order of
  // rows and columns nor rows in order meet in a bank.
  __host__ __device__ static constexpr int32_t swizzle(int32_t column) { return column / 2 % 4 * 2; }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// M128Tiles is which tiles, slices and tokens a block has.
template <M128Share share>
struct M128Tiles {
  static constexpr int32_t tokens = kM128Tokens, cluster = kM128Cluster;
  static constexpr bool whole = share == M128Share::kTokens;  // a block has the whole of K
  static constexpr int32_t slices = whole ? 8 : 4;            // of K that a block multiplies
  static constexpr int32_t readers = whole ? cluster : 1;     // blocks that read the tokens that a block loads

  const WgmmaParams& p;
  int32_t rank, warp, lane;

  __device__ __forceinline__ int32_t first_item() const { return static_cast<int32_t>(blockIdx.x) / cluster; }
  __device__ __forceinline__ bool last(int32_t item) const { return item + p.item_stride >= p.items; }

  // The tile and the first token of an item. A tile may lie past the last, if blocks have a tile each.
  __device__ __forceinline__ int32_t tile_of(int32_t item) const {
    return whole ? item / p.token_tiles * cluster + rank : item / p.token_tiles;
  }
  __device__ __forceinline__ int32_t token_of(int32_t item) const { return item % p.token_tiles * tokens; }
  // Returns the group of columns at which this block's slice s begins, 0..slices.
  __device__ __forceinline__ int32_t slice_group(int32_t s) const { return p.groups * (whole ? s : rank * slices + s) / 8; }

  // Releases a stage that has tokens, in every block that loads some of them.
  __device__ __forceinline__ void release_tokens(uint32_t barrier) const {
    if constexpr (whole) warp_release(barrier, lane, cluster);
    else warp_release(barrier, lane);
  }
  // Copies a box of columns of a tile's tokens, or, if the blocks share them, of half of the tokens for both. bytes: of all
  // tokens.
  __device__ __forceinline__ void copy_tokens(uint32_t to, const void* map, int32_t x, int32_t token0, int32_t bytes, uint32_t done) const {
    constexpr uint16_t both = (1 << cluster) - 1;
    if constexpr (whole) tensor_copy(to + rank * (bytes / cluster), map, x, token0 + rank * (tokens / cluster), done, both);
    else tensor_copy(to, map, x, token0, done);
  }
};

// M128Reduction adds the sums of a tile's blocks and finishes its rows. spare_warps_: the block's last warps, which run epilogues.
// sets_: pairs of columns whose residual a consumer warp prefetches.
template <class A, M128Share share, int32_t spare_warps_, int32_t sets_>
struct M128Reduction {
  using Layout = M128ReductionLayout;
  using Tiles = M128Tiles<share>;
  static constexpr int32_t tokens = kM128Tokens, cluster = kM128Cluster, spare_warps = spare_warps_;
  static constexpr bool whole = Tiles::whole;
  using Sums = float[tokens / 2];
  static constexpr int32_t own_rows = whole ? Layout::rows : Layout::rows / cluster, own_pairs = own_rows / 2;  // that a block finishes
  static_assert(cluster == 2, "sums are this block's and the other's");
  static constexpr int32_t signals = whole ? 1 : cluster;  // blocks whose warps arrive at a barrier of sums

  const Tiles& tiles;
  uint32_t sums, ready, free;  // addresses: the sums of a tile; barriers: all stored, all read
  float* partial_sums;         // the buffer whose address is `sums`
  const WgmmaParams& p = tiles.p;
  const int32_t warp = tiles.warp, lane = tiles.lane;

  __device__ __forceinline__ void init_barriers() const {
    barrier_init(ready, 8 * signals);
    barrier_init(free, spare_warps * signals);
  }
  // Arrives at the barrier in every block that reads the sums: this warp has stored, or read, them.
  __device__ __forceinline__ void signal(uint32_t barrier) const {
    __syncwarp();
    if constexpr (whole) {
      if (lane == 0) barrier_arrive(barrier);
    } else {
      if (lane < cluster) barrier_publish_at(barrier, lane);
    }
  }
  __device__ __forceinline__ static void await(uint32_t barrier, uint32_t parity) {
    if constexpr (whole) barrier_wait(barrier, parity);
    else barrier_wait_cluster(barrier, parity);
  }

  // Waits until the tile before was read. phase: 0 for the block's first tile, then alternating.
  __device__ __forceinline__ void wait_until_free(uint32_t phase) const { await(free, phase ^ 1); }

  // Calls put(sum, i) for each sum of this warp's panel of a tile; i is its index among this thread's sums.
  template <class Put>
  __device__ __forceinline__ void for_sums(Put&& put) const {
    const int32_t g = lane / 4, column = lane % 4 * 2, piece = warp * (kPanelRows / 4) + g / 4, by = Layout::swizzle(column);
    float* const first = partial_sums + column * Layout::rows + g % 4;
    float* const rows[2] = {first + (piece ^ by) * 4, first + ((piece + 2) ^ by) * 4};  // g and g + 8
#pragma unroll
    for (int32_t n = 0; n < tokens / 8; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) put(rows[i / 2][(n * 8 + i % 2) * Layout::rows], n * 4 + i);
    }
  }

  // Runs in the spare warps: they finish every tile but the last.
  __device__ __forceinline__ void finish_others() const {
    uint32_t phase = 0;
    for (int32_t item = tiles.first_item(); item < p.items && !tiles.last(item); item += p.item_stride, phase ^= 1) {
      finish<false>(item, phase);
      signal(free);
    }
  }

  // Finishes this block's share of the tile's rows, by the consumer warps or by the spare warps; each takes some
  // columns.
  template <bool multiplying>
  __device__ __forceinline__ void finish(int32_t item, uint32_t phase) const {
    constexpr int32_t workers = multiplying ? 8 : spare_warps;
    const int32_t tile = tiles.tile_of(item), token0 = tiles.token_of(item), worker = multiplying ? warp : warp - (12 - spare_warps);
    const int32_t columns = tile < p.tiles ? min(p.tokens - token0, tokens) : 0;
    // Consumers load the residual before they wait. Spare warps without a column must wait too, before they signal.
    const bool waits = !multiplying || p.pair;
    if (waits) await(ready, phase);
    if (p.pair) return end_pair<workers>(tile, token0, columns, worker);
    end_rows<workers>(tile, token0, columns, worker, waits ? 0 : 1 + phase);
  }

  using Four = float[4];  // neighbouring rows that a lane finishes together

  // Source is the sums of four rows, from `row` of the tile on.
  struct Source {
    uint32_t own, other;  // where this block's sums begin, and the other's
    int32_t piece;

    // Adds the two blocks' sums of a column, if they share it; columns past the last are read as the last.
    __device__ __forceinline__ void reduced(Four& y, int32_t column, float scale) const {
      const int32_t c = min(column, tokens - 1), offset = c * (Layout::rows * 4) + (piece ^ Layout::swizzle(c)) * 16;
      const uint4 a = load_shared16(own + offset);
      if constexpr (whole) {
        y[0] = __uint_as_float(a.x) * scale;
        y[1] = __uint_as_float(a.y) * scale;
        y[2] = __uint_as_float(a.z) * scale;
        y[3] = __uint_as_float(a.w) * scale;
        return;
      }
      const uint4 b = load_remote16(other + offset);
      y[0] = (__uint_as_float(a.x) + __uint_as_float(b.x)) * scale;
      y[1] = (__uint_as_float(a.y) + __uint_as_float(b.y)) * scale;
      y[2] = (__uint_as_float(a.z) + __uint_as_float(b.z)) * scale;
      y[3] = (__uint_as_float(a.w) + __uint_as_float(b.w)) * scale;
    }
  };
  __device__ __forceinline__ Source source(int32_t row) const { return {sums, remote(sums, tiles.rank ^ 1), row / 4}; }

  // Result is where four rows of a target are written.
  template <class E>
  struct Result {
    E* first;      // of column 0
    int64_t stride;
    int32_t has;   // rows that exist
    bool at_once;  // all four exist and are aligned

    __device__ __forceinline__ Result(const KernelTarget& target, int32_t row)
        : first(static_cast<E*>(target.out) + row), stride(target.out_stride), has(target.rows - row),
          at_once(has >= 4 && (reinterpret_cast<uintptr_t>(target.out) | stride * sizeof(E)) % (4 * sizeof(E)) == 0) {}

    __device__ __forceinline__ void read(Four& y, int64_t column) const {
      const E* const from = first + column * stride;
      if (at_once) {
        const float4 v = *reinterpret_cast<const float4*>(from);
        y[0] = v.x, y[1] = v.y, y[2] = v.z, y[3] = v.w;
      } else {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) y[i] = i < has ? from[i] : 0;
      }
    }
    __device__ __forceinline__ void write(const Four& y, int64_t column) const {
      E* const to = first + column * stride;
      if (at_once) {
        if constexpr (sizeof(E) == 4) *reinterpret_cast<float4*>(to) = make_float4(y[0], y[1], y[2], y[3]);
        else *reinterpret_cast<uint2*>(to) = make_uint2(ActOps<E>::pack(y[0], y[1]), ActOps<E>::pack(y[2], y[3]));
      } else {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          if (i < has) to[i] = E(y[i]);
        }
      }
    }
  };

  __device__ __forceinline__ static void load_bias(Four& bias, const KernelTarget& target, int32_t row) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) bias[i] = target.bias != nullptr && row + i < target.rows ? target.bias[row + i] : 0;
  }

  // A warp has two columns at a time, of a pair four. wait_for: 0, or 1 + the phase of the sums' barrier.
  template <int32_t workers>
  __device__ __forceinline__ void end_rows(int32_t tile, int32_t token0, int32_t columns, int32_t worker, uint32_t wait_for) const {
    constexpr int32_t lanes = own_rows / 4, step = 32 / lanes * workers;
    constexpr int32_t sets = workers == 8 ? sets_ : 2, together = 2;
    static_assert(sets % together == 0);
    int32_t within;
    const KernelTarget& target = target_of(p, tile, within);
    const int32_t local = (whole ? 0 : tiles.rank * own_rows) + lane % lanes * 4, row = within * Layout::rows + local;
    const Source from = source(local);
    const Result<float> result(target, row);
    const bool biased = target.bias != nullptr, adds = p.epilogue == Epilogue::kAddF32;
    Four bias;
    load_bias(bias, target, row);
#pragma unroll 1
    for (int32_t c = worker * (32 / lanes) + lane / lanes; c - lane / lanes < columns; c += step * sets) {
      Four before[sets];
      if (adds) {
#pragma unroll
        for (int32_t j = 0; j < sets; ++j) {
          if (c + j * step < columns) result.read(before[j], token0 + c + j * step);
        }
      }
      if (wait_for != 0) await(ready, wait_for - 1);
#pragma unroll
      for (int32_t first = 0; first < sets; first += together) {
        Four y[together];
#pragma unroll
        for (int32_t j = 0; j < together; ++j) from.reduced(y[j], c + (first + j) * step, p.x_scale);
#pragma unroll
        for (int32_t j = 0; j < together; ++j) {
          const int32_t column = c + (first + j) * step;
          if (column >= columns) continue;
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            if (biased) y[j][i] += bias[i];
            if (adds) y[j][i] = before[first + j][i] + y[j][i];
          }
          result.write(y[j], token0 + column);
        }
      }
    }
  }

  // The same for a pair: the gate's rows together with the up's.
  template <int32_t workers>
  __device__ __forceinline__ void end_pair(int32_t tile, int32_t token0, int32_t columns, int32_t worker) const {
    constexpr int32_t lanes = own_pairs / 4, step = 32 / lanes * workers, together = 2;
    const int32_t local = (whole ? 0 : tiles.rank * own_pairs) + lane % lanes * 4, row = tile * (Layout::rows / 2) + local;
    const Source gates = source(local), ups = source(local + Layout::rows / 2);
    const Result<A> result(p.targets[0], row);
    const bool biased[2] = {p.targets[0].bias != nullptr, p.targets[1].bias != nullptr};
    Four bias[2];
    load_bias(bias[0], p.targets[0], row);
    load_bias(bias[1], p.targets[1], row);
#pragma unroll 1
    for (int32_t c = worker * (32 / lanes) + lane / lanes; c - lane / lanes < columns; c += step * together) {
      Four gate[together], up[together];
#pragma unroll
      for (int32_t j = 0; j < together; ++j) {
        gates.reduced(gate[j], c + j * step, p.x_scale);
        ups.reduced(up[j], c + j * step, p.x_scale);
      }
      float y[together * 4];
#pragma unroll
      for (int32_t i = 0; i < together * 4; ++i) {
        y[i] = c + i / 4 * step < columns ? gate[i / 4][i % 4] : 1;  // missing columns must not trigger the slow path
        if (biased[0]) y[i] += bias[0][i % 4];
        if (biased[1]) up[i / 4][i % 4] += bias[1][i % 4];
      }
      activate_each(y, p.gelu != 0);
#pragma unroll
      for (int32_t j = 0; j < together; ++j) {
        if (c + j * step >= columns) continue;
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) gate[j][i] = y[j * 4 + i] * up[j][i] * p.pair_share;
        result.write(gate[j], token0 + c + j * step);
      }
    }
  }
};

// Runs a block of either kernel. Two warpgroups multiply. Of the third, the last warps finish tiles and the others produce, each
// by one thread.
template <int32_t registers, int32_t spare_registers, class Pipeline, class Block, class Reduction>
__device__ __forceinline__ void run_m128(const Pipeline& pipeline, const Block& block, const Reduction& reduction) {
  static_assert(kRegistersFit<registers, spare_registers>);
  if (threadIdx.x == 0) {
    pipeline.init_barriers();
    reduction.init_barriers();
    barrier_init_fence();
  }
  cluster_sync();
  if (reduction.warp < 8) {
    registers_up<registers>();
    block.consume();
  } else {
    registers_down<spare_registers>();
    if (reduction.warp >= 12 - Reduction::spare_warps) {
      grid_wait();
      grid_trigger();
      reduction.finish_others();
    } else if (elected()) {
      pipeline.produce();
    }
  }
  __syncwarp();
  cluster_sync();  // the other block may still read this block's sums
}

#endif

}  // namespace mr::cuda
