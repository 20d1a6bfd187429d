// tall_join: how the blocks of a cluster add what they have of a tile of 128 rows, and end it.
//
// A block's sum of a tile lies in its shared memory for the cluster, a column a token, and each block joins and ends its share of
// the rows: by spare warps while the next tile is multiplied, the last tile by the warps that multiplied it. Of a pair the first
// 64 rows are the gate's.
#pragma once

#include "kernels/linear/prefill.h"
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

// spare_: a block's last warps, which end tiles meanwhile.
template <class A, int32_t tokens, int32_t spare_>
struct TallJoin {
  using Layout = TallJoinLayout<tokens>;
  using Sums = float[tokens / 2];
  static constexpr int32_t cluster = kTallCluster, spare = spare_;
  static constexpr int32_t own_rows = Layout::rows / cluster, own_pairs = own_rows / 2;  // that a block ends
  static_assert(own_pairs == 32, "a lane has a pair, or two rows");

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

  // Columns past the last are read as the last.
  __device__ __forceinline__ float joined(int32_t column, int32_t row) const {
    const uint32_t at = join + (min(column, tokens - 1) * Layout::stride + row) * 4;
    return load_remote(at, 0) + load_remote(at, 1);
  }

  // This block's share of the tile's rows, by the warps that multiply or by the spare ones: each takes some columns.
  template <bool multiplying>
  __device__ __forceinline__ void finish(int32_t item, uint32_t phase) const {
    constexpr int32_t workers = multiplying ? 8 : spare, together = multiplying ? tokens / 8 : 8;
    const int32_t tile = item / p.token_tiles, token0 = item % p.token_tiles * tokens;
    const int32_t columns = min(p.tokens - token0, tokens), worker = multiplying ? warp : warp - (12 - spare);
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
    const Rows rows{target, within * Layout::rows + rank * own_rows + lane, rank * own_rows + lane, token0, columns};
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
    int32_t row, local;  // of this lane, and every 32 further on: in the weight, and in the tile
    int32_t token0, columns;
  };

  // Columns worker, worker + workers, ..., `together` at a time. wait_for: 0, or 1 and the phase that the sums come with.
  template <ProductEnd kind, int32_t workers, int32_t together>
  __device__ __forceinline__ void end_rows(const Rows& rows, int32_t worker, uint32_t wait_for) const {
    const DecodeTarget& target = rows.target;
    bool has[2];
    float y[together][2], bias[2] = {0, 0};
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      has[r] = rows.row + r * 32 < target.rows;
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
    const int32_t local = rank * own_pairs + lane, row = tile * (Layout::rows / 2) + local;
    const bool has = row < target.rows;
    float gate[together], up[together], bias[2] = {0, 0};
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      if (p.targets[i].bias != nullptr && has) bias[i] = p.targets[i].bias[row];
    }
#pragma unroll
    for (int32_t j = 0; j < together; ++j) {
      gate[j] = joined(c + j * workers, local) * p.x_scale;
      up[j] = joined(c + j * workers, local + Layout::rows / 2) * p.x_scale;
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

}  // namespace mr::cuda
