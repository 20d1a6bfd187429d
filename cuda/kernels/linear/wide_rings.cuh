// wide_rings: the shared memory of the wide products' blocks, and the threads that fill its rings.
//
// Each warpgroup has a ring of weights and one of tokens. A stage of weights is the packed bytes of four panels: of a unit of 64
// inputs, or of a group where blocks fold. A stage of tokens is their inputs of one unit, as rows of 128 bytes, swizzled. Where
// blocks fold, two tiles hold the terms of the tokens' sums (terms.h) of a group each, as swizzled rows of 64 bytes.
#pragma once

#include "kernels/linear/folded.cuh"
#include "kernels/linear/prefill.h"
#include "kernels/linear/targets.cuh"
#include "kernels/linear/terms.h"
#include "kernels/linear/wgmma.cuh"
#include "kernels/linear/wide.h"
#include "kernels/linear/wide_join.cuh"

#if MR_HOPPER
#include <cuda.h>
#endif

namespace mr::cuda {

#if MR_HOPPER
struct WideMaps {
  CUtensorMap tokens;  // boxes of one unit's columns and a tile's tokens
  CUtensorMap terms;   // boxes of one group's terms and a tile's tokens, where they are given
};
#endif

// given: whether the terms of tokens' sums come with the tokens; else warps make them.
template <int32_t T, class A, int32_t tokens_, bool given>
struct WideLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t tokens = tokens_, panels = kWidePanels;
  static constexpr bool folds = kFolds<T, A>;
  // A stage of weights is a group where blocks fold, else a unit; one of tokens is a unit.
  static constexpr int32_t stage_units = folds ? f.units : 1;
  static constexpr int32_t panel = stage_units * (f.quants + f.high + f.scales) + f.header;
  static constexpr int32_t weights = (panels * panel + 1023) / 1024 * 1024, rows = tokens * 128;
  static constexpr bool publishes = Format<T>::superblock && Format<T>::has_min;
  // What warps publish, or each warpgroup's two tiles of terms.
  static constexpr int32_t terms = tokens * kTermBytes, exchange = folds ? 4 * terms : publishes ? 8 * 256 : 0;
  static constexpr int32_t blocks = wide_blocks(tokens, folds);
  static constexpr int32_t join = WideJoinLayout<tokens>::tiles * WideJoinLayout<tokens>::bytes;
  static constexpr int32_t barriers = folds ? 1024 : 512;
  // Of a warpgroup's rings. Where a stage of weights is a unit, one place counts for both.
  static constexpr int32_t room = (226 * 1024 / blocks - 1024 - exchange - join - barriers) / 2;
  static constexpr int32_t group_stages = tokens == 64 ? 3 : 4;
  static constexpr int32_t row_stages_that_fit = folds ? (room - group_stages * weights) / rows : room / (weights + rows);
  static constexpr int32_t row_stages = row_stages_that_fit > 12 ? 12 : row_stages_that_fit;
  static constexpr int32_t weight_stages = folds ? group_stages : row_stages;
  static constexpr int32_t ring = weight_stages * weights + row_stages * rows;
  static constexpr int32_t bytes = 2 * ring + exchange + join + barriers + 1024;
  static constexpr int32_t group_barriers = 2 * row_stages + (folds ? 2 * weight_stages : 0) + (given ? 4 : 0);
  static_assert(row_stages >= 2 && (2 * group_barriers + 2) * 8 <= barriers);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A, int32_t tokens, bool given>
struct WideRings {
  using Layout = WideLayout<T, A, tokens, given>;
  static constexpr WeightFormat f = Format<T>::f;

  const PrefillParams& p;
  const WideMaps& maps;
  // Shared memory addresses, of this warp's group: the rings, and their stages' barriers.
  uint32_t ring, rows, full, empty, full_weights, empty_weights, full_terms, empty_terms;
  uint32_t exchange;
  int32_t rank, group, warp, lane;  // group: the warpgroup 0 or 1, or the one a warp fills the ring of

  // Segments are whole groups: the first unit of segment s, 0..8.
  __device__ __forceinline__ int32_t segment_begin(int32_t s) const { return p.groups * s / 8 * f.units; }

  __device__ __forceinline__ int32_t first_item() const { return static_cast<int32_t>(blockIdx.x) / kWideCluster; }

  using Place = RingPlace<Layout::row_stages>;
  using WeightPlace = RingPlace<Layout::weight_stages>;
  using TermsPlace = RingPlace<2>;

  __device__ __forceinline__ int32_t first_segment() const { return (rank * 2 + group) * 2; }

  // Panel 0..3 of an item.
  __device__ __forceinline__ const uint8_t* panel_of(int32_t item, int32_t index) const {
    const int32_t tile = item / p.token_tiles;
    if (p.pair) {
      const DecodeTarget& target = p.targets[index / 2];
      return target.data + min(tile * 2 + index % 2, target.panels - 1) * p.panel_bytes;
    }
    int32_t within;
    const DecodeTarget& target = target_of(p, tile, within);
    return target.data + min(within * 4 + index, target.panels - 1) * p.panel_bytes;
  }

  // One thread asks for all weights of its warpgroup. They are constants: it waits for no kernel.
  __device__ __forceinline__ void ask_weights() const {
    const int32_t begin = segment_begin(first_segment()), end = segment_begin(first_segment() + 2);
    WeightPlace at;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      const uint8_t* from[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) from[i] = panel_of(item, i) + static_cast<int64_t>(begin / f.units) * Format<T>::group_bytes;
#pragma unroll 1
      for (int32_t unit = begin; unit < end; unit += Layout::stage_units, at.next()) {
        const uint32_t done = full_weights + at.stage * 8, to = ring + at.stage * Layout::weights;
        barrier_wait(empty_weights + at.stage * 8, at.phase ^ 1);
        if constexpr (f.units == Layout::stage_units) {
          barrier_expect(done, 4 * Layout::panel);
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            bulk_copy(to + i * Layout::panel, from[i], Layout::panel, done);
            from[i] += Layout::panel;
          }
        } else {
          constexpr int32_t each = f.quants + f.high + f.scales;
          const int32_t u = unit % f.units;
          barrier_expect(done, 4 * (each + (u == 0 ? f.header : 0)));
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            const uint32_t panel = to + i * Layout::panel;
            bulk_copy(panel, from[i] + u * f.quants, f.quants, done);
            if (f.high > 0) bulk_copy(panel + f.quants, from[i] + Format<T>::high_at(u), f.high, done);
            if (f.scales > 0) bulk_copy(panel + f.quants + f.high, from[i] + Format<T>::scales_at(u), f.scales, done);
            if (u == 0) bulk_copy(panel + each, from[i] + Format<T>::header_plane, f.header, done);
            if (u == f.units - 1) from[i] += Format<T>::group_bytes;
          }
        }
      }
    }
  }

  // One thread asks for all tokens of its warpgroup, after the kernel ahead has ended.
  __device__ __forceinline__ void ask_tokens() const {
    const int32_t begin = segment_begin(first_segment()), end = segment_begin(first_segment() + 2);
    Place at;
    TermsPlace terms;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      const int32_t token0 = item % p.token_tiles * tokens;
#pragma unroll 1
      for (int32_t unit = begin; unit < end; ++unit, at.next()) {
        if (given && unit % f.units == 0) {
          const uint32_t done = full_terms + terms.stage * 8;
          barrier_wait(empty_terms + terms.stage * 8, terms.phase ^ 1);
          barrier_expect(done, Layout::terms);
          tensor_copy(terms_at(terms), &maps.terms, unit / f.units * (kTermBytes / 2), token0, done);
          terms.next();
        }
        const uint32_t done = full + at.stage * 8;
        barrier_wait(empty + at.stage * 8, at.phase ^ 1);
        barrier_expect(done, Layout::rows);
        tensor_copy(rows + at.stage * Layout::rows, &maps.tokens, unit * kUnitCols, token0, done);
      }
    }
  }

  __device__ __forceinline__ uint32_t panel_at(int32_t stage) const {
    return ring + stage * Layout::weights + warp % 4 * Layout::panel;
  }
  __device__ __forceinline__ uint32_t terms_at(const TermsPlace& at) const { return exchange + (group * 2 + at.stage) * Layout::terms; }
  __device__ __forceinline__ uint64_t rows_at(const Place& at) const { return swizzled_rows(rows + at.stage * Layout::rows); }
  __device__ __forceinline__ void await(const Place& at) const { barrier_wait(full + at.stage * 8, at.phase); }
  __device__ __forceinline__ void release(uint32_t barriers, int32_t stage) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barriers + stage * 8);
  }
};

#endif

}  // namespace mr::cuda
