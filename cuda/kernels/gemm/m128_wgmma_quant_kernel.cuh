// m128_wgmma_quant_kernel: the decode class by wgmma for quantised weights and many f16 tokens; see gemm.h for the
// contract.
//
// It processes tiles of 128 rows by 128 tokens with clusters of two blocks, which share K or tokens (m128_wgmma.h), so weights
// are unpacked once for 128 tokens, while the products of the unit before run. If blocks fold, a consumer warpgroup alternates
// between the two halves of the tokens: while one half's products run, the other half's sums are scaled on the CUDA cores.
// Sums of finished slices are kept in registers or saved in shared memory, because not all fit the registers.
// m128_wgmma_reduction.cuh adds the sums of two blocks that share a tile.
#pragma once

#include "kernels/gemm/m128_wgmma_quant_pipeline.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, M128Share share>
struct M128QuantBlock {
  using Pipeline = M128QuantPipeline<T, share>;
  using Tiles = M128Tiles<share>;
  using Reduction = M128Reduction<__half, share, kM128QuantSpareWarps, 2>;
  using Layout = typename Pipeline::Layout;
  using StageCursor = typename Pipeline::StageCursor;
  using WeightCursor = typename Pipeline::WeightCursor;
  using Sums = typename Reduction::Sums;
  static constexpr WeightFormat f = Pipeline::f;

  const Tiles& tiles;
  const Pipeline& pipeline;
  const Reduction& reduction;
  const int32_t lane = tiles.lane;

  using Half = float[Layout::tokens / 4];  // half of the tokens

  // Cursors is a warpgroup's position in its pipelines; left: groups of weights that it has not begun to unpack.
  struct Cursors {
    StageCursor rows;
    WeightCursor weights;
    uint32_t sums_phase = 0, header_slot = 0;
    int32_t left;
  };

  __device__ __forceinline__ uint64_t rows_at(int32_t stage, int32_t half) const {
    return swizzled_rows(pipeline.rows + stage * Layout::rows + half * (Layout::rows / 2));
  }
  __device__ __forceinline__ uint64_t sums_at(int32_t half) const {
    return swizzled_rows64(pipeline.input_sums + half * (Layout::input_sums / 2));
  }

  template <int32_t half>
  __device__ __forceinline__ static void add(Sums& acc, const Half& c, float row_g, float row_g8) {
#pragma unroll
    for (int32_t i = 0; i < Layout::tokens / 4; ++i) {
      float& sum = acc[half * (Layout::tokens / 4) + i];
      sum = fmaf(i % 4 < 2 ? row_g : row_g8, c[i], sum);
    }
  }

  __device__ __forceinline__ void await_weights(const Cursors& cursor) const {
    barrier_wait(pipeline.full_weights + cursor.weights.stage * 8, cursor.weights.phase);
  }
  // Releases a stage of weights. It must come after the first products of its contents (see barrier_arrive).
  __device__ __forceinline__ void release_weights(Cursors& cursor) const {
    pipeline.release(pipeline.empty_weights + cursor.weights.stage * 8);
    cursor.weights.next();
  }

  // Folded is the state from a block's first unit to its last, for types that fold.
  struct Folded {
    FoldedHeader header;
    Half c[2];  // the products, then the products of mins
    uint32_t a[2][4][4];
  };

  // Unpacks the fragments of unit u of the current group.
  template <int32_t u>
  __device__ __forceinline__ void unpack(Folded& s, Cursors& cursor) const {
    await_weights(cursor);
    if constexpr (u == 0) {
      s.header.load(pipeline.header_at(cursor.header_slot), lane);
      cursor.header_slot ^= 1;
      --cursor.left;
    }
    UnitQuants<T> quants;
    quants.begin(pipeline.plane(cursor.weights.stage, 0), pipeline.plane(cursor.weights.stage, 1), lane);
    folded_unit<T, u>(s.header, quants, false, s.a[u % 2]);
  }

  // Issues the products of unit u and releases its weights. Waits for the unit before, and releases that unit's tokens.
  template <int32_t u>
  __device__ __forceinline__ void issue(Folded& s, Cursors& cursor, uint32_t& before) const {
    const int32_t stage = cursor.rows.stage;
    barrier_wait(pipeline.full + stage * 8, cursor.rows.phase);
    wgmma_fence();
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      wgmma_m64<__half, u != 0>(s.c[half], s.a[u % 2][0], rows_at(stage, half));
#pragma unroll
      for (int32_t step = 1; step < 4; ++step) wgmma_m64<__half>(s.c[half], s.a[u % 2][step], rows_at(stage, half) + step * 2);
      wgmma_commit();
    }
    release_weights(cursor);
    if constexpr (u > 0) {
      wgmma_wait<2>();
      tiles.release_tokens(before);
    }
    before = pipeline.empty + stage * 8;
    cursor.rows.next();
  }

  template <int32_t half>
  __device__ __forceinline__ void issue_mins(Folded& s, const uint32_t (&mins)[4]) const {
    wgmma_fence();
    wgmma_m64<__nv_bfloat16, false>(s.c[half], mins, sums_at(half));
    wgmma_m64<__nv_bfloat16>(s.c[half], mins, sums_at(half) + 2);
    wgmma_commit();
  }

  // Begins the block's first group, if it has any.
  __device__ __forceinline__ void begin(Folded& s, Cursors& cursor) const {
    if (cursor.left > 0) unpack<0>(s, cursor);
  }

  // Adds the products of `groups` groups, the first of which has begun, and begins the group after them.
  __device__ __forceinline__ void multiply(Sums& acc, Folded& s, Cursors& cursor, int32_t groups) const {
#pragma unroll 1
    for (; groups > 0; --groups) {
      uint32_t before;
      issue<0>(s, cursor, before);
      unpack<1>(s, cursor);
      issue<1>(s, cursor, before);
      unpack<2>(s, cursor);
      issue<2>(s, cursor, before);
      unpack<3>(s, cursor);
      const float d[2] = {s.header.d[0], s.header.d[1]}, dmin[2] = {s.header.dmin[0], s.header.dmin[1]};
      const uint32_t mins[4] = {s.header.mins[0], s.header.mins[1], s.header.mins[0], s.header.mins[1]};
      issue<3>(s, cursor, before);
      begin(s, cursor);
      barrier_wait(pipeline.full_sums, cursor.sums_phase);
      wgmma_wait<1>();
      add<0>(acc, s.c[0], d[0], d[1]);
      issue_mins<0>(s, mins);
      wgmma_wait<1>();
      tiles.release_tokens(before);
      add<1>(acc, s.c[1], d[0], d[1]);
      issue_mins<1>(s, mins);
      wgmma_wait<1>();
      add<0>(acc, s.c[0], dmin[0], dmin[1]);
      wgmma_wait<0>();
      tiles.release_tokens(pipeline.empty_sums);
      cursor.sums_phase ^= 1;
      add<1>(acc, s.c[1], dmin[0], dmin[1]);
    }
  }

  // Rounded is the state from unit to unit, for the other types: the fragments of the next unit.
  struct Rounded {
    GroupHeader<T> header;
    uint32_t a[2][4][4];
    int32_t u = 0;  // of the unit after it in its group
  };

  // Makes the fragments of the block's next unit. After the last they are of no use, but products do not wait for a branch.
  __device__ __forceinline__ void begin(Rounded& s, Cursors& cursor) const { begin(s, s.a[0], cursor); }
  __device__ __forceinline__ void begin(Rounded& s, uint32_t (&a)[4][4], Cursors& cursor) const {
    if (cursor.left > 0) await_weights(cursor);
    const uint32_t quants = pipeline.plane(cursor.weights.stage, 0);
    RoundedUnit<T> unit;
    if constexpr (f.units == 1) {
      --cursor.left;
      unit.begin(quants, quants + f.quants, quants + f.quants + f.high, s.header, lane);
    } else {
      if (s.u == 0) {
        s.header.load(pipeline.header_at(cursor.header_slot), lane);
        cursor.header_slot ^= 1;
      }
      s.u = (s.u + 1) % f.units;
      if (s.u == 0) --cursor.left;
      unit.begin(quants, pipeline.plane(cursor.weights.stage, 1), pipeline.plane(cursor.weights.stage, 2), s.header, lane);
    }
    unit.take_all(a);
  }

  // Issues the products of a unit, and returns its stage.
  __device__ __forceinline__ int32_t issue(Sums& acc, const uint32_t (&a)[4][4], Cursors& cursor) const {
    const int32_t stage = cursor.rows.stage;
    barrier_wait(pipeline.full + stage * 8, cursor.rows.phase);
    issue_unit<__half>(acc, a, rows_at(stage, 0));
    release_weights(cursor);
    cursor.rows.next();
    return stage;
  }

  // Adds the products of `groups` groups, the first unit of which has begun, and begins the unit after them. A unit's
  // fragments are made while the products of the one before run, in other registers. The last of an odd number of units
  // ends first.
  __device__ __forceinline__ void multiply(Sums& acc, Rounded& s, Cursors& cursor, int32_t groups) const {
    int32_t units = groups * f.units;
#pragma unroll 1
    for (; units > 1; units -= 2) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t stage = issue(acc, s.a[i], cursor);
        begin(s, s.a[1 - i], cursor);
        wgmma_wait<0>();
        wgmma_keep(s.a[i]);
        tiles.release_tokens(pipeline.empty + stage * 8);
      }
    }
    if (units == 0) return;
    const int32_t stage = issue(acc, s.a[0], cursor);
    wgmma_wait<0>();
    wgmma_keep(s.a[0]);
    tiles.release_tokens(pipeline.empty + stage * 8);
    begin(s, cursor);
  }

  // Address of what this thread saves of a tile's first two slices.
  __device__ __forceinline__ uint32_t saved_at(int32_t i) const { return pipeline.saved + (i * 256 + tiles.warp * 32 + lane) * 16; }
  __device__ __forceinline__ void save(const Sums& sums) const {
#pragma unroll
    for (int32_t i = 0; i < Layout::tokens / 8; ++i) {
      store_shared16(saved_at(i), make_uint4(__float_as_uint(sums[i * 4]), __float_as_uint(sums[i * 4 + 1]),
                                            __float_as_uint(sums[i * 4 + 2]), __float_as_uint(sums[i * 4 + 3])));
    }
  }
  __device__ __forceinline__ void add_saved(Sums& sums) const {
#pragma unroll
    for (int32_t i = 0; i < Layout::tokens / 8; ++i) {
      const uint4 bits = load_shared16(saved_at(i));
      sums[i * 4] = __uint_as_float(bits.x) + sums[i * 4];
      sums[i * 4 + 1] = __uint_as_float(bits.y) + sums[i * 4 + 1];
      sums[i * 4 + 2] = __uint_as_float(bits.z) + sums[i * 4 + 2];
      sums[i * 4 + 3] = __uint_as_float(bits.w) + sums[i * 4 + 3];
    }
  }

  using State = std::conditional_t<Layout::folds, Folded, Rounded>;

  // Multiplies slice `slice` of the block.
  __device__ __forceinline__ void multiply_slice(Sums& sums, State& s, Cursors& cursor, int32_t slice) const {
#pragma unroll
    for (float& sum : sums) sum = 0;
    multiply(sums, s, cursor, tiles.slice_group(slice + 1) - tiles.slice_group(slice));
  }

  // Ends a slice of a tile that blocks share. The first two are saved. The third goes to the reduction buffer, which holds the
  // tile before until then, and the fourth is added to it.
  __device__ __forceinline__ void end(int32_t slice, Sums& sums, uint32_t phase) const {
    if (slice == 0) {
      save(sums);
    } else if (slice == 1) {
      add_saved(sums);
      save(sums);
    } else if (slice == 2) {
      reduction.wait_until_free(phase);
      reduction.for_sums([&](float& sum, int32_t i) { sum = sums[i]; });
    } else {
      reduction.for_sums([&](float& sum, int32_t i) { sums[i] = sum + sums[i]; });
      add_saved(sums);
      reduction.for_sums([&](float& sum, int32_t i) { sum = sums[i]; });
    }
  }

  // Multiplies and adds four slices of a tile of the block's own, the `four`-th of the block. Two are added in registers, the
  // third is saved until the fourth ends, and the sum of the first four waits in the reduction buffer.
  __device__ __forceinline__ void add_four(State& s, Cursors& cursor, int32_t four, uint32_t phase) const {
    Sums sums, slice;
    const auto add = [&] {
#pragma unroll
      for (int32_t i = 0; i < Layout::tokens / 2; ++i) sums[i] = sums[i] + slice[i];
    };
    multiply_slice(sums, s, cursor, four * 4);
    multiply_slice(slice, s, cursor, four * 4 + 1);
    add();
    multiply_slice(slice, s, cursor, four * 4 + 2);
    save(slice);
    multiply_slice(slice, s, cursor, four * 4 + 3);
    add_saved(slice);
    add();
    if (four == 0) {
      reduction.wait_until_free(phase);
      reduction.for_sums([&](float& sum, int32_t i) { sum = sums[i]; });
    } else {
      reduction.for_sums([&](float& sum, int32_t i) { sum = sum + sums[i]; });
    }
  }

  __device__ __forceinline__ void consume() const {
    State s;
    Cursors cursor;
    const WgmmaParams& p = tiles.p;
    const int32_t items = (p.items - tiles.first_item() + p.item_stride - 1) / p.item_stride;
    cursor.left = (tiles.slice_group(Tiles::slices) - tiles.slice_group(0)) * items;
    begin(s, cursor);
    uint32_t phase = 0;
    for (int32_t item = tiles.first_item(); item < p.items; item += p.item_stride, phase ^= 1) {
      if constexpr (Tiles::whole) {
#pragma unroll 1
        for (int32_t four = 0; four < 2; ++four) add_four(s, cursor, four, phase);
      } else {
#pragma unroll 1
        for (int32_t slice = 0; slice < Tiles::slices; ++slice) {
          Sums sums;
          multiply_slice(sums, s, cursor, slice);
          end(slice, sums, phase);
        }
      }
      reduction.signal(reduction.ready);
      if (!tiles.last(item)) continue;
      grid_wait();
      reduction.template finish<true>(item, phase);
    }
  }
};

#endif

#if MR_HOPPER
template <int32_t T, M128Share share>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    gemm_m128_wgmma_quant(const __grid_constant__ WgmmaParams p, const __grid_constant__ M128Maps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = M128QuantLayout<T>;
  extern __shared__ __align__(1024) uint8_t m128_memory[];
  using Block = M128QuantBlock<T, share>;
  // The shuffle makes the warp uniform for the compiler.
  const M128Tiles<share> tiles{p, static_cast<int32_t>(cluster_rank()), __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0),
                               static_cast<int32_t>(threadIdx.x) % 32};
  typename Block::Pipeline pipeline{tiles, maps};
  typename Block::Reduction reduction{tiles};
  pipeline.rows = kept_address(m128_memory);
  pipeline.input_sums = pipeline.rows + Layout::row_stages * Layout::rows;
  pipeline.weights = pipeline.input_sums + Layout::input_sums;
  pipeline.headers = pipeline.weights + Layout::weight_stages * Layout::weights;
  pipeline.saved = pipeline.headers + Layout::headers * Layout::header;
  reduction.sums = pipeline.saved + Layout::saved;
  reduction.partial_sums = reinterpret_cast<float*>(m128_memory + (reduction.sums - pipeline.rows));
  pipeline.full = reduction.sums + Layout::reduction;
  pipeline.empty = pipeline.full + Layout::row_stages * 8;
  pipeline.full_weights = pipeline.empty + Layout::row_stages * 8;
  pipeline.empty_weights = pipeline.full_weights + Layout::weight_stages * 8;
  pipeline.full_sums = pipeline.empty_weights + Layout::weight_stages * 8;
  pipeline.empty_sums = pipeline.full_sums + 8;
  reduction.ready = pipeline.empty_sums + 8;
  reduction.free = reduction.ready + 8;
  const Block block{tiles, pipeline, reduction};
  if constexpr (M128Tiles<share>::whole) run_m128<224, 56>(pipeline, block, reduction);
  else run_m128<208, 88>(pipeline, block, reduction);
#endif
}
#endif

#if MR_HOPPER
template <int32_t T>
WgmmaKernel m128_wgmma_quant_kernel_for(M128Share share) {
  const auto with = [](auto kernel) {
    return WgmmaKernel{reinterpret_cast<const void*>(kernel), M128QuantLayout<T>::bytes, kWgmmaThreads, kM128Tokens};
  };
  if (share == M128Share::kK) return with(&gemm_m128_wgmma_quant<T, M128Share::kK>);
  if constexpr (kFolds<T>) return {};
  else return with(&gemm_m128_wgmma_quant<T, M128Share::kTokens>);
}
#endif

}  // namespace mr::cuda
