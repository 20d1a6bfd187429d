// m128_wgmma_quant_pipeline: the shared memory of the m128 blocks for quantised weights, and the producers that fill
// it.
//
// Both consumer warpgroups read one pipeline of weights and one of tokens, each at its own pace. A stage of weights has
// the packed planes of a unit of 64 inputs, each of eight panels; the headers of groups are stored apart in two
// alternating slots. A stage of tokens has their inputs of one unit, as swizzled rows of 128 bytes. If blocks fold, one
// buffer holds the tokens' input sums of a group (input_sums.h), as swizzled rows of 64 bytes.
#pragma once

#include "kernels/gemm/folded.cuh"
#include "kernels/gemm/input_sums.h"
#include "kernels/gemm/m128_wgmma_reduction.cuh"
#include "kernels/gemm/prefill_wgmma.h"
#include "kernels/gemm/targets.cuh"
#include "kernels/gemm/wgmma.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

constexpr int32_t kM128QuantSpareWarps = 2;  // warps after the two producers that run epilogues

template <int32_t T>
struct M128QuantLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr bool folds = kFolds<T>;
  static constexpr int32_t tokens = kM128Tokens, panels = kM128Panels;
  __host__ __device__ static constexpr int32_t plane_bytes(int32_t i) {
    constexpr WeightFormat format = f;
    return prefill_plane(format, i);
  }
  __host__ __device__ static constexpr int32_t plane_at(int32_t i) {  // of planes 0..2, in a stage of weights
    return panels * ((i > 0 ? plane_bytes(0) : 0) + (i > 1 ? plane_bytes(1) : 0));
  }
  static constexpr int32_t weights = panels * (f.quants + f.high + f.scales), header = panels * f.header, headers = 2;
  static constexpr int32_t rows = tokens * 128, row_stages = 4;
  static constexpr int32_t input_sums = folds ? tokens * kInputSumBytes : 0;
  // The sums of tiles, and the part of a slice that a warpgroup's threads save until the next one is finished.
  static constexpr int32_t reduction = M128ReductionLayout::bytes, saved = 2 * 128 * tokens / 2 * 4;
  static constexpr int32_t barriers = 256;
  static constexpr int32_t room = 227 * 1024 - row_stages * rows - input_sums - headers * header - reduction - saved - barriers;
  static constexpr int32_t weight_stages = room / weights > 6 ? 6 : room / weights;
  static constexpr int32_t bytes =
      row_stages * rows + input_sums + weight_stages * weights + headers * header + reduction + saved + barriers;
  static constexpr int32_t count = 2 * (row_stages + weight_stages + 1) + 2;  // barriers
  static_assert(weight_stages >= 3 && count * 8 <= barriers);
  // A header is requested with its group's first unit. By then the unit that is weight_stages before it has been read,
  // and so has the header that was in the same slot.
  static_assert(weight_stages <= headers * 4);
  // TMA boxes must begin at multiples of 128 bytes.
  static_assert(plane_bytes(0) % 32 == 0 && plane_bytes(1) % 32 == 0 && plane_bytes(2) % 32 == 0 && plane_bytes(3) % 32 == 0);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, M128Share share>
struct M128QuantPipeline {
  using Layout = M128QuantLayout<T>;
  using Tiles = M128Tiles<share>;
  static constexpr WeightFormat f = Format<T>::f;

  const Tiles& tiles;
  const M128Maps& maps;
  // Shared memory addresses: the stages, and their barriers.
  uint32_t rows, input_sums, weights, headers, saved;
  uint32_t full, empty, full_weights, empty_weights, full_sums, empty_sums;

  using StageCursor = PipelineState<Layout::row_stages>;
  using WeightCursor = PipelineState<Layout::weight_stages>;

  __device__ __forceinline__ void init_barriers() const {
    for (int32_t i = 0; i < Layout::row_stages; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, 8 * Tiles::readers);  // the consumer warps
    }
    for (int32_t i = 0; i < Layout::weight_stages; ++i) {
      barrier_init(full_weights + i * 8, 1);
      barrier_init(empty_weights + i * 8, 8);
    }
    barrier_init(full_sums, 1);
    barrier_init(empty_sums, 8 * Tiles::readers);
  }

  __device__ __forceinline__ void produce() const {
    if (tiles.warp == 8) produce_weights();
    else produce_tokens();
  }

  // Runs in one thread, which requests all weights. Weights are constants, so it waits for no kernel. Panels past the
  // last become zeros.
  __device__ __forceinline__ void produce_weights() const {
    const WgmmaParams& p = tiles.p;
    const int32_t begin = tiles.slice_group(0), end = tiles.slice_group(Tiles::slices);
    WeightCursor cursor;
    uint32_t header_slot = 0;  // of the two
    for (int32_t item = tiles.first_item(); item < p.items; item += p.item_stride) {
      const int32_t tile = min(tiles.tile_of(item), p.tiles - 1), i = p.pair ? 0 : target_index(p, tile);
      const int32_t first = p.pair ? tile * 4 : (tile - p.targets[i].first_tile) * kM128Panels;
#pragma unroll 1
      for (int32_t group = begin; group < end; ++group, header_slot ^= 1) {
#pragma unroll
        for (int32_t u = 0; u < f.units; ++u, cursor.next()) {
          const uint32_t done = full_weights + cursor.stage * 8, to = weights + cursor.stage * Layout::weights;
          barrier_wait(empty_weights + cursor.stage * 8, cursor.phase ^ 1);
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
              tensor_stream(to + Layout::plane_at(plane) + half * 4 * Layout::plane_bytes(plane), planes + plane,
                            static_cast<int32_t>((from + offset) / 8), panel, done);
            }
            if (u == 0 && f.header > 0) {
              const uint32_t place = headers + header_slot * Layout::header + half * 4 * f.header;
              tensor_stream(place, planes + 3, static_cast<int32_t>((from + Format<T>::header_plane) / 8), panel, done);
            }
          }
        }
      }
    }
  }

  // Runs in one thread, which requests all tokens and input sums. If the kernel ahead is the one that makes the sums alone
  // (launch_m128_wgmma), the kernel that wrote the tokens has ended when this kernel begins (launch.h, 4), so only the sums
  // must be waited for.
  __device__ __forceinline__ void produce_tokens() const {
    const WgmmaParams& p = tiles.p;
    const int32_t begin = tiles.slice_group(0), end = tiles.slice_group(Tiles::slices);
    StageCursor cursor;
    uint32_t sums_phase = 0;
    bool waits = Layout::folds && p.tokens_early != 0;
    map_prefetch(&maps.tokens);
    if (Layout::folds) map_prefetch(&maps.input_sums);
    if (!waits) grid_wait();
    for (int32_t item = tiles.first_item(); item < p.items; item += p.item_stride) {
      const int32_t token0 = tiles.token_of(item);
#pragma unroll 1
      for (int32_t group = begin; group < end; ++group) {
#pragma unroll 1
        for (int32_t u = 0; u < f.units; ++u, cursor.next()) {
          const uint32_t done = full + cursor.stage * 8;
          barrier_wait(empty + cursor.stage * 8, cursor.phase ^ 1);
          barrier_expect(done, Layout::rows);
          const int32_t column = (group * f.units + u) * kUnitCols;
          tiles.copy_tokens(rows + cursor.stage * Layout::rows, &maps.tokens, column, token0, Layout::rows, done);
        }
        if constexpr (Layout::folds) {  // after the group's units, because they are needed last
          if (waits) grid_wait();
          waits = false;
          barrier_wait(empty_sums, sums_phase ^ 1);
          barrier_expect(full_sums, Layout::input_sums);
          tiles.copy_tokens(input_sums, &maps.input_sums, group * (kInputSumBytes / 2), token0, Layout::input_sums, full_sums);
          sums_phase ^= 1;
        }
      }
    }
  }

  // Addresses of this warp's plane in a stage, and of its panel's header.
  __device__ __forceinline__ uint32_t plane(int32_t stage, int32_t i) const {
    return weights + stage * Layout::weights + Layout::plane_at(i) + tiles.warp * Layout::plane_bytes(i);
  }
  __device__ __forceinline__ uint32_t header_at(uint32_t header_slot) const {
    return headers + header_slot * Layout::header + tiles.warp * f.header;
  }

  __device__ __forceinline__ void release(uint32_t barrier) const { warp_release(barrier, tiles.lane); }
};

#endif

}  // namespace mr::cuda
