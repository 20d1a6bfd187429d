// tall_quants_rings: the shared memory of the tall products' blocks for quantised weights, and the threads that fill its rings.
//
// Both warpgroups that multiply read one ring of weights and one of tokens, and go through them at their own pace. A stage of weights
// is the packed planes of a unit of 64 inputs, each of eight panels; the headers of groups lie apart, those of two by turns. A stage of
// tokens is their inputs of one unit, as rows of 128 bytes, swizzled. Where blocks fold, one tile holds the terms of the tokens' sums of
// a group (terms.h), as swizzled rows of 64 bytes.
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/folded.cuh"
#include "kernels/linear/prefill.h"
#include "kernels/linear/tall_join.cuh"
#include "kernels/linear/targets.cuh"
#include "kernels/linear/terms.h"
#include "kernels/linear/wgmma.cuh"

#if MR_HOPPER
#include <cuda.h>
#endif

namespace mr::cuda {

constexpr int32_t kTallQuantsSpare = 2;  // warps behind the two that ask for data

template <int32_t T>
struct TallQuantsLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr bool folds = kFolds<T, __half>;
  static constexpr int32_t tokens = kTallTokens, panels = kTallPanels;
  __host__ __device__ static constexpr int32_t plane_bytes(int32_t i) {
    constexpr WeightFormat format = f;
    return prefill_plane(format, i);
  }
  __host__ __device__ static constexpr int32_t plane_at(int32_t i) {  // of planes 0..2, in a stage of weights
    return panels * ((i > 0 ? plane_bytes(0) : 0) + (i > 1 ? plane_bytes(1) : 0));
  }
  static constexpr int32_t weights = panels * (f.quants + f.high + f.scales), header = panels * f.header, headers = 2;
  static constexpr int32_t rows = tokens * 128, row_stages = 4;
  static constexpr int32_t terms = folds ? tokens * kTermBytes : 0;
  // The sums of tiles, and what a warpgroup's threads have of a segment until the next one is there.
  static constexpr int32_t join = TallJoinLayout<tokens>::bytes, kept = 2 * 128 * tokens / 2 * 4;
  static constexpr int32_t barriers = 256;
  static constexpr int32_t room = 227 * 1024 - row_stages * rows - terms - headers * header - join - kept - barriers;
  static constexpr int32_t weight_stages = room / weights > 6 ? 6 : room / weights;
  static constexpr int32_t bytes = row_stages * rows + terms + weight_stages * weights + headers * header + join + kept + barriers;
  static constexpr int32_t count = 2 * (row_stages + weight_stages + 1) + 2;  // of barriers
  static_assert(weight_stages >= 3 && count * 8 <= barriers);
  // A header is asked for with its group's first unit, when the unit has been read that is before it by as many as there are stages, and so
  // the header that lay in its place.
  static_assert(weight_stages <= headers * 4);
  // Boxes begin at multiples of 128 bytes.
  static_assert(plane_bytes(0) % 32 == 0 && plane_bytes(1) % 32 == 0 && plane_bytes(2) % 32 == 0 && plane_bytes(3) % 32 == 0);
};

#if MR_HOPPER
struct TallQuantsMaps {
  CUtensorMap tokens;                      // boxes of one unit's columns and a tile's tokens
  CUtensorMap terms;                       // boxes of one group's terms and a tile's tokens, where blocks fold
  CUtensorMap weights[3][kPrefillPlanes];  // of each target: boxes of a plane of four panels
};
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T>
struct TallQuantsRings : TallJoin<__half, kTallTokens, kTallQuantsSpare, 2> {
  using Layout = TallQuantsLayout<T>;
  using Join = TallJoin<__half, kTallTokens, kTallQuantsSpare, 2>;
  using Join::first_item, Join::lane, Join::p, Join::rank, Join::warp;
  static constexpr WeightFormat f = Format<T>::f;

  const TallQuantsMaps& maps;
  // Shared memory addresses: the rings, and their stages' barriers.
  uint32_t rows, terms, weights, headers, kept;
  uint32_t full, empty, full_weights, empty_weights, full_terms, empty_terms;

  using Place = RingPlace<Layout::row_stages>;
  using WeightPlace = RingPlace<Layout::weight_stages>;

  // The first group of this block's segment s, 0..4.
  __device__ __forceinline__ int32_t segment_begin(int32_t s) const { return p.groups * (rank * 4 + s) / 8; }

  // One thread asks for all weights. They are constants: it waits for no kernel. Panels past the last are zeros.
  __device__ __forceinline__ void ask_weights() const {
    const int32_t begin = segment_begin(0), end = segment_begin(4);
    WeightPlace at;
    uint32_t turn = 0;  // of the headers' two places
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      const int32_t tile = item / p.token_tiles, i = p.pair ? 0 : target_index(p, tile);
      const int32_t first = p.pair ? tile * 4 : (tile - p.targets[i].first_tile) * kTallPanels;
#pragma unroll 1
      for (int32_t group = begin; group < end; ++group, turn ^= 1) {
#pragma unroll
        for (int32_t u = 0; u < f.units; ++u, at.next()) {
          const uint32_t done = full_weights + at.stage * 8, to = weights + at.stage * Layout::weights;
          barrier_wait(empty_weights + at.stage * 8, at.phase ^ 1);
          barrier_expect(done, Layout::weights + (u == 0 ? Layout::header : 0));
#pragma unroll
          for (int32_t half = 0; half < 2; ++half) {
            const CUtensorMap* const planes = maps.weights[p.pair ? half : i];
            const int32_t panel = p.pair ? first : first + half * 4;
            const int64_t from = int64_t{group} * Format<T>::group_bytes;
#pragma unroll
            for (int32_t plane = 0; plane < 3; ++plane) {
              if (Layout::plane_bytes(plane) == 0) continue;
              const int32_t offset = plane == 0 ? Format<T>::quants_at(u) : plane == 1 ? Format<T>::high_at(u) : Format<T>::scales_at(u);
              tensor_copy(to + Layout::plane_at(plane) + half * 4 * Layout::plane_bytes(plane), planes + plane,
                          static_cast<int32_t>((from + offset) / 8), panel, done);
            }
            if (u == 0 && f.header > 0) {
              const uint32_t place = headers + turn * Layout::header + half * 4 * f.header;
              tensor_copy(place, planes + 3, static_cast<int32_t>((from + Format<T>::header_plane) / 8), panel, done);
            }
          }
        }
      }
    }
  }

  // One thread asks for all tokens and terms. Where blocks fold, the kernel ahead is the one that makes the terms (launch_tall): when this
  // one begins, whatever wrote the tokens has ended (launch.h, 4), and only terms are waited for.
  __device__ __forceinline__ void ask_tokens() const {
    const int32_t begin = segment_begin(0), end = segment_begin(4);
    Place at;
    uint32_t terms_phase = 0;
    bool waits = Layout::folds;
    if (!waits) grid_wait();
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      const int32_t token0 = item % p.token_tiles * Layout::tokens;
#pragma unroll 1
      for (int32_t group = begin; group < end; ++group) {
#pragma unroll 1
        for (int32_t u = 0; u < f.units; ++u, at.next()) {
          const uint32_t done = full + at.stage * 8;
          barrier_wait(empty + at.stage * 8, at.phase ^ 1);
          barrier_expect(done, Layout::rows);
          tensor_copy(rows + at.stage * Layout::rows, &maps.tokens, (group * f.units + u) * kUnitCols, token0, done);
        }
        if constexpr (Layout::folds) {  // behind the group's units: so late they are needed
          if (waits) grid_wait();
          waits = false;
          barrier_wait(empty_terms, terms_phase ^ 1);
          barrier_expect(full_terms, Layout::terms);
          tensor_copy(terms, &maps.terms, group * (kTermBytes / 2), token0, full_terms);
          terms_phase ^= 1;
        }
      }
    }
  }

  // Where this warp's plane lies in a stage, and its panel's header by its group's turn.
  __device__ __forceinline__ uint32_t plane(int32_t stage, int32_t i) const {
    return weights + stage * Layout::weights + Layout::plane_at(i) + warp * Layout::plane_bytes(i);
  }
  __device__ __forceinline__ uint32_t header_at(uint32_t turn) const { return headers + turn * Layout::header + warp * f.header; }

  __device__ __forceinline__ void release(uint32_t barrier) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  }
};

#endif

}  // namespace mr::cuda
