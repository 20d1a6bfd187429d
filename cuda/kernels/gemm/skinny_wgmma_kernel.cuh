// skinny_wgmma_kernel: the decode class by wgmma for few tokens; see gemm.h for the contract.
//
// A cluster of two blocks processes tiles of 64 rows by `tokens` tokens. It is bound by the weights' bytes, so K is
// split over the four consumer warpgroups: each has two of the eight slices and a pipeline of its own, which two
// producer threads fill (skinny_wgmma_pipeline.cuh). Of a pair the first half of the rows is the gate's.
// skinny_wgmma_reduction.cuh adds the warpgroups' sums. With kSkinnyMaxTokens a cluster processes a single tile.
#pragma once

#include "kernels/gemm/fragment.cuh"
#include "kernels/gemm/skinny_wgmma_pipeline.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// SkinnyFolded multiplies blocks of 256 inputs whose scales fold; see folded.cuh.
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

// SkinnyBlock is the consumers of a block.
template <int32_t T, class A, int32_t tokens, bool with_sums>
struct SkinnyBlock {
  using Pipeline = SkinnyPipeline<T, A, tokens, with_sums>;
  using Folded = SkinnyFolded<T, A, tokens, with_sums>;
  using StageCursor = typename Pipeline::StageCursor;
  using Sums = float[tokens / 2];
  static constexpr WeightFormat f = Pipeline::f;

  using Reduction = SkinnyReduction<A, tokens, kSkinnyEndsHeads<tokens, with_sums>>;

  const WgmmaParams& p;
  const Pipeline& pipeline;

  // Makes the fragments of unit u of its group, whose stage is full.
  __device__ __forceinline__ void load(uint32_t (&a)[4][4], GroupHeader<T>& header, uint32_t panel, int32_t u) const {
    if constexpr (Format<T>::is_float) {
#pragma unroll
      for (int32_t step = 0; step < 4; ++step) load_fragment(a[step], panel, step, pipeline.lane);
    } else {
      if (u == 0) header.load(panel + f.quants + f.high + f.scales, pipeline.lane);
      RoundedUnit<T> unit;
      unit.begin(panel, panel + f.quants, panel + f.quants + f.high, header, pipeline.lane);
      unit.take_all(a);
    }
  }

  // Adds the products of a slice's `units` units, the first of which begins a group.
  __device__ __forceinline__ void multiply(Sums& acc, StageCursor& cursor, int32_t units) const {
    GroupHeader<T> header;
    multiply_units<A>(pipeline, acc, cursor, units, [&](uint32_t (&a)[4][4], int32_t stage, int32_t unit) {
      load(a, header, pipeline.panel_at(stage), unit % f.units);
    });
  }

  __device__ __forceinline__ void consume(Reduction& reduction) const {
    grid_wait();
    const Folded folded{pipeline};
    typename Folded::Cursors cursors;
    // A tile is finished after the next tile's products, so that the cluster's sums have arrived by then.
    for (int32_t item = pipeline.first_item();; item += p.item_stride) {
      Sums slices[2] = {};
#pragma unroll
      for (int32_t s = 0; s < 2; ++s) {
        if (item >= p.items) break;
        const int32_t slice = pipeline.first_slice() + s, units = pipeline.slice_begin(slice + 1) - pipeline.slice_begin(slice);
        if constexpr (kFolds<T>) folded.multiply(slices[s], cursors, units);
        else multiply(slices[s], cursors.rows, units);
      }
      if (item != pipeline.first_item()) reduction.end(item - p.item_stride);
      if (item >= p.items) return;
#pragma unroll
      for (int32_t i = 0; i < tokens / 2; ++i) slices[0][i] = slices[0][i] + slices[1][i];
      reduction.send(slices[0]);
    }
  }
};

#endif

#if MR_HOPPER
template <int32_t T, class A, int32_t tokens, bool with_sums>
__global__ void __launch_bounds__(kWgmmaThreads, skinny_blocks(tokens, kFolds<T>))
    gemm_skinny_wgmma(const __grid_constant__ WgmmaParams p, const __grid_constant__ SkinnyMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = SkinnyLayout<T, A, tokens, with_sums>;
  extern __shared__ uint8_t memory[];
  const uint32_t stage_memory = (kept_address(memory) + 1023) & ~1023u;
  SkinnyPipeline<T, A, tokens, with_sums> pipeline{p, maps};
  pipeline.rank = static_cast<int32_t>(cluster_rank());
  pipeline.warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);  // the shuffle makes it uniform for the compiler
  pipeline.lane = static_cast<int32_t>(threadIdx.x) % 32;
  pipeline.group = pipeline.warp < 8 ? pipeline.warp / 4 : pipeline.warp % 2;
  typename SkinnyBlock<T, A, tokens, with_sums>::Reduction reduction{p};
  reduction.memory = stage_memory + 2 * Layout::stage_memory;
  reduction.rank = pipeline.rank;
  reduction.group = pipeline.group;
  reduction.warp = pipeline.warp;
  reduction.lane = pipeline.lane;
  pipeline.exchange = reduction.memory + Layout::reduction;
  reduction.sums_ready = pipeline.exchange + Layout::exchange;
  const uint32_t barriers = reduction.sums_ready + 16;
  pipeline.stage_memory = stage_memory + pipeline.group * Layout::stage_memory;
  pipeline.rows = pipeline.stage_memory + Layout::weight_stages * Layout::weights;
  pipeline.full = barriers + pipeline.group * Layout::group_barriers * 8;
  pipeline.empty = pipeline.full + Layout::row_stages * 8;
  pipeline.full_weights = Layout::folds ? pipeline.empty + Layout::row_stages * 8 : pipeline.full;
  pipeline.empty_weights = Layout::folds ? pipeline.full_weights + Layout::weight_stages * 8 : pipeline.empty;
  pipeline.full_sums = pipeline.empty_weights + Layout::weight_stages * 8;
  pipeline.empty_sums = pipeline.full_sums + 2 * 8;
  if (threadIdx.x % 128 == 0 && threadIdx.x < 256) {
    // If weights and tokens share a pipeline, both producers fill a stage. The four warps of a warpgroup release it.
    for (int32_t i = 0; i < Layout::row_stages; ++i) {
      barrier_init(pipeline.full + i * 8, Layout::folds ? 1 : 2);
      barrier_init(pipeline.empty + i * 8, 4);
    }
    for (int32_t i = 0; Layout::folds && i < Layout::weight_stages; ++i) {
      barrier_init(pipeline.full_weights + i * 8, 1);
      barrier_init(pipeline.empty_weights + i * 8, 4);
    }
    for (int32_t i = 0; with_sums && i < 2; ++i) {
      barrier_init(pipeline.full_sums + i * 8, 1);
      barrier_init(pipeline.empty_sums + i * 8, 4);
    }
    // The cluster's warps, and one arrival that announces the bytes.
    if (threadIdx.x == 0) {
      barrier_init(reduction.sums_ready, 8 * kSkinnyCluster + 1);
      barrier_init(reduction.sums_ready + 8, 8 * kSkinnyCluster + 1);
    }
    barrier_init_fence();
  }
  if constexpr (kFolds<T> && !with_sums) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * 4; i < Layout::exchange; i += kWgmmaThreads * 4) {
      store_shared4(pipeline.exchange + i, 0);
    }
    shared_fence();
  }
  cluster_sync();
  constexpr int32_t kRegisters = Layout::blocks == 2 ? 104 : 232, kSpareRegisters = Layout::blocks == 2 ? 32 : 40;
  static_assert(kRegistersFit<kRegisters, kSpareRegisters, Layout::blocks>);
  if (pipeline.warp >= 8) {
    registers_down<kSpareRegisters>();
    if (elected()) {
      if (pipeline.warp < 10) pipeline.produce_weights();
      else pipeline.produce_tokens();
    }
  } else {
    registers_up<kRegisters>();
    SkinnyBlock<T, A, tokens, with_sums>{p, pipeline}.consume(reduction);
  }
#endif
}

#endif

template <int32_t T, class A, int32_t tokens, bool with_sums = false>
WgmmaKernel skinny_wgmma_kernel_of() {
#if MR_HOPPER
  using Layout = SkinnyLayout<T, A, tokens, with_sums>;
  return {reinterpret_cast<const void*>(&gemm_skinny_wgmma<T, A, tokens, with_sums>), Layout::bytes, kWgmmaThreads, tokens};
#else
  return {};
#endif
}

template <int32_t T, class A>
WgmmaKernel skinny_wgmma_kernel_for(int32_t form) {
  if constexpr (OperandSplit<T, A>::single) {
    switch (form) {
      case 0:
        if constexpr (Format<T>::is_float || T == kQ8_0) return skinny_wgmma_kernel_of<T, A, 8>();
        break;
      case 1: return skinny_wgmma_kernel_of<T, A, 16>();
      case 2: return skinny_wgmma_kernel_of<T, A, 32>();
      case 3: return skinny_wgmma_kernel_of<T, A, 64>();
    }
    if constexpr (Format<T>::is_float) {
      if (form == kSkinnySingle) return skinny_wgmma_kernel_of<T, A, kSkinnyMaxTokens>();
    }
    if constexpr (kFolds<T>) {
      if (form == kSkinnyWithSums) return skinny_wgmma_kernel_of<T, A, 64, true>();
    }
  }
  return {};
}

template <int32_t T>
WgmmaKernel skinny_wgmma_kernel(Act act, int32_t form) {
  return with_multiplied_act<T, WgmmaKernel>(act, [&](auto element) { return skinny_wgmma_kernel_for<T, decltype(element)>(form); });
}

}  // namespace mr::cuda
