// skinny_wgmma_folded: how a warpgroup multiplies blocks of 256 inputs whose scales fold; see folded.cuh.
#pragma once

#include "kernels/gemm/skinny_wgmma_pipeline.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A, int32_t tokens, bool with_sums>
struct SkinnyFolded {
  using Pipeline = SkinnyPipeline<T, A, tokens, with_sums>;
  using Layout = typename Pipeline::Layout;
  using InputSumsCursor = typename Pipeline::InputSumsCursor;
  using Sums = float[tokens / 2];

  const Pipeline& pipeline;
  const int32_t warp = pipeline.warp, lane = pipeline.lane;

  // Groups of eight tokens whose sums this warp makes.
  static constexpr int32_t own_eights = with_sums ? 0 : (tokens + 31) / 32;

  // Cursors is a warpgroup's position in its pipelines.
  struct Cursors {
    typename Pipeline::StageCursor rows;
    typename Pipeline::WeightCursor weights;
    InputSumsCursor input_sums;
  };

  // Block is the state from a folded block's first unit to its last.
  struct Block {
    FoldedHeader header;
    Sums products, min_products;
    uint32_t a[2][4][4];
    InputSums inputs[with_sums ? 1 : own_eights];
  };

  // Issues the products of unit u of a folded block. Waits for the unit before, and releases that unit's tokens.
  template <int32_t u>
  __device__ __forceinline__ void issue_folded(Block& block, Cursors& cursor, int32_t& before) const {
    const uint32_t panel = pipeline.panel_at(cursor.weights.stage);
    if constexpr (u == 0) {
      barrier_wait(pipeline.full_weights + cursor.weights.stage * 8, cursor.weights.phase);
      block.header.load(panel + Format<T>::header_plane, lane);
      if constexpr (!with_sums)
        for (InputSums& inputs : block.inputs) inputs.clear();
    }
    UnitQuants<T> quants;
    quants.begin(panel + Format<T>::quants_at(u), panel + Format<T>::high_at(u), lane);
    uint32_t (&a)[4][4] = block.a[u % 2];
    folded_unit<T, u>(block.header, quants, false, a);
    pipeline.await(cursor.rows);
    const int32_t stage = cursor.rows.stage;
    wgmma_fence();
    wgmma_m64<A, u != 0>(block.products, a[0], pipeline.rows_at(stage));
#pragma unroll
    for (int32_t step = 1; step < 4; ++step) wgmma_m64<A>(block.products, a[step], pipeline.rows_at(stage) + step * 2);
    wgmma_commit();
    if constexpr (u == 3) {
      pipeline.release(pipeline.empty_weights, cursor.weights.stage);  // after products of the last loads (barrier_arrive)
      cursor.weights.next();
    }
    if constexpr (!with_sums) add_inputs<u>(block, pipeline.rows + stage * Layout::rows, pipeline.sums_at(cursor.input_sums));
    if constexpr (u > 0) {
      wgmma_wait<1>();
      pipeline.release_unit(before);
    }
    before = stage;
    cursor.rows.next();
  }

  // Adds a unit's tokens to this warp's input sums; after the last unit, stores the sums' terms.
  template <int32_t u>
  __device__ __forceinline__ void add_inputs(Block& block, uint32_t tile, uint32_t input_sums) const {
#pragma unroll
    for (int32_t i = 0; i < own_eights; ++i) {
      const int32_t eight = warp % 4 + i * 4;
      if (eight * 8 >= tokens) continue;
      const uint32_t row = tile + (eight * 8 + lane % 8) * 128;
      uint32_t x[4];
      load_matrices(x, row + (lane / 8 ^ (lane % 8)) * 16);
      block.inputs[i].add(x, u * 2, lane);
      load_matrices(x, row + ((lane / 8 + 4) ^ (lane % 8)) * 16);
      block.inputs[i].add(x, u * 2 + 1, lane);
      if constexpr (u == 3) store_input_sums(block.inputs[i], input_sums + eight * 512);
    }
  }

  // Stores eight rows of input sums: three 16-byte pieces are the bf16 terms, the fourth stays zero.
  __device__ __forceinline__ void store_input_sums(const InputSums& inputs, uint32_t to) const {
    uint32_t input_sums[3];
    inputs.split(input_sums);
    const uint32_t row = to + lane / 4 * 64 + lane % 4 * 4;
#pragma unroll
    for (int32_t i = 0; i < 3; ++i) store_shared4(row + (i ^ (lane / 8)) * 16, input_sums[i]);
  }

  // Waits for the input sums of the current group, which are in this warpgroup's buffer.
  __device__ __forceinline__ void await_input_sums(const InputSumsCursor& cursor) const {
    if constexpr (with_sums) {
      barrier_wait(pipeline.full_sums + cursor.stage * 8, cursor.phase);
    } else {
      shared_fence();
      named_barrier(1 + pipeline.group, 128);
    }
  }

  // Adds the products of a slice's `units` units.
  __device__ __forceinline__ void multiply(Sums& acc, Cursors& cursor, int32_t units) const {
#pragma unroll 1
    for (int32_t unit = 0; unit < units; unit += 4) {
      int32_t before = 0;
      Block block;
      issue_folded<0>(block, cursor, before);
      issue_folded<1>(block, cursor, before);
      issue_folded<2>(block, cursor, before);
      issue_folded<3>(block, cursor, before);
      const uint32_t mins[4] = {block.header.mins[0], block.header.mins[1], block.header.mins[0], block.header.mins[1]};
      const uint64_t input_sums = swizzled_rows64(pipeline.sums_at(cursor.input_sums));
      await_input_sums(cursor.input_sums);
      wgmma_fence();
      wgmma_m64<__nv_bfloat16, false>(block.min_products, mins, input_sums);
      wgmma_m64<__nv_bfloat16>(block.min_products, mins, input_sums + 2);
      wgmma_commit();
      wgmma_wait<1>();
      pipeline.release_unit(before);
      wgmma_wait<0>();
      if constexpr (with_sums) pipeline.release(pipeline.empty_sums, cursor.input_sums.stage);
      cursor.input_sums.next();
#pragma unroll
      for (int32_t n = 0; n < tokens / 2; n += 4) block.header.add(acc + n, block.products + n, block.min_products + n);
    }
  }
};

#endif

}  // namespace mr::cuda
