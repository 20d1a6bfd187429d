// tall_quants_kernel: the decode class of products by wgmma for quantised weights, f16 tokens and many of them; see product.h for what it
// promises.
//
// As in tall_kernel.cuh a cluster of two blocks takes tiles of 128 rows by 128 tokens, each block four of the eight segments of the
// columns, one after another, and each of its two warpgroups that multiply 64 rows: weights are unpacked once for 128 tokens. A
// warpgroup multiplies by the halves of the tokens in turn, so that one half's sums are scaled while the other's products are under
// way. What segments gave lies in shared memory while the next ones are multiplied. tall_join.cuh adds the blocks' sums.
#pragma once

#include "kernels/linear/prefill_layout.cuh"
#include "kernels/linear/tall_quants_rings.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T>
struct TallQuantsBlock : TallQuantsRings<T> {
  using Rings = TallQuantsRings<T>;
  using typename Rings::Layout;
  using typename Rings::Place;
  using typename Rings::WeightPlace;
  using typename Rings::Join::Sums;
  using Rings::empty, Rings::empty_terms, Rings::empty_weights, Rings::full, Rings::full_terms, Rings::full_weights;
  using Rings::f, Rings::first_item, Rings::lane, Rings::p, Rings::plane, Rings::release, Rings::segment_begin, Rings::warp;

  using Half = float[Layout::tokens / 4];  // of half of the tokens
  using Halves = Half[2];

  // Where a warpgroup is in its rings, and how many groups of weights it has not yet begun to unpack.
  struct Places {
    Place rows;
    WeightPlace weights;
    uint32_t terms_phase = 0, turn = 0;
    int32_t left;
  };

  __device__ __forceinline__ uint64_t rows_at(int32_t stage, int32_t half) const {
    return swizzled_rows(Rings::rows + stage * Layout::rows + half * (Layout::rows / 2));
  }
  __device__ __forceinline__ uint64_t terms_at(int32_t half) const { return swizzled_rows64(Rings::terms + half * (Layout::terms / 2)); }

  __device__ __forceinline__ static void add(Half& acc, const Half& c, float row_g, float row_g8) {
#pragma unroll
    for (int32_t i = 0; i < Layout::tokens / 4; ++i) acc[i] = fmaf(i % 4 < 2 ? row_g : row_g8, c[i], acc[i]);
  }

  __device__ __forceinline__ void await_weights(const Places& at) const {
    barrier_wait(full_weights + at.weights.stage * 8, at.weights.phase);
  }
  // Gives a stage of weights back, behind the first products of the last that was loaded of it (barrier_arrive).
  __device__ __forceinline__ void release_weights(Places& at) const {
    release(empty_weights + at.weights.stage * 8);
    at.weights.next();
  }

  // What lasts from a folded block's first unit to its last.
  struct Folded {
    FoldedHeader header;
    Halves c;  // the products, then those of mins
    uint32_t a[2][4][4];
  };

  // The fragments of unit u of the group at hand.
  template <int32_t u>
  __device__ __forceinline__ void unpack(Folded& s, Places& at) const {
    await_weights(at);
    if constexpr (u == 0) {
      s.header.load(Rings::header_at(at.turn), lane);
      at.turn ^= 1;
      --at.left;
    }
    UnitQuants<T, __half, 1> quants;
    quants.begin(plane(at.weights.stage, 0), plane(at.weights.stage, 1), lane);
    folded_unit<T, u>(s.header, quants, false, s.a[u % 2]);
  }

  // The products of unit u, asynchronous; its weights are released. Those of the unit before end, and its tokens are released.
  template <int32_t u>
  __device__ __forceinline__ void issue(Folded& s, Places& at, uint32_t& before) const {
    const int32_t stage = at.rows.stage;
    barrier_wait(full + stage * 8, at.rows.phase);
    wgmma_fence();
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      wgmma_m64<__half, u != 0>(s.c[half], s.a[u % 2][0], rows_at(stage, half));
#pragma unroll
      for (int32_t step = 1; step < 4; ++step) wgmma_m64<__half>(s.c[half], s.a[u % 2][step], rows_at(stage, half) + step * 2);
      wgmma_commit();
    }
    release_weights(at);
    if constexpr (u > 0) {
      wgmma_wait<2>();
      release(before);
    }
    before = empty + stage * 8;
    at.rows.next();
  }

  template <int32_t half>
  __device__ __forceinline__ void issue_mins(Folded& s, const uint32_t (&mins)[4]) const {
    wgmma_fence();
    wgmma_m64<__nv_bfloat16, false>(s.c[half], mins, terms_at(half));
    wgmma_m64<__nv_bfloat16>(s.c[half], mins, terms_at(half) + 2);
    wgmma_commit();
  }

  // Begins a cluster's first group, if it has any.
  __device__ __forceinline__ void begin(Folded& s, Places& at) const {
    if (at.left > 0) unpack<0>(s, at);
  }

  // Adds the products of `groups` groups, of which the first has begun, and begins the one behind them.
  __device__ __forceinline__ void multiply(Halves& acc, Folded& s, Places& at, int32_t groups) const {
#pragma unroll 1
    for (; groups > 0; --groups) {
      uint32_t before;
      issue<0>(s, at, before);
      unpack<1>(s, at);
      issue<1>(s, at, before);
      unpack<2>(s, at);
      issue<2>(s, at, before);
      unpack<3>(s, at);
      const float d[2] = {s.header.d[0], s.header.d[1]}, dmin[2] = {s.header.dmin[0], s.header.dmin[1]};
      const uint32_t mins[4] = {s.header.mins[0], s.header.mins[1], s.header.mins[0], s.header.mins[1]};
      issue<3>(s, at, before);
      begin(s, at);
      barrier_wait(full_terms, at.terms_phase);
      wgmma_wait<1>();
      add(acc[0], s.c[0], d[0], d[1]);
      issue_mins<0>(s, mins);
      wgmma_wait<1>();
      release(before);
      add(acc[1], s.c[1], d[0], d[1]);
      issue_mins<1>(s, mins);
      wgmma_wait<1>();
      add(acc[0], s.c[0], dmin[0], dmin[1]);
      wgmma_wait<0>();
      release(empty_terms);
      at.terms_phase ^= 1;
      add(acc[1], s.c[1], dmin[0], dmin[1]);
    }
  }

  // A unit of blocks of 32 inputs, or of 16, is as many parts.
  static constexpr int32_t parts = UnitScales<T, __half>::blocks, steps = 4 / parts;

  // What lasts from unit to unit where blocks are scaled one by one.
  struct Scaled {
    UnitQuants<T, __half, 1> quants;
    GroupHeader<T, __half> header;
    UnitScales<T, __half> scales;
    Halves c;
    uint32_t a[2][steps][1][4];
    int32_t u = 0;  // of the group, the unit at hand
  };

  template <int32_t part>
  __device__ __forceinline__ static void unpack(Scaled& s) {
    s.quants.template take<part * steps>(s.a[part % 2][0]);
    if constexpr (steps == 2) s.quants.template take<part * steps + 1>(s.a[part % 2][1]);
  }

  // Begins the next unit, if the cluster has any: its scales, and the fragments of its first part.
  __device__ __forceinline__ void begin(Scaled& s, Places& at) const {
    if (s.u == 0) {
      if (at.left == 0) return;
      --at.left;
    }
    await_weights(at);
    const uint32_t quants = plane(at.weights.stage, 0);
    if constexpr (f.units == 1) {
      s.quants.begin(quants, quants + f.quants, lane);
      s.scales.load(quants + f.quants + f.high, s.header, lane);
    } else {
      if (s.u == 0) {
        s.header.load(Rings::header_at(at.turn), lane);
        at.turn ^= 1;
      }
      s.u = (s.u + 1) % f.units;
      s.quants.begin(quants, plane(at.weights.stage, 1), lane);
      s.scales.load(plane(at.weights.stage, 2), s.header, lane);
    }
    unpack<0>(s);
  }

  // The products of a part by half of the tokens, asynchronous.
  template <int32_t part>
  __device__ __forceinline__ void issue(Scaled& s, int32_t stage, int32_t half) const {
    const uint64_t x = rows_at(stage, half) + part * steps * 2;
    wgmma_fence();
    wgmma_m64<__half, false>(s.c[half], s.a[part % 2][0][0], x);
    if constexpr (steps == 2) wgmma_m64<__half>(s.c[half], s.a[part % 2][1][0], x + 2);
    wgmma_commit();
  }

  // Adds the products of a part by the first half of the tokens, and of the part before by the second, which are under way.
  template <int32_t part>
  __device__ __forceinline__ void add_part(Halves& acc, Scaled& s, Places& at, int32_t stage, const float (&factors)[parts][2]) const {
    issue<part>(s, stage, 0);
    if constexpr (part == parts - 1) release_weights(at);
    if constexpr (part > 0) {
      wgmma_wait<1>();
      add(acc[1], s.c[1], factors[part - 1][0], factors[part - 1][1]);
    }
    issue<part>(s, stage, 1);
    if constexpr (part + 1 < parts) unpack<part + 1>(s);
    else begin(s, at);
    wgmma_wait<1>();
    add(acc[0], s.c[0], factors[part][0], factors[part][1]);
  }

  // Adds the products of `groups` groups, of which the first unit has begun, and begins the one behind them.
  __device__ __forceinline__ void multiply(Halves& acc, Scaled& s, Places& at, int32_t groups) const {
#pragma unroll 1
    for (int32_t units = groups * f.units; units > 0; --units) {
      float factors[parts][2];
#pragma unroll
      for (int32_t part = 0; part < parts; ++part) {
        factors[part][0] = s.scales.scale[0][part];
        factors[part][1] = s.scales.scale[1][part];
      }
      const int32_t stage = at.rows.stage;
      barrier_wait(full + stage * 8, at.rows.phase);
      add_part<0>(acc, s, at, stage, factors);
      add_part<1>(acc, s, at, stage, factors);
      if constexpr (parts == 4) {
        add_part<2>(acc, s, at, stage, factors);
        add_part<3>(acc, s, at, stage, factors);
      }
      wgmma_wait<0>();
      release(empty + stage * 8);
      at.rows.next();
      add(acc[1], s.c[1], factors[parts - 1][0], factors[parts - 1][1]);
    }
  }

  // What this thread keeps in shared memory of a tile's first two segments.
  __device__ __forceinline__ uint32_t kept_at(int32_t i) const { return Rings::kept + (i * 256 + warp * 32 + lane) * 16; }
  __device__ __forceinline__ void keep(const Sums& sums) const {
#pragma unroll
    for (int32_t i = 0; i < Layout::tokens / 8; ++i) {
      store_shared16(kept_at(i), make_uint4(__float_as_uint(sums[i * 4]), __float_as_uint(sums[i * 4 + 1]),
                                            __float_as_uint(sums[i * 4 + 2]), __float_as_uint(sums[i * 4 + 3])));
    }
  }
  __device__ __forceinline__ void add_kept(Sums& sums) const {
#pragma unroll
    for (int32_t i = 0; i < Layout::tokens / 8; ++i) {
      const uint4 bits = load_shared16(kept_at(i));
      sums[i * 4] = __uint_as_float(bits.x) + sums[i * 4];
      sums[i * 4 + 1] = __uint_as_float(bits.y) + sums[i * 4 + 1];
      sums[i * 4 + 2] = __uint_as_float(bits.z) + sums[i * 4 + 2];
      sums[i * 4 + 3] = __uint_as_float(bits.w) + sums[i * 4 + 3];
    }
  }

  // Ends a segment: the first two are kept, the third waits for the last where tiles are joined, which is so long the tile's before.
  __device__ __forceinline__ void end(int32_t segment, const Halves& acc, uint32_t phase) const {
    Sums sums;
#pragma unroll
    for (int32_t i = 0; i < Layout::tokens / 2; ++i) sums[i] = acc[i / (Layout::tokens / 4)][i % (Layout::tokens / 4)];
    if (segment == 0) {
      keep(sums);
    } else if (segment == 1) {
      add_kept(sums);
      keep(sums);
    } else if (segment == 2) {
      this->await_free(phase);
      this->for_sums([&](float& sum, int32_t i) { sum = sums[i]; });
    } else {
      this->for_sums([&](float& sum, int32_t i) { sums[i] = sum + sums[i]; });
      add_kept(sums);
      this->for_sums([&](float& sum, int32_t i) { sum = sums[i]; });
    }
  }

  __device__ __forceinline__ void consume() const {
    std::conditional_t<Layout::folds, Folded, Scaled> s;
    Places at;
    at.left = (segment_begin(4) - segment_begin(0)) * ((p.items - first_item() + p.item_stride - 1) / p.item_stride);
    begin(s, at);
    uint32_t phase = 0;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride, phase ^= 1) {
#pragma unroll 1
      for (int32_t segment = 0; segment < 4; ++segment) {
        Halves acc = {};
        multiply(acc, s, at, segment_begin(segment + 1) - segment_begin(segment));
        end(segment, acc, phase);
      }
      this->signal(Rings::ready);
      if (!this->last(item)) continue;
      grid_wait();
      this->template finish<true>(item, phase);
    }
  }
};

#endif

#if MR_HOPPER
template <int32_t T>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    tall_quants_product(const __grid_constant__ PrefillParams p, const __grid_constant__ TallQuantsMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = TallQuantsLayout<T>;
  extern __shared__ __align__(1024) uint8_t tall_memory[];
  constexpr int32_t kRegisters = 208, kSpareRegisters = 88;
  static_assert(kRegistersFit<kRegisters, kSpareRegisters>);
  TallQuantsBlock<T> block{{{p}, maps}};
  block.rank = static_cast<int32_t>(cluster_rank());
  block.warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);  // known to be one for all lanes
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  block.rows = kept_address(tall_memory);
  block.terms = block.rows + Layout::row_stages * Layout::rows;
  block.weights = block.terms + Layout::terms;
  block.headers = block.weights + Layout::weight_stages * Layout::weights;
  block.kept = block.headers + Layout::headers * Layout::header;
  block.join = block.kept + Layout::kept;
  block.joins = reinterpret_cast<float*>(tall_memory + (block.join - block.rows));
  block.full = block.join + Layout::join;
  block.empty = block.full + Layout::row_stages * 8;
  block.full_weights = block.empty + Layout::row_stages * 8;
  block.empty_weights = block.full_weights + Layout::weight_stages * 8;
  block.full_terms = block.empty_weights + Layout::weight_stages * 8;
  block.empty_terms = block.full_terms + 8;
  block.ready = block.empty_terms + 8;
  block.free = block.ready + 8;
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < Layout::row_stages; ++i) {
      barrier_init(block.full + i * 8, 1);
      barrier_init(block.empty + i * 8, 8);  // the warps that multiply
    }
    for (int32_t i = 0; i < Layout::weight_stages; ++i) {
      barrier_init(block.full_weights + i * 8, 1);
      barrier_init(block.empty_weights + i * 8, 8);
    }
    barrier_init(block.full_terms, 1);
    barrier_init(block.empty_terms, 8);
    barrier_init(block.ready, 8 * kTallCluster);
    barrier_init(block.free, kTallQuantsSpare * kTallCluster);
    barrier_init_fence();
  }
  cluster_sync();
  if (block.warp >= 8) {
    registers_down<kSpareRegisters>();
    if (block.warp == 8) {
      if (elected()) block.ask_weights();
    } else if (block.warp == 9) {
      if (elected()) block.ask_tokens();
    } else {
      grid_wait();
      grid_trigger();
      block.end_others();
    }
  } else {
    registers_up<kRegisters>();
    block.consume();
  }
  __syncwarp();
  cluster_sync();  // others may still read this block's sums
#endif
}

template <int32_t T>
PrefillKernel tall_quants_kernel_of() {
  return {reinterpret_cast<const void*>(&tall_quants_product<T>), TallQuantsLayout<T>::bytes, kPrefillThreads, kTallTokens};
}
#else
template <int32_t T>
PrefillKernel tall_quants_kernel_of() {
  return {};
}
#endif

}  // namespace mr::cuda
