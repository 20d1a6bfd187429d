// tall_join: how the blocks of a cluster add what they have of a tile of 128 rows, and end it.
//
// A block's sum of a tile lies in its shared memory for the cluster, a column a token, and each block joins and ends its share of
// the rows: by spare warps while the next tile is multiplied, the last tile by the warps that multiplied it. Of a pair the first
// 64 rows are the gate's.
#pragma once

#include "kernels/act.cuh"
#include "kernels/linear/prefill.h"
#include "kernels/linear/silu.cuh"
#include "kernels/linear/tall.h"
#include "kernels/linear/targets.cuh"
#include "kernels/linear/wgmma.cuh"

namespace mr::cuda {

template <int32_t tokens>
struct TallJoinLayout {
  static constexpr int32_t rows = kTallPanels * kPanelRows, stride = rows + 4;  // floats; a token's column
  static constexpr int32_t bytes = tokens * stride * 4;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// spare_: a block's last warps, which end tiles meanwhile. sets_: of how many pairs of columns a warp that multiplies asks ahead for what
// is added to.
template <class A, int32_t tokens, int32_t spare_, int32_t sets_>
struct TallJoin {
  using Layout = TallJoinLayout<tokens>;
  using Sums = float[tokens / 2];
  static constexpr int32_t cluster = kTallCluster, spare = spare_;
  static constexpr int32_t own_rows = Layout::rows / cluster, own_pairs = own_rows / 2;  // that a block ends
  static_assert(cluster == 2, "sums are this block's and the other's");

  const PrefillParams& p;
  uint32_t join, ready, free;  // shared memory addresses; barriers of a tile's sums: all are there, all were read
  float* joins;                // what `join` is the address of
  int32_t rank, warp, lane;

  __device__ __forceinline__ int32_t first_item() const { return static_cast<int32_t>(blockIdx.x) / cluster; }
  __device__ __forceinline__ bool last(int32_t item) const { return item + p.item_stride >= p.items; }

  // This warp is done with the sums, in the way that the barrier says, in every block of the cluster.
  __device__ __forceinline__ void signal(uint32_t barrier) const {
    __syncwarp();
    if (lane < cluster) barrier_publish_at(barrier, lane);
  }

  // Waits until the tile before was read. phase: 0 for the block's first tile, then alternating.
  __device__ __forceinline__ void await_free(uint32_t phase) const { barrier_wait_cluster(free, phase ^ 1); }

  // put(sum, i) for each sum of this warp's panel of a tile and its index among this thread's.
  template <class Put>
  __device__ __forceinline__ void for_sums(Put&& put) const {
    float* at = joins + lane % 4 * 2 * Layout::stride + warp * kPanelRows + lane / 4;
#pragma unroll
    for (int32_t n = 0; n < tokens / 8; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) put(at[(n * 8 + i % 2) * Layout::stride + i / 2 * 8], n * 4 + i);
    }
  }

  // What the spare warps do: they end every tile but the last.
  __device__ __forceinline__ void end_others() const {
    uint32_t phase = 0;
    for (int32_t item = first_item(); item < p.items && !last(item); item += p.item_stride, phase ^= 1) {
      finish<false>(item, phase);
      signal(free);
    }
  }

  // This block's share of the tile's rows, by the warps that multiply or by the spare ones: each takes some columns.
  template <bool multiplying>
  __device__ __forceinline__ void finish(int32_t item, uint32_t phase) const {
    constexpr int32_t workers = multiplying ? 8 : spare;
    const int32_t tile = item / p.token_tiles, token0 = item % p.token_tiles * tokens;
    const int32_t worker = multiplying ? warp : warp - (12 - spare), columns = min(p.tokens - token0, tokens);
    // Those that multiply ask first for what is added to; spare warps that have no column wait too, before they say so.
    const bool waits = !multiplying || p.pair;
    if (waits) barrier_wait_cluster(ready, phase);
    if (p.pair) return end_pair<workers>(tile, token0, columns, worker);
    const uint32_t wait_for = waits ? 0 : 1 + phase;
    switch (p.end) {
      case ProductEnd::kStoreF32: return end_rows<ProductEnd::kStoreF32, workers>(tile, token0, columns, worker, wait_for);
      case ProductEnd::kAddF32: return end_rows<ProductEnd::kAddF32, workers>(tile, token0, columns, worker, wait_for);
      case ProductEnd::kStoreAct: return end_rows<ProductEnd::kStoreAct, workers>(tile, token0, columns, worker, wait_for);
      case ProductEnd::kSwiGLU:
      case ProductEnd::kHeads: return;
    }
  }

  using Four = float[4];  // rows next to each other, which a lane ends together

  // The four rows from `row` on, of the tile.
  struct Source {
    uint32_t own, other;  // where this block's sums of them, and the other's, begin

    // Their sums of a column; columns past the last are read as the last.
    __device__ __forceinline__ void joined(Four& y, int32_t column, float scale) const {
      const uint32_t at = min(column, tokens - 1) * (Layout::stride * 4);
      const uint4 a = load_shared16(own + at), b = load_remote16(other + at);
      y[0] = (__uint_as_float(a.x) + __uint_as_float(b.x)) * scale;
      y[1] = (__uint_as_float(a.y) + __uint_as_float(b.y)) * scale;
      y[2] = (__uint_as_float(a.z) + __uint_as_float(b.z)) * scale;
      y[3] = (__uint_as_float(a.w) + __uint_as_float(b.w)) * scale;
    }
  };
  __device__ __forceinline__ Source source(int32_t row) const { return {join + row * 4, remote(join + row * 4, rank ^ 1)}; }

  // What becomes of four rows of a target.
  template <class E>
  struct Result {
    E* first;      // of column 0
    int64_t stride;
    int32_t has;   // how many of the rows there are
    bool at_once;  // all four, and they are aligned

    __device__ __forceinline__ Result(const DecodeTarget& target, int32_t row)
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

  __device__ __forceinline__ static void load_bias(Four& bias, const DecodeTarget& target, int32_t row) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) bias[i] = target.bias != nullptr && row + i < target.rows ? target.bias[row + i] : 0;
  }

  // A warp has two columns at a time, and of a pair four; the workers take turns. wait_for: 0, or 1 and the phase that the sums come with.
  template <ProductEnd kind, int32_t workers>
  __device__ __forceinline__ void end_rows(int32_t tile, int32_t token0, int32_t columns, int32_t worker, uint32_t wait_for) const {
    constexpr int32_t lanes = own_rows / 4, step = 32 / lanes * workers;
    constexpr int32_t sets = workers == 8 ? sets_ : 2, together = 2;
    static_assert(sets % together == 0);
    int32_t within;
    const DecodeTarget& target = target_of(p, tile, within);
    const int32_t local = rank * own_rows + lane % lanes * 4, row = within * Layout::rows + local;
    const Source sums = source(local);
    const Result<std::conditional_t<kind == ProductEnd::kStoreAct, A, float>> result(target, row);
    const bool biased = target.bias != nullptr;
    Four bias;
    load_bias(bias, target, row);
#pragma unroll 1
    for (int32_t c = worker * (32 / lanes) + lane / lanes; c - lane / lanes < columns; c += step * sets) {
      Four before[sets];
      if constexpr (kind == ProductEnd::kAddF32) {
#pragma unroll
        for (int32_t j = 0; j < sets; ++j) {
          if (c + j * step < columns) result.read(before[j], token0 + c + j * step);
        }
      }
      if (wait_for != 0) barrier_wait_cluster(ready, wait_for - 1);
#pragma unroll
      for (int32_t first = 0; first < sets; first += together) {
        Four y[together];
#pragma unroll
        for (int32_t j = 0; j < together; ++j) sums.joined(y[j], c + (first + j) * step, p.x_scale);
#pragma unroll
        for (int32_t j = 0; j < together; ++j) {
          const int32_t column = c + (first + j) * step;
          if (column >= columns) continue;
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            if (biased) y[j][i] += bias[i];
            if constexpr (kind == ProductEnd::kAddF32) y[j][i] = before[first + j][i] + y[j][i];
          }
          result.write(y[j], token0 + column);
        }
      }
    }
  }

  // Likewise of a pair: the gate's rows, and with them the up's.
  template <int32_t workers>
  __device__ __forceinline__ void end_pair(int32_t tile, int32_t token0, int32_t columns, int32_t worker) const {
    constexpr int32_t lanes = own_pairs / 4, step = 32 / lanes * workers, together = 2;
    const int32_t local = rank * own_pairs + lane % lanes * 4, row = tile * (Layout::rows / 2) + local;
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
        gates.joined(gate[j], c + j * step, p.x_scale);
        ups.joined(up[j], c + j * step, p.x_scale);
      }
      float y[together * 4];
#pragma unroll
      for (int32_t i = 0; i < together * 4; ++i) {
        y[i] = c + i / 4 * step < columns ? gate[i / 4][i % 4] : 1;  // what is not there must not send what is the long way (silu.cuh)
        if (biased[0]) y[i] += bias[0][i % 4];
        if (biased[1]) up[i / 4][i % 4] += bias[1][i % 4];
      }
      silu_each(y);
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

#endif

}  // namespace mr::cuda
