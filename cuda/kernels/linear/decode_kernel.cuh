// decode_kernel: the decode class of products; see product.h for what it promises.
//
// A block takes one tile of rows after another: wm * panels panels of 16 rows by tiles_n * 8 tokens. Its 8 warps are wm
// rows of warps by wk segments of the columns, and cluster blocks share one tile by columns: wk * cluster = 8 segments
// always. A warp streams its panels' units through a ring in shared memory that it alone fills and reads, and does not
// empty it between tiles; the wm warps of a segment share the tokens' part of the ring. Weights come by cp.async past the
// first level cache, `stages` units ahead.
// Segments are joined as a balanced tree of 8: within a block through shared memory, between blocks through the cluster's.
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/decode.h"
#include "kernels/linear/fragment.cuh"
#include "kernels/linear/mma.cuh"

namespace mr::cuda {

constexpr int32_t kSegments = 8;
constexpr int32_t kTokenRowBytes = kUnitCols * 2 + 16;  // 16 more than the data: ldmatrix meets every bank once

// What a decode kernel is compiled for.
template <int32_t panels_, int32_t tiles_n_, int32_t wm_, int32_t wk_, int32_t cluster_, int32_t blocks_>
struct DecodeShape {
  static constexpr int32_t panels = panels_, tiles_n = tiles_n_, wm = wm_, wk = wk_, cluster = cluster_;
  static constexpr int32_t blocks_per_sm = blocks_;  // registers are limited so that as many fit
  static constexpr int32_t warps = wm * wk, threads = warps * 32;
  static constexpr int32_t rows = wm * panels * kPanelRows, tokens = tiles_n * 8;
  static_assert(wk * cluster == kSegments && warps == 8);
};

template <int32_t T, class S>
struct DecodeLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t unit = f.quants + f.high + f.scales + f.header;
  static constexpr int32_t warp_stage = S::panels * unit, token_stage = S::tokens * kTokenRowBytes;
  static constexpr int32_t stage = S::warps * warp_stage + S::wk * token_stage;
  static constexpr int32_t exchange = Format<T>::superblock && Format<T>::has_min ? S::warps * 256 : 0;
  static constexpr int32_t join_stride = S::rows + 4;  // floats; a token's column
  // Two buffers: of every segment in a block of its own, of the joined pair in a cluster.
  static constexpr int32_t join = (S::cluster > 1 ? 1 : S::wk) * S::tokens * join_stride * 4;
  static constexpr int32_t budget = 226 * 1024 / S::blocks_per_sm - 1024;
  static constexpr int32_t stages_that_fit = (budget - exchange - 2 * join) / stage;
  static constexpr int32_t stages = stages_that_fit > 6 ? 6 : stages_that_fit;
  static constexpr int32_t bytes = stages * stage + exchange + 2 * join;
  static_assert(stages >= 2, "the ring does not fit");
};

template <int32_t T, class A, class S>
struct DecodeBlock {
  using Layout = DecodeLayout<T, S>;
  using Split = Terms<T, A>;
  using E = typename Split::Element;
  static constexpr WeightFormat f = Format<T>::f;

  const DecodeParams& p;
  uint32_t shared;  // the ring's address
  float* joins;
  int32_t warp, lane, wm, wk, rank;
  int32_t unit_begin, unit_end;  // of this warp's segment
  uint64_t policy;

  // What the ring is filled with next.
  int32_t next_item, next_unit;
  const uint8_t* next_panel[S::panels];
  const uint8_t* next_x;

  __device__ __forceinline__ uint32_t weights_at(int32_t slot) const {
    return shared + slot * Layout::stage + warp * Layout::warp_stage;
  }
  __device__ __forceinline__ uint32_t tokens_at(int32_t slot) const {
    return shared + slot * Layout::stage + S::warps * Layout::warp_stage + wk * Layout::token_stage;
  }

  // The target of a tile, and the tile within it.
  __device__ __forceinline__ const DecodeTarget& target_of(int32_t tile, int32_t& within) const {
    int32_t i = 0;
    while (i + 1 < p.count && tile >= p.targets[i + 1].first_tile) ++i;
    within = tile - p.targets[i].first_tile;
    return p.targets[i];
  }

  // Finds the panels of next_item. Panels past the last are read as the last; their sums go nowhere.
  __device__ __forceinline__ void aim() {
    if (next_item >= p.items) return;
    const int32_t tile = next_item / p.token_tiles;
    next_x = static_cast<const uint8_t*>(p.x) + static_cast<int64_t>(next_item % p.token_tiles) * S::tokens * p.x_stride * 2;
    const int64_t panel_bytes = static_cast<int64_t>(p.groups) * Format<T>::group_bytes;
    if (p.pair) {
      const int32_t panel = min(tile * S::wm + wm, p.targets[0].panels - 1);
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) next_panel[r] = p.targets[r & 1].data + panel * panel_bytes;
      return;
    }
    int32_t within;
    const DecodeTarget& target = target_of(tile, within);
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      next_panel[r] = target.data + min((within * S::wm + wm) * S::panels + r, target.panels - 1) * panel_bytes;
    }
  }

  __device__ __forceinline__ void fill_weights(int32_t slot) const {
    if (next_item >= p.items) return;
    const uint32_t to = weights_at(slot) + lane * 16;
    const int32_t group = next_unit / f.units, u = next_unit % f.units;
    const bool first = u == 0 || next_unit == unit_begin;
    const int32_t at = lane * 16;
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      const uint8_t* from = next_panel[r] + static_cast<int64_t>(group) * Format<T>::group_bytes;
      const uint8_t* quants = from + Format<T>::quants_at(u) + at;
#pragma unroll
      for (int32_t c = 0; c < f.quants / 512; ++c) copy16(to + r * Layout::unit + c * 512, quants + c * 512, policy);
      if constexpr (Layout::unit > f.quants) {
        const uint8_t* rest = from + Format<T>::header_plane + (at - f.high - f.scales);
        bool has = at < f.high + f.scales + f.header && first;
        if (at < f.high) {
          rest = from + Format<T>::high_at(u) + at;
          has = true;
        } else if (at < f.high + f.scales) {
          rest = from + Format<T>::scales_at(u) + (at - f.high);
          has = true;
        }
        if (has) copy16(to + r * Layout::unit + f.quants, rest, policy);
      }
    }
  }

  // The tokens of the unit, by the wm warps of the segment; rows beyond the last token stay as they are.
  __device__ __forceinline__ void fill_tokens(int32_t slot) const {
    if (next_item >= p.items) return;
    const uint32_t to = tokens_at(slot);
    const int32_t rows = p.tokens - next_item % p.token_tiles * S::tokens;
    const int32_t bytes_left = (p.cols - next_unit * kUnitCols) * 2;
#pragma unroll
    for (int32_t i = wm * 32 + lane; i < S::tokens * 8; i += S::wm * 32) {
      const int32_t row = i >> 3, at = (i & 7) * 16;
      if (row >= rows) continue;
      const uint8_t* from = next_x + static_cast<int64_t>(row) * p.x_stride * 2 + next_unit * (kUnitCols * 2) + at;
      const int32_t bytes = min(max(bytes_left - at, 0), 16);
      copy16_or_zero(to + row * kTokenRowBytes + at, bytes > 0 ? from : next_x, static_cast<uint32_t>(bytes));
    }
  }

  __device__ __forceinline__ void advance() {
    if (next_item >= p.items) return;
    if (++next_unit < unit_end) return;
    next_unit = unit_begin;
    next_item += p.item_stride;
    aim();
  }

  __device__ __forceinline__ void segment_barrier() const {
    if constexpr (S::wm == 1) __syncwarp();
    else named_barrier(1 + wk, S::wm * 32);
  }

  __device__ __forceinline__ void multiply(float (&acc)[S::panels][S::tiles_n][4], UnitScales<T> (&scales)[S::panels],
                                           int32_t slot, int32_t unit) const {
    const uint32_t weights = weights_at(slot), tokens = tokens_at(slot);
    UnitQuants<T, E, Split::weights> quants[S::panels];
    const bool first = unit % f.units == 0 || unit == unit_begin;
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      const uint32_t at = weights + r * Layout::unit;
      quants[r].begin(at, lane);
      if (f.header > 0 && first) scales[r].begin_group(at, lane);
      scales[r].begin_unit(at, unit % f.units, lane, shared + Layout::stages * Layout::stage + warp * 256);
    }
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      uint32_t b[S::tiles_n][4];
      float sums[Format<T>::has_min ? S::tiles_n : 1][4];
#pragma unroll
      for (int32_t n = 0; n < S::tiles_n; ++n) {
        load_matrices(b[n], tokens + (n * 8 + (lane & 7)) * kTokenRowBytes + half * 64 + (lane >> 3) * 16);
        if constexpr (Format<T>::has_min) {
          constexpr uint32_t one = std::is_same_v<E, __half> ? 0x3c003c00u : 0x3f803f80u;
          constexpr uint32_t ones[4] = {one, one, one, one};
          sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
          mma16816<E>(sums[n], ones, b[n][0], b[n][1]);
          mma16816<E>(sums[n], ones, b[n][2], b[n][3]);
        }
      }
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) {
        uint32_t a[2][Split::weights][4];
        quants[r].step(half * 2, a[0]);
        quants[r].step(half * 2 + 1, a[1]);
#pragma unroll
        for (int32_t n = 0; n < S::tiles_n; ++n) {
          if constexpr (Format<T>::is_float) {
            product(acc[r][n], a[0], b[n][0], b[n][1]);
            product(acc[r][n], a[1], b[n][2], b[n][3]);
          } else if constexpr (T == kQ6_K) {
#pragma unroll
            for (int32_t s = 0; s < 2; ++s) {
              float c[4] = {0, 0, 0, 0};
              mma16816<E>(c, a[s][0], b[n][s * 2], b[n][s * 2 + 1]);
              add_scaled(acc[r][n], c, scales[r].scale[0][half * 2 + s], scales[r].scale[1][half * 2 + s]);
            }
          } else {
            float c[4] = {0, 0, 0, 0};
            mma16816<E>(c, a[0][0], b[n][0], b[n][1]);
            mma16816<E>(c, a[1][0], b[n][2], b[n][3]);
            add_scaled(acc[r][n], c, scales[r].scale[0][half], scales[r].scale[1][half]);
            if constexpr (Format<T>::has_min) add_scaled(acc[r][n], sums[n], scales[r].min[0][half], scales[r].min[1][half]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ static void add_scaled(float (&acc)[4], const float (&c)[4], float row_g, float row_g8) {
    acc[0] = fmaf(row_g, c[0], acc[0]);
    acc[1] = fmaf(row_g, c[1], acc[1]);
    acc[2] = fmaf(row_g8, c[2], acc[2]);
    acc[3] = fmaf(row_g8, c[3], acc[3]);
  }

  __device__ __forceinline__ static void product(float (&acc)[4], const uint32_t (&a)[Split::weights][4], uint32_t b0,
                                                 uint32_t b1) {
    if constexpr (Split::inputs == 1) {
#pragma unroll
      for (int32_t w = 0; w < Split::weights; ++w) mma16816<E>(acc, a[w], b0, b1);
    } else {
      uint32_t head[2], tail[2];
      split_half2(b0, head[0], tail[0]);
      split_half2(b1, head[1], tail[1]);
#pragma unroll
      for (int32_t w = 0; w < Split::weights; ++w) mma16816<E>(acc, a[w], head[0], head[1]);
#pragma unroll
      for (int32_t w = 0; w < Split::weights; ++w) mma16816<E>(acc, a[w], tail[0], tail[1]);
    }
  }

  // The place of this lane's first sum of panel r and token tile n in a join buffer: column = token, then row.
  __device__ __forceinline__ float* join_at(float* buffer, int32_t r, int32_t n) const {
    return buffer + (n * 8 + (lane & 3) * 2) * Layout::join_stride + (wm * S::panels + r) * kPanelRows + (lane >> 2);
  }

  // Joins the segments of a tile and hands every element to its end. buffer: one of the two, alternating.
  __device__ __forceinline__ void finish(const float (&acc)[S::panels][S::tiles_n][4], int32_t item, float* buffer) const {
    constexpr int32_t stride = Layout::join_stride, plane = S::tokens * stride;
    const int32_t columns = min(p.tokens - item % p.token_tiles * S::tokens, S::tokens);
    if constexpr (S::cluster == 1) {
      store(acc, buffer + wk * plane);
      __syncthreads();
      each_row(item, 0, S::rows, columns, [&](int32_t at) {
        float v[kSegments];
#pragma unroll
        for (int32_t s = 0; s < kSegments; ++s) v[s] = buffer[s * plane + at];
        return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
      });
    } else {
      static_assert(S::wk == 2 && S::cluster == 4);
      if (wk == 1) store(acc, buffer);
      __syncthreads();
      if (wk == 0) {
#pragma unroll
        for (int32_t r = 0; r < S::panels; ++r) {
#pragma unroll
          for (int32_t n = 0; n < S::tiles_n; ++n) {
            float* at = join_at(buffer, r, n);
            at[0] = acc[r][n][0] + at[0];
            at[stride] = acc[r][n][1] + at[stride];
            at[8] = acc[r][n][2] + at[8];
            at[stride + 8] = acc[r][n][3] + at[stride + 8];
          }
        }
      }
      cluster_sync();
      const uint32_t base = shared_address(buffer);
      // A pair's rows lie 16 apart: each block takes whole pairs of panels.
      each_row(item, rank * (S::rows / S::cluster), S::rows / S::cluster, columns, [&](int32_t at) {
        float v[4];
#pragma unroll
        for (uint32_t s = 0; s < 4; ++s) v[s] = load_remote(base + at * 4, s);
        return (v[0] + v[1]) + (v[2] + v[3]);
      });
    }
  }

  __device__ __forceinline__ void store(const float (&acc)[S::panels][S::tiles_n][4], float* buffer) const {
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
#pragma unroll
      for (int32_t n = 0; n < S::tiles_n; ++n) {
        float* at = join_at(buffer, r, n);
        at[0] = acc[r][n][0];
        at[Layout::join_stride] = acc[r][n][1];
        at[8] = acc[r][n][2];
        at[Layout::join_stride + 8] = acc[r][n][3];
      }
    }
  }

  // Calls sum(place in the join buffer) for rows [row0, row0 + n) of the tile and ends them. In a pair, row r of the gate
  // panel at 32i + r goes with row r of the up panel 16 further on.
  template <class F>
  __device__ __forceinline__ void each_row(int32_t item, int32_t row0, int32_t n, int32_t columns, F&& sum) const {
    const int32_t tile = item / p.token_tiles, token0 = item % p.token_tiles * S::tokens;
    if (p.pair) {
      const int32_t half = n / 2;
      for (int32_t i = threadIdx.x; i < half * columns; i += S::threads) {
        const int32_t r = i % half, column = i / half, local = row0 + r / kPanelRows * 2 * kPanelRows + r % kPanelRows;
        const int32_t row = (tile * S::wm + local / (2 * kPanelRows)) * kPanelRows + r % kPanelRows;
        if (row >= p.targets[0].rows) continue;
        const int32_t at = column * Layout::join_stride + local;
        end_pair(row, token0 + column, sum(at), sum(at + kPanelRows));
      }
      return;
    }
    int32_t within;
    const DecodeTarget& target = target_of(tile, within);
    for (int32_t i = threadIdx.x; i < n * columns; i += S::threads) {
      const int32_t local = row0 + i % n, column = i / n, row = within * S::rows + local;
      if (row >= target.rows) continue;
      end(target, row, token0 + column, sum(column * Layout::join_stride + local));
    }
  }

  __device__ __forceinline__ void end(const DecodeTarget& target, int32_t row, int32_t token, float y) const {
    if (target.bias != nullptr) y += target.bias[row];
    const int64_t at = token * target.out_stride + row;
    switch (p.end) {
      case ProductEnd::kStoreF32: static_cast<float*>(target.out)[at] = y; break;
      case ProductEnd::kAddF32: static_cast<float*>(target.out)[at] += y; break;
      case ProductEnd::kStoreAct: static_cast<A*>(target.out)[at] = A(y); break;
      case ProductEnd::kSwiGLU: break;
    }
  }

  __device__ __forceinline__ void end_pair(int32_t row, int32_t token, float gate, float up) const {
    if (p.targets[0].bias != nullptr) gate += p.targets[0].bias[row];
    if (p.targets[1].bias != nullptr) up += p.targets[1].bias[row];
    static_cast<A*>(p.targets[0].out)[token * p.targets[0].out_stride + row] = A(gate / (1.0f + expf(-gate)) * up);
  }

  __device__ __forceinline__ void run() {
    const int32_t segment = rank * S::wk + wk;
    unit_begin = p.units * segment / kSegments;
    unit_end = p.units * (segment + 1) / kSegments;
    const int32_t first_item = static_cast<int32_t>(blockIdx.x) / S::cluster;
    next_item = unit_begin < unit_end ? first_item : p.items;
    next_unit = unit_begin;
    aim();

    // Weights first, while the kernel before may still be writing the tokens.
    {
      DecodeBlock ahead = *this;
#pragma unroll
      for (int32_t s = 0; s < Layout::stages - 1; ++s) {
        ahead.fill_weights(s);
        ahead.advance();
      }
    }
    grid_wait();
    grid_trigger();
#pragma unroll
    for (int32_t s = 0; s < Layout::stages - 1; ++s) {
      fill_tokens(s);
      advance();
      copies_commit();
    }

    int32_t slot = 0, buffer = 0;
    for (int32_t item = first_item; item < p.items; item += p.item_stride) {
      float acc[S::panels][S::tiles_n][4] = {};
      UnitScales<T> scales[S::panels];
      for (int32_t unit = unit_begin; unit < unit_end; ++unit) {
        copies_wait<Layout::stages - 2>();
        segment_barrier();
        const int32_t free_slot = slot == 0 ? Layout::stages - 1 : slot - 1;
        fill_weights(free_slot);
        fill_tokens(free_slot);
        advance();
        copies_commit();
        multiply(acc, scales, slot, unit);
        slot = slot + 1 == Layout::stages ? 0 : slot + 1;
      }
      finish(acc, item, joins + buffer * (Layout::join / 4));
      buffer ^= 1;
    }
    if constexpr (S::cluster > 1) cluster_sync();  // others may still read this block's sums
  }
};

template <int32_t T, class A, class S>
__global__ void __launch_bounds__(S::threads, S::blocks_per_sm) decode_product(const __grid_constant__ DecodeParams p) {
  using Layout = DecodeLayout<T, S>;
  extern __shared__ __align__(128) uint8_t ring[];
  DecodeBlock<T, A, S> block{p};
  block.shared = shared_address(ring);
  block.joins = reinterpret_cast<float*>(ring + Layout::stages * Layout::stage + Layout::exchange);
  block.warp = static_cast<int32_t>(threadIdx.x) / 32;
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  block.wm = block.warp % S::wm;
  block.wk = block.warp / S::wm;
  block.rank = S::cluster > 1 ? static_cast<int32_t>(cluster_rank()) : 0;
  block.policy = p.token_tiles > 1 ? evict_normal_policy() : evict_first_policy();
  block.run();
}

template <int32_t T, class A, class S>
DecodeKernel decode_kernel_of() {
  return {reinterpret_cast<const void*>(&decode_product<T, A, S>), DecodeLayout<T, S>::bytes, S::threads, S::panels, S::wm,
          S::tokens, S::cluster};
}

template <int32_t T, class A>
DecodeKernel decode_kernel_for(DecodeForm form) {
  switch (form) {
    case DecodeForm::kSingle8: return decode_kernel_of<T, A, DecodeShape<1, 1, 1, 8, 1, T == kF32 ? 1 : 2>>();
    case DecodeForm::kPair8: return decode_kernel_of<T, A, DecodeShape<2, 1, 1, 8, 1, T == kF32 ? 1 : 2>>();
    case DecodeForm::kWide16: return decode_kernel_of<T, A, DecodeShape<2, 2, 4, 2, 4, 1>>();
    case DecodeForm::kWide32: return decode_kernel_of<T, A, DecodeShape<2, 4, 4, 2, 4, 1>>();
    case DecodeForm::kWide64:
      if constexpr (T == kF32) return decode_kernel_of<T, A, DecodeShape<2, 4, 4, 2, 4, 1>>();
      else return decode_kernel_of<T, A, DecodeShape<2, 8, 4, 2, 4, 1>>();
  }
  return {};
}

}  // namespace mr::cuda
