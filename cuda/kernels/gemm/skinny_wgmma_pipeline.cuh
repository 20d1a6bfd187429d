// skinny_wgmma_pipeline: the shared memory of the skinny blocks, and the producers that fill it.
//
// Each warpgroup has a pipeline of weights and one of tokens. A stage of weights has the packed bytes of four panels:
// of a unit of 64 inputs, or of a group if blocks fold. A stage of tokens has their inputs of one unit, as swizzled
// rows of 128 bytes. If blocks fold, two buffers hold the input sums (input_sums.h) of a group each, as swizzled rows
// of 64 bytes.
#pragma once

#include "kernels/gemm/folded.cuh"
#include "kernels/gemm/input_sums.h"
#include "kernels/gemm/prefill_wgmma.h"
#include "kernels/gemm/skinny_wgmma.h"
#include "kernels/gemm/skinny_wgmma_reduction.cuh"
#include "kernels/gemm/targets.cuh"
#include "kernels/gemm/wgmma.cuh"

#if MR_HOPPER
#include <cuda.h>
#endif

namespace mr::cuda {

#if MR_HOPPER
struct SkinnyMaps {
  CUtensorMap tokens;  // boxes of one unit's columns and a tile's tokens
  CUtensorMap input_sums;   // boxes of one group's sums and a tile's tokens, if with_sums
};
#endif

// with_sums: whether the input sums are loaded like the tokens; otherwise warps make them.
template <int32_t T, class A, int32_t tokens_, bool with_sums>
struct SkinnyLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t tokens = tokens_, panels = kSkinnyPanels;
  static constexpr bool folds = kFolds<T>;
  // A stage of weights is a group if blocks fold, otherwise a unit; a stage of tokens is a unit.
  static constexpr int32_t stage_units = folds ? f.units : 1;
  static constexpr int32_t panel = stage_units * (f.quants + f.high + f.scales) + f.header;
  static constexpr int32_t weights = (panels * panel + 1023) / 1024 * 1024, rows = tokens * 128;
  static constexpr int32_t input_sums = tokens * kInputSumBytes, exchange = folds ? 4 * input_sums : 0;  // each warpgroup's two buffers
  static constexpr int32_t blocks = skinny_blocks(tokens, folds);
  static constexpr int32_t reduction = SkinnyReductionLayout<tokens>::tiles * SkinnyReductionLayout<tokens>::bytes;
  static constexpr int32_t barriers = folds ? 1024 : 512;
  // Of a warpgroup's pipelines. If a stage of weights is a unit, one cursor serves both.
  static constexpr int32_t room = (226 * 1024 / blocks - 1024 - exchange - reduction - barriers) / 2;
  static constexpr int32_t group_stages = tokens == 64 ? 3 : 4;
  static constexpr int32_t row_stages_that_fit = folds ? (room - group_stages * weights) / rows : room / (weights + rows);
  static constexpr int32_t row_stages = row_stages_that_fit > 12 ? 12 : row_stages_that_fit;
  static constexpr int32_t weight_stages = folds ? group_stages : row_stages;
  static constexpr int32_t stage_memory = weight_stages * weights + row_stages * rows;
  static constexpr int32_t bytes = 2 * stage_memory + exchange + reduction + barriers + 1024;
  static constexpr int32_t group_barriers = 2 * row_stages + (folds ? 2 * weight_stages : 0) + (with_sums ? 4 : 0);
  static_assert(row_stages >= 2 && (2 * group_barriers + 2) * 8 <= barriers);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A, int32_t tokens, bool with_sums>
struct SkinnyPipeline {
  using Layout = SkinnyLayout<T, A, tokens, with_sums>;
  static constexpr WeightFormat f = Format<T>::f;

  const WgmmaParams& p;
  const SkinnyMaps& maps;
  // Shared memory addresses of this warp's group: the stages, and their barriers.
  uint32_t stage_memory, rows, full, empty, full_weights, empty_weights, full_sums, empty_sums;
  uint32_t exchange;
  int32_t rank, group, warp, lane;  // group: warpgroup 0 or 1, or the one whose pipeline a producer fills

  // Returns the first unit of slice s, 0..8. Slices are cut at whole groups.
  __device__ __forceinline__ int32_t slice_begin(int32_t s) const { return p.groups * s / 8 * f.units; }

  __device__ __forceinline__ int32_t first_item() const { return static_cast<int32_t>(blockIdx.x) / kSkinnyCluster; }

  using StageCursor = PipelineState<Layout::row_stages>;
  using WeightCursor = PipelineState<Layout::weight_stages>;
  using InputSumsCursor = PipelineState<2>;

  __device__ __forceinline__ int32_t first_slice() const { return (rank * 2 + group) * 2; }

  // Returns panel 0..3 of an item.
  __device__ __forceinline__ const uint8_t* panel_of(int32_t item, int32_t index) const {
    const int32_t tile = item / p.token_tiles;
    if (p.pair) {
      const KernelTarget& target = p.targets[index / 2];
      return target.data + min(tile * 2 + index % 2, target.panels - 1) * p.panel_bytes;
    }
    int32_t within;
    const KernelTarget& target = target_of(p, tile, within);
    return target.data + min(within * 4 + index, target.panels - 1) * p.panel_bytes;
  }

  // Runs in one thread, which requests all weights of its warpgroup. They are constants, so it waits for no kernel.
  __device__ __forceinline__ void produce_weights() const {
    const int32_t begin = slice_begin(first_slice()), end = slice_begin(first_slice() + 2);
    WeightCursor cursor;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      const uint8_t* from[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) from[i] = panel_of(item, i) + static_cast<int64_t>(begin / f.units) * Format<T>::group_bytes;
#pragma unroll 1
      for (int32_t unit = begin; unit < end; unit += Layout::stage_units, cursor.next()) {
        const uint32_t done = full_weights + cursor.stage * 8, to = stage_memory + cursor.stage * Layout::weights;
        barrier_wait(empty_weights + cursor.stage * 8, cursor.phase ^ 1);
        if constexpr (f.units == Layout::stage_units) {
          barrier_expect(done, 4 * Layout::panel);
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            bulk_stream(to + i * Layout::panel, from[i], Layout::panel, done);
            from[i] += Layout::panel;
          }
        } else {
          constexpr int32_t each = f.quants + f.high + f.scales;
          const int32_t u = unit % f.units;
          barrier_expect(done, 4 * (each + (u == 0 ? f.header : 0)));
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            const uint32_t panel = to + i * Layout::panel;
            bulk_stream(panel, from[i] + u * f.quants, f.quants, done);
            if (f.high > 0) bulk_stream(panel + f.quants, from[i] + Format<T>::high_at(u), f.high, done);
            if (f.scales > 0) bulk_stream(panel + f.quants + f.high, from[i] + Format<T>::scales_at(u), f.scales, done);
            if (u == 0) bulk_stream(panel + each, from[i] + Format<T>::header_plane, f.header, done);
            if (u == f.units - 1) from[i] += Format<T>::group_bytes;
          }
        }
      }
    }
  }

  // Runs in one thread, which requests all tokens of its warpgroup after the kernel ahead has ended.
  __device__ __forceinline__ void produce_tokens() const {
    const int32_t begin = slice_begin(first_slice()), end = slice_begin(first_slice() + 2);
    map_prefetch(&maps.tokens);
    if (with_sums) map_prefetch(&maps.input_sums);
    grid_wait();
    grid_trigger();
    StageCursor cursor;
    InputSumsCursor input_sums;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      const int32_t token0 = item % p.token_tiles * tokens;
#pragma unroll 1
      for (int32_t unit = begin; unit < end; ++unit, cursor.next()) {
        if (with_sums && unit % f.units == 0) {
          const uint32_t done = full_sums + input_sums.stage * 8;
          barrier_wait(empty_sums + input_sums.stage * 8, input_sums.phase ^ 1);
          barrier_expect(done, Layout::input_sums);
          tensor_copy(sums_at(input_sums), &maps.input_sums, unit / f.units * (kInputSumBytes / 2), token0, done);
          input_sums.next();
        }
        const uint32_t done = full + cursor.stage * 8;
        barrier_wait(empty + cursor.stage * 8, cursor.phase ^ 1);
        barrier_expect(done, Layout::rows);
        tensor_copy(rows + cursor.stage * Layout::rows, &maps.tokens, unit * kUnitCols, token0, done);
      }
    }
  }

  __device__ __forceinline__ uint32_t panel_at(int32_t stage) const {
    return stage_memory + stage * Layout::weights + warp % 4 * Layout::panel;
  }
  __device__ __forceinline__ uint32_t sums_at(const InputSumsCursor& cursor) const {
    return exchange + (group * 2 + cursor.stage) * Layout::input_sums;
  }
  __device__ __forceinline__ uint64_t rows_at(int32_t stage) const { return swizzled_rows(rows + stage * Layout::rows); }
  __device__ __forceinline__ void await(const StageCursor& cursor) const { barrier_wait(full + cursor.stage * 8, cursor.phase); }
  __device__ __forceinline__ void release(uint32_t barriers, int32_t stage) const { warp_release(barriers + stage * 8, lane); }
  __device__ __forceinline__ void release_unit(int32_t stage) const { release(empty, stage); }
};

#endif

}  // namespace mr::cuda
