// wide_kernel: the decode class of products by wgmma; see product.h for what it promises.
//
// A cluster of two blocks takes tiles of 64 rows by `tokens` tokens, or one tile of kWideMost. Each of the four warpgroups that
// multiply has two of the eight segments of the columns, and rings of its own that two threads fill (wide_rings.cuh). Of a pair
// the first half of the rows is the gate's. wide_join.cuh adds the warpgroups' sums.
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/fragment.cuh"
#include "kernels/linear/prefill_layout.cuh"
#include "kernels/linear/wide_folded.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A, int32_t tokens, bool given>
struct WideBlock : WideFolded<T, A, tokens, given> {
  using Rings = WideRings<T, A, tokens, given>;
  using typename Rings::Layout;
  using typename Rings::Place;
  using typename WideFolded<T, A, tokens, given>::Places;
  using Header = GroupHeader<T, A>;
  using Sums = float[tokens / 2];
  using Rings::await, Rings::first_item, Rings::first_segment, Rings::panel_at, Rings::release, Rings::rows_at, Rings::segment_begin;
  using Rings::empty, Rings::exchange, Rings::f, Rings::lane, Rings::p, Rings::warp;

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

  // Adds the products of `units` units of float weights; a unit's fragments are loaded while those before multiply.
  __device__ __forceinline__ void multiply_floats(Sums& acc, Place& at, int32_t units) const {
    if (units == 0) return;
    uint32_t a[2][4][4];
    await(at);
    load_floats(a[0], panel_at(at.stage));
#pragma unroll 1
    for (int32_t unit = 0; unit < units; unit += 2) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        if (unit + i >= units) break;
        const Place now = at;
        wgmma_fence();
#pragma unroll
        for (int32_t step = 0; step < 4; ++step) wgmma_m64<A>(acc, a[i][step], rows_at(now) + step * 2);
        wgmma_commit();
        at.next();
        if (unit + i + 1 < units) {
          await(at);
          load_floats(a[1 - i], panel_at(at.stage));
        }
        wgmma_wait<0>();
        release(empty, now.stage);
      }
    }
  }

  // The products of inputs [32 * half, 32 * half + 32) into c, and the sums of x, which mins multiply, into sums.
  template <int32_t half>
  __device__ __forceinline__ static void issue_half(Sums& c, Sums& sums, const uint32_t (&a)[4][1][4], uint64_t rows) {
    wgmma_fence();
    wgmma_m64<A, false>(c, a[half * 2][0], rows + half * 4);
    wgmma_m64<A>(c, a[half * 2 + 1][0], rows + half * 4 + 2);
    constexpr uint32_t one = twice(std::is_same_v<A, __half> ? 0x3c00u : 0x3f80u);
    const uint32_t ones[4] = {one, one, one, one};
    wgmma_m64<A, false>(sums, ones, rows + half * 4);
    wgmma_m64<A>(sums, ones, rows + half * 4 + 2);
    wgmma_commit();
  }

  template <int32_t half>
  __device__ __forceinline__ static void add_half(Sums& acc, const Sums& c, const Sums& sums, const UnitScales<T, A>& scales) {
    add_scaled(acc, c, scales.scale[0][half], scales.scale[1][half]);
    add_scaled(acc, sums, scales.min[0][half], scales.min[1][half]);
  }

  // A unit of blocks without mins, of 32 inputs or of 16, is as many parts.
  static constexpr int32_t parts = UnitScales<T, A>::blocks, steps = 4 / parts;

  // What lasts from a segment's first unit to its last, where blocks without mins are scaled one by one.
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

  // Begins unit u of a group, which has come, and unpacks its first part.
  __device__ __forceinline__ void begin_unit(Scaled& s, uint32_t panel, int32_t u) const {
    if (u == 0) s.header.load(panel + f.quants + f.high + f.scales, lane);
    s.quants.begin(panel, panel + f.quants, lane);
    s.scales.load(panel + f.quants + f.high, s.header, lane);
    unpack<0>(s);
  }

  // The products of a part, asynchronous.
  template <int32_t part>
  __device__ __forceinline__ static void issue_part(const Scaled& s, Sums& c, uint64_t rows) {
    wgmma_fence();
    wgmma_m64<A, false>(c, s.a[part % 2][0][0], rows + part * steps * 2);
    if constexpr (steps == 2) wgmma_m64<A>(c, s.a[part % 2][1][0], rows + part * steps * 2 + 2);
    wgmma_commit();
  }

  // Adds the products of the units [begin, end), of which the first is a group's. While a part is multiplied, the one before it is
  // added and the one behind it unpacked.
  __device__ __forceinline__ void multiply_scaled(Sums& acc, Place& at, int32_t begin, int32_t end) const {
    if (begin == end) return;
    Scaled s;
    await(at);
    begin_unit(s, panel_at(at.stage), 0);
#pragma unroll 1
    for (int32_t unit = begin; unit < end; ++unit) {
      Sums c[2];
      float factors[parts][2];
#pragma unroll
      for (int32_t part = 0; part < parts; ++part) {
        factors[part][0] = s.scales.scale[0][part];
        factors[part][1] = s.scales.scale[1][part];
      }
      const int32_t stage = at.stage;
      const uint64_t rows = rows_at(at);
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
      at.next();
      if (unit + 1 < end) {
        await(at);
        begin_unit(s, panel_at(at.stage), (unit + 1) % f.units);
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
    quants.template take<1>(a[1]);
    issue_half<0>(c, sums, a, rows);
    quants.template take<2>(a[2]);
    quants.template take<3>(a[3]);
    wgmma_wait<0>();
    add_half<0>(acc, c, sums, scales);
    issue_half<1>(c, sums, a, rows);
    wgmma_wait<0>();
    add_half<1>(acc, c, sums, scales);
  }

  __device__ __forceinline__ void consume(WideJoin<A, tokens>& join) const {
    grid_wait();
    Places places;
    Place& at = places.rows;
    Header header;
    // A tile is ended when the next one's sums are there: what the cluster sends arrives meanwhile.
    for (int32_t item = first_item();; item += p.item_stride) {
      Sums segments[2] = {};
#pragma unroll
      for (int32_t s = 0; s < 2; ++s) {
        if (item >= p.items) break;
        const int32_t begin = segment_begin(first_segment() + s), end = segment_begin(first_segment() + s + 1);
        if constexpr (Format<T>::is_float) {
          multiply_floats(segments[s], at, end - begin);
        } else if constexpr (Layout::folds) {
          this->multiply_folded(segments[s], places, end - begin);
        } else if constexpr (!Format<T>::has_min) {
          multiply_scaled(segments[s], at, begin, end);
        } else {
#pragma unroll 1
          for (int32_t unit = begin; unit < end; ++unit) {
            await(at);
            multiply_quants(segments[s], header, panel_at(at.stage), rows_at(at), unit);
            release(empty, at.stage);
            at.next();
          }
        }
      }
      if (item != first_item()) join.end(item - p.item_stride);
      if (item >= p.items) return;
#pragma unroll
      for (int32_t i = 0; i < tokens / 2; ++i) segments[0][i] = segments[0][i] + segments[1][i];
      join.send(segments[0]);
    }
  }
};

#endif

#if MR_HOPPER
template <int32_t T, class A, int32_t tokens, bool given>
__global__ void __launch_bounds__(kPrefillThreads, wide_blocks(tokens, kFolds<T, A>))
    wide_product(const __grid_constant__ PrefillParams p, const __grid_constant__ WideMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = WideLayout<T, A, tokens, given>;
  extern __shared__ uint8_t memory[];
  const uint32_t ring = (kept_address(memory) + 1023) & ~1023u;
  WideBlock<T, A, tokens, given> block{{{p, maps}}};
  block.rank = static_cast<int32_t>(cluster_rank());
  block.warp = __shfl_sync(0xffffffffu, static_cast<int32_t>(threadIdx.x) / 32, 0);  // known to be one for all lanes
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  block.group = block.warp < 8 ? block.warp / 4 : block.warp % 2;
  WideJoin<A, tokens> join{p};
  join.memory = ring + 2 * Layout::ring;
  join.rank = block.rank;
  join.group = block.group;
  join.warp = block.warp;
  join.lane = block.lane;
  block.exchange = join.memory + Layout::join;
  join.ready = block.exchange + Layout::exchange;
  const uint32_t barriers = join.ready + 16;
  block.ring = ring + block.group * Layout::ring;
  block.rows = block.ring + Layout::weight_stages * Layout::weights;
  block.full = barriers + block.group * Layout::group_barriers * 8;
  block.empty = block.full + Layout::row_stages * 8;
  block.full_weights = Layout::folds ? block.empty + Layout::row_stages * 8 : block.full;
  block.empty_weights = Layout::folds ? block.full_weights + Layout::weight_stages * 8 : block.empty;
  block.full_terms = block.empty_weights + Layout::weight_stages * 8;
  block.empty_terms = block.full_terms + 2 * 8;
  if (threadIdx.x % 128 == 0 && threadIdx.x < 256) {
    // Of a ring that weights and tokens share, both fill a stage; the four warps of a warpgroup empty it.
    for (int32_t i = 0; i < Layout::row_stages; ++i) {
      barrier_init(block.full + i * 8, Layout::folds ? 1 : 2);
      barrier_init(block.empty + i * 8, 4);
    }
    for (int32_t i = 0; Layout::folds && i < Layout::weight_stages; ++i) {
      barrier_init(block.full_weights + i * 8, 1);
      barrier_init(block.empty_weights + i * 8, 4);
    }
    for (int32_t i = 0; given && i < 2; ++i) {
      barrier_init(block.full_terms + i * 8, 1);
      barrier_init(block.empty_terms + i * 8, 4);
    }
    // The cluster's warps, and one that says how many bytes come.
    if (threadIdx.x == 0) {
      barrier_init(join.ready, 8 * kWideCluster + 1);
      barrier_init(join.ready + 8, 8 * kWideCluster + 1);
    }
    barrier_init_fence();
  }
  if constexpr (kFolds<T, A> && !given) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * 4; i < Layout::exchange; i += kPrefillThreads * 4) {
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
      if (elected()) block.ask_weights();
    } else {
      grid_wait();
      grid_trigger();
      if (elected()) block.ask_tokens();
    }
  } else {
    registers_up<kRegisters>();
    block.consume(join);
  }
#endif
}

template <int32_t T, class A, int32_t tokens, bool given = false>
PrefillKernel wide_kernel_of() {
  return {reinterpret_cast<const void*>(&wide_product<T, A, tokens, given>), WideLayout<T, A, tokens, given>::bytes, kPrefillThreads,
          tokens};
}
#else
template <int32_t T, class A, int32_t tokens, bool given = false>
PrefillKernel wide_kernel_of() {
  return {};
}
#endif

template <int32_t T, class A>
PrefillKernel wide_kernel_for(int32_t form) {
  if constexpr (Terms<T, A>::weights == 1 && Terms<T, A>::inputs == 1) {
    switch (form) {
      case 0: return wide_kernel_of<T, A, 8>();
      case 1: return wide_kernel_of<T, A, 16>();
      case 2: return wide_kernel_of<T, A, 32>();
      case 3: return wide_kernel_of<T, A, 64>();
    }
    if constexpr (Format<T>::is_float) {
      if (form == kWideSingle) return wide_kernel_of<T, A, kWideMost>();
    }
    if constexpr (kFolds<T, A>) {
      if (form == kWideGiven) return wide_kernel_of<T, A, 64, true>();
    }
  }
  return {};
}

}  // namespace mr::cuda
