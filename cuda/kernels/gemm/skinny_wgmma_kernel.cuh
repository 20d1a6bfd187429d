// skinny_wgmma_kernel: the decode class by wgmma for few tokens; see gemm.h for the contract.
//
// A cluster of two blocks processes tiles of 64 rows by `tokens` tokens. It is bound by the weights' bytes, so K is
// split over the four consumer warpgroups: each has two of the eight slices and a pipeline of its own, which two
// producer threads fill (skinny_wgmma_pipeline.cuh). Of a pair the first half of the rows is the gate's.
// skinny_wgmma_reduction.cuh adds the warpgroups' sums. With kSkinnyMaxTokens a cluster processes a single tile.
#pragma once

#include "kernels/gemm/fragment.cuh"
#include "kernels/gemm/prefill_wgmma_layout.cuh"
#include "kernels/gemm/skinny_wgmma_folded.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A, int32_t tokens, bool with_sums>
struct SkinnyBlock : SkinnyFolded<T, A, tokens, with_sums> {
  using Pipeline = SkinnyPipeline<T, A, tokens, with_sums>;
  using typename Pipeline::Layout;
  using typename Pipeline::StageCursor;
  using typename SkinnyFolded<T, A, tokens, with_sums>::Cursors;
  using Header = GroupHeader<T, A>;
  using Sums = float[tokens / 2];
  using Pipeline::await, Pipeline::first_item, Pipeline::first_slice, Pipeline::panel_at, Pipeline::release, Pipeline::rows_at, Pipeline::slice_begin;
  using Pipeline::empty, Pipeline::exchange, Pipeline::f, Pipeline::lane, Pipeline::p, Pipeline::warp;

  __device__ __forceinline__ static void add_scaled(Sums& acc, const Sums& c, float row_g, float row_g8) {
#pragma unroll
    for (int32_t i = 0; i < tokens / 2; ++i) acc[i] = fmaf(i % 4 < 2 ? row_g : row_g8, c[i], acc[i]);
  }

  __device__ __forceinline__ void load_floats(uint32_t (&a)[4][4], uint32_t panel) const {
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) {
      const uint4 v = load_shared16(panel + step * 512 + lane * 16);
      a[step][0] = v.x;
      a[step][1] = v.y;
      a[step][2] = v.z;
      a[step][3] = v.w;
    }
  }

  // Adds the products of `units` units of float weights. The next unit's fragments are loaded while this unit's
  // products run.
  __device__ __forceinline__ void multiply_floats(Sums& acc, StageCursor& cursor, int32_t units) const {
    if (units == 0) return;
    uint32_t a[2][4][4];
    await(cursor);
    load_floats(a[0], panel_at(cursor.stage));
#pragma unroll 1
    for (int32_t unit = 0; unit < units; unit += 2) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        if (unit + i >= units) break;
        const StageCursor current = cursor;
        wgmma_fence();
#pragma unroll
        for (int32_t step = 0; step < 4; ++step) wgmma_m64<A>(acc, a[i][step], rows_at(current) + step * 2);
        wgmma_commit();
        cursor.next();
        if (unit + i + 1 < units) {
          await(cursor);
          load_floats(a[1 - i], panel_at(cursor.stage));
        }
        wgmma_wait<0>();
        release(empty, current.stage);
      }
    }
  }

  // A unit of blocks of 32 or of 16 inputs has this many parts, each with a scale of its own.
  static constexpr int32_t parts = UnitScales<T, A>::blocks, steps = 4 / parts;

  // Multiplies a part's inputs into c, and the sums of x, which mins multiply, into sums.
  template <int32_t part>
  __device__ __forceinline__ static void issue_with_sums(Sums& c, Sums& sums, const uint32_t (&a)[4][1][4], uint64_t rows) {
    wgmma_fence();
    wgmma_m64<A, false>(c, a[part * steps][0], rows + part * steps * 2);
    if constexpr (steps == 2) wgmma_m64<A>(c, a[part * steps + 1][0], rows + part * steps * 2 + 2);
    constexpr uint32_t one = twice(std::is_same_v<A, __half> ? 0x3c00u : 0x3f80u);
    const uint32_t ones[4] = {one, one, one, one};
    wgmma_m64<A, false>(sums, ones, rows + part * steps * 2);
    if constexpr (steps == 2) wgmma_m64<A>(sums, ones, rows + part * steps * 2 + 2);
    wgmma_commit();
  }

  template <int32_t part>
  __device__ __forceinline__ static void add_with_sums(Sums& acc, const Sums& c, const Sums& sums, const UnitScales<T, A>& scales) {
    add_scaled(acc, c, scales.scale[0][part], scales.scale[1][part]);
    add_scaled(acc, sums, scales.min[0][part], scales.min[1][part]);
  }

  // Scaled is the state from a slice's first unit to its last, for blocks without mins that are scaled one by one.
  struct Scaled {
    UnitQuants<T, A, 1> quants;
    Header header;
    UnitScales<T, A> scales;
    uint32_t a[2][steps][1][4];
  };

  template <int32_t part>
  __device__ __forceinline__ static void unpack(Scaled& s) {
    s.quants.template take<part * steps>(s.a[part % 2][0]);
    if constexpr (steps == 2) s.quants.template take<part * steps + 1>(s.a[part % 2][1]);
  }

  // Begins unit u of a group, whose stage is full, and unpacks its first part.
  __device__ __forceinline__ void begin_unit(Scaled& s, uint32_t panel, int32_t u) const {
    if (u == 0) s.header.load(panel + f.quants + f.high + f.scales, lane);
    s.quants.begin(panel, panel + f.quants, lane);
    s.quants.use(s.header);
    s.scales.load(panel + f.quants + f.high, s.header, lane);
    unpack<0>(s);
  }

  // Issues the products of a part.
  template <int32_t part>
  __device__ __forceinline__ static void issue_part(const Scaled& s, Sums& c, uint64_t rows) {
    wgmma_fence();
    wgmma_m64<A, false>(c, s.a[part % 2][0][0], rows + part * steps * 2);
    if constexpr (steps == 2) wgmma_m64<A>(c, s.a[part % 2][1][0], rows + part * steps * 2 + 2);
    wgmma_commit();
  }

  // Adds the products of the units [begin, end), the first of which begins a group. While a part is multiplied, the
  // part before it is added and the part after it unpacked, which hides both under the tensor cores.
  __device__ __forceinline__ void multiply_scaled(Sums& acc, StageCursor& cursor, int32_t begin, int32_t end) const {
    if (begin == end) return;
    Scaled s;
    await(cursor);
    begin_unit(s, panel_at(cursor.stage), 0);
#pragma unroll 1
    for (int32_t unit = begin; unit < end; ++unit) {
      Sums c[2];
      float factors[parts][2];
#pragma unroll
      for (int32_t part = 0; part < parts; ++part) {
        factors[part][0] = s.scales.scale[0][part];
        factors[part][1] = s.scales.scale[1][part];
      }
      const int32_t stage = cursor.stage;
      const uint64_t rows = rows_at(cursor);
      issue_part<0>(s, c[0], rows);
      unpack<1>(s);
      issue_part<1>(s, c[1], rows);
      wgmma_wait<1>();
      add_scaled(acc, c[0], factors[0][0], factors[0][1]);
      if constexpr (parts == 4) {
        unpack<2>(s);
        issue_part<2>(s, c[0], rows);
        wgmma_wait<1>();
        add_scaled(acc, c[1], factors[1][0], factors[1][1]);
        unpack<3>(s);
        issue_part<3>(s, c[1], rows);
        wgmma_wait<1>();
        add_scaled(acc, c[0], factors[2][0], factors[2][1]);
      }
      cursor.next();
      if (unit + 1 < end) {
        await(cursor);
        begin_unit(s, panel_at(cursor.stage), (unit + 1) % f.units);
      }
      wgmma_wait<0>();
      release(empty, stage);
      add_scaled(acc, c[1], factors[parts - 1][0], factors[parts - 1][1]);
    }
  }

  __device__ __forceinline__ void multiply_quants(Sums& acc, Header& header, uint32_t panel, uint64_t rows, int32_t unit) const {
    const uint32_t own = exchange + warp * 256;
    const int32_t u = unit % f.units;
    if (u == 0) header.load(panel + f.quants + f.high + f.scales, lane);
    if constexpr (Layout::publishes) {
      __syncwarp();
      header.template publish<1>(own, u, lane);
      __syncwarp();
    }
    UnitQuants<T, A, 1> quants;
    UnitScales<T, A> scales;
    quants.begin(panel, panel + f.quants, lane);
    scales.load(Layout::publishes ? own : panel + f.quants + f.high, header, lane);
    uint32_t a[4][1][4];
    Sums c, sums;
    quants.template take<0>(a[0]);
    if constexpr (steps == 2) quants.template take<1>(a[1]);
    issue_with_sums<0>(c, sums, a, rows);
    if constexpr (steps == 1) quants.template take<1>(a[1]);
    quants.template take<2>(a[2]);
    quants.template take<3>(a[3]);
    wgmma_wait<0>();
    add_with_sums<0>(acc, c, sums, scales);
    issue_with_sums<1>(c, sums, a, rows);
    wgmma_wait<0>();
    add_with_sums<1>(acc, c, sums, scales);
    if constexpr (parts == 4) {
      issue_with_sums<2>(c, sums, a, rows);
      wgmma_wait<0>();
      add_with_sums<2>(acc, c, sums, scales);
      issue_with_sums<3>(c, sums, a, rows);
      wgmma_wait<0>();
      add_with_sums<3>(acc, c, sums, scales);
    }
  }

  __device__ __forceinline__ void consume(SkinnyReduction<A, tokens>& reduction) const {
    grid_wait();
    Cursors cursors;
    StageCursor& cursor = cursors.rows;
    Header header;
    // A tile is finished after the next tile's products, so that the cluster's sums have arrived by then.
    for (int32_t item = first_item();; item += p.item_stride) {
      Sums slices[2] = {};
#pragma unroll
      for (int32_t s = 0; s < 2; ++s) {
        if (item >= p.items) break;
        const int32_t begin = slice_begin(first_slice() + s), end = slice_begin(first_slice() + s + 1);
        if constexpr (Format<T>::is_float) {
          multiply_floats(slices[s], cursor, end - begin);
        } else if constexpr (Layout::folds) {
          this->multiply_folded(slices[s], cursors, end - begin);
        } else if constexpr (!Format<T>::has_min) {
          multiply_scaled(slices[s], cursor, begin, end);
        } else {
#pragma unroll 1
          for (int32_t unit = begin; unit < end; ++unit) {
            await(cursor);
            multiply_quants(slices[s], header, panel_at(cursor.stage), rows_at(cursor), unit);
            release(empty, cursor.stage);
            cursor.next();
          }
        }
      }
      if (item != first_item()) reduction.end(item - p.item_stride);
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
__global__ void __launch_bounds__(kWgmmaThreads, skinny_blocks(tokens, kFolds<T, A>))
    gemm_skinny_wgmma(const __grid_constant__ WgmmaParams p, const __grid_constant__ SkinnyMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = SkinnyLayout<T, A, tokens, with_sums>;
  extern __shared__ uint8_t memory[];
  const uint32_t stage_memory = (kept_address(memory) + 1023) & ~1023u;
  SkinnyBlock<T, A, tokens, with_sums> block{{{p, maps}}};
  block.rank = static_cast<int32_t>(cluster_rank());
  block.warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);  // the shuffle makes it uniform for the compiler
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  block.group = block.warp < 8 ? block.warp / 4 : block.warp % 2;
  SkinnyReduction<A, tokens> reduction{p};
  reduction.memory = stage_memory + 2 * Layout::stage_memory;
  reduction.rank = block.rank;
  reduction.group = block.group;
  reduction.warp = block.warp;
  reduction.lane = block.lane;
  block.exchange = reduction.memory + Layout::reduction;
  reduction.sums_ready = block.exchange + Layout::exchange;
  const uint32_t barriers = reduction.sums_ready + 16;
  block.stage_memory = stage_memory + block.group * Layout::stage_memory;
  block.rows = block.stage_memory + Layout::weight_stages * Layout::weights;
  block.full = barriers + block.group * Layout::group_barriers * 8;
  block.empty = block.full + Layout::row_stages * 8;
  block.full_weights = Layout::folds ? block.empty + Layout::row_stages * 8 : block.full;
  block.empty_weights = Layout::folds ? block.full_weights + Layout::weight_stages * 8 : block.empty;
  block.full_sums = block.empty_weights + Layout::weight_stages * 8;
  block.empty_sums = block.full_sums + 2 * 8;
  if (threadIdx.x % 128 == 0 && threadIdx.x < 256) {
    // If weights and tokens share a pipeline, both producers fill a stage. The four warps of a warpgroup release it.
    for (int32_t i = 0; i < Layout::row_stages; ++i) {
      barrier_init(block.full + i * 8, Layout::folds ? 1 : 2);
      barrier_init(block.empty + i * 8, 4);
    }
    for (int32_t i = 0; Layout::folds && i < Layout::weight_stages; ++i) {
      barrier_init(block.full_weights + i * 8, 1);
      barrier_init(block.empty_weights + i * 8, 4);
    }
    for (int32_t i = 0; with_sums && i < 2; ++i) {
      barrier_init(block.full_sums + i * 8, 1);
      barrier_init(block.empty_sums + i * 8, 4);
    }
    // The cluster's warps, and one arrival that announces the bytes.
    if (threadIdx.x == 0) {
      barrier_init(reduction.sums_ready, 8 * kSkinnyCluster + 1);
      barrier_init(reduction.sums_ready + 8, 8 * kSkinnyCluster + 1);
    }
    barrier_init_fence();
  }
  if constexpr (kFolds<T, A> && !with_sums) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * 4; i < Layout::exchange; i += kWgmmaThreads * 4) {
      store_shared4(block.exchange + i, 0);
    }
    shared_fence();
  }
  cluster_sync();
  constexpr int32_t kRegisters = Layout::blocks == 2 ? 104 : 232, kSpareRegisters = Layout::blocks == 2 ? 32 : 40;
  static_assert(kRegistersFit<kRegisters, kSpareRegisters, Layout::blocks>);
  if (block.warp >= 8) {
    registers_down<kSpareRegisters>();
    if (block.warp < 10) {
      if (elected()) block.produce_weights();
    } else {
      grid_wait();
      grid_trigger();
      if (elected()) block.produce_tokens();
    }
  } else {
    registers_up<kRegisters>();
    block.consume(reduction);
  }
#endif
}

template <int32_t T, class A, int32_t tokens, bool with_sums = false>
WgmmaKernel skinny_wgmma_kernel_of() {
  return {reinterpret_cast<const void*>(&gemm_skinny_wgmma<T, A, tokens, with_sums>), SkinnyLayout<T, A, tokens, with_sums>::bytes, kWgmmaThreads,
          tokens};
}
#else
template <int32_t T, class A, int32_t tokens, bool with_sums = false>
WgmmaKernel skinny_wgmma_kernel_of() {
  return {};
}
#endif

template <int32_t T, class A>
WgmmaKernel skinny_wgmma_kernel_for(int32_t form) {
  if constexpr (OperandSplit<T, A>::weights == 1 && OperandSplit<T, A>::inputs == 1) {
    switch (form) {
      case 0: return skinny_wgmma_kernel_of<T, A, 8>();
      case 1: return skinny_wgmma_kernel_of<T, A, 16>();
      case 2: return skinny_wgmma_kernel_of<T, A, 32>();
      case 3: return skinny_wgmma_kernel_of<T, A, 64>();
    }
    if constexpr (Format<T>::is_float) {
      if (form == kSkinnySingle) return skinny_wgmma_kernel_of<T, A, kSkinnyMaxTokens>();
    }
    if constexpr (kFolds<T, A>) {
      if (form == kSkinnyWithSums) return skinny_wgmma_kernel_of<T, A, 64, true>();
    }
  }
  return {};
}

// Quantised weights multiply f16 activations alone.
template <int32_t T>
WgmmaKernel skinny_wgmma_kernel_for_act(Act act, int32_t form) {
  if (act == Act::kF16) return skinny_wgmma_kernel_for<T, __half>(form);
  if constexpr (Format<T>::is_float) return skinny_wgmma_kernel_for<T, __nv_bfloat16>(form);
  else return {};
}

}  // namespace mr::cuda
