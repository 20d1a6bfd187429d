// wide_kernel: the decode class of products by wgmma; see product.h for what it promises.
//
// A cluster of two blocks takes tiles of 64 rows by `tokens` tokens. Each of the four warpgroups that multiply has two of the
// eight segments of the columns, and rings of its own that two threads fill: of the panels' packed bytes, and of the tokens as
// swizzled rows of 128 bytes, by units of 64 inputs. Of a pair the first half of the rows is the gate's. wide_join.cuh adds the
// warpgroups' sums.
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/folded.cuh"
#include "kernels/linear/fragment.cuh"
#include "kernels/linear/prefill_kernel.cuh"
#include "kernels/linear/wide.h"
#include "kernels/linear/wide_join.cuh"

namespace mr::cuda {

template <int32_t T, class A, int32_t tokens_>
struct WideLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t tokens = tokens_, panels = kWidePanels;
  static constexpr bool folds = kFolds<T, A>;
  // A stage of weights is a group where blocks fold, else a unit; one of tokens is a unit.
  static constexpr int32_t stage_units = folds ? f.units : 1;
  static constexpr int32_t panel = stage_units * (f.quants + f.high + f.scales) + f.header;
  static constexpr int32_t weights = (panels * panel + 1023) / 1024 * 1024, rows = tokens * 128;
  static constexpr bool publishes = Format<T>::superblock && Format<T>::has_min;
  // What warps publish, or, of each warpgroup twice, the terms of tokens' sums as swizzled rows of 64 bytes.
  static constexpr int32_t terms = tokens * 64, exchange = folds ? 4 * terms : publishes ? 8 * 256 : 0;
  static constexpr int32_t blocks = wide_blocks(tokens, folds);
  static constexpr int32_t join = 2 * WideJoinLayout<tokens>::bytes;               // tiles alternate
  static constexpr int32_t barriers = folds ? 1024 : 512;
  // Of a warpgroup's rings. Where a stage of weights is a unit, one place counts for both.
  static constexpr int32_t room = (226 * 1024 / blocks - 1024 - exchange - join - barriers) / 2;
  static constexpr int32_t group_stages = tokens == 64 ? 3 : 4;
  static constexpr int32_t row_stages_that_fit = folds ? (room - group_stages * weights) / rows : room / (weights + rows);
  static constexpr int32_t row_stages = row_stages_that_fit > 12 ? 12 : row_stages_that_fit;
  static constexpr int32_t weight_stages = folds ? group_stages : row_stages;
  static constexpr int32_t ring = weight_stages * weights + row_stages * rows;
  static constexpr int32_t bytes = 2 * ring + exchange + join + barriers + 1024;
  static constexpr int32_t group_barriers = 2 * row_stages + (folds ? 2 * weight_stages : 0);
  static_assert(row_stages >= 2 && (2 * group_barriers + 2) * 8 <= barriers);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A, int32_t tokens>
struct WideBlock {
  using Layout = WideLayout<T, A, tokens>;
  using Header = GroupHeader<T, A>;
  using Sums = float[tokens / 2];
  static constexpr WeightFormat f = Format<T>::f;

  const PrefillParams& p;
  const void* map;
  // Shared memory addresses, of this warp's group: the rings, and their stages' barriers.
  uint32_t ring, rows, full, empty, full_weights, empty_weights;
  uint32_t exchange;
  int32_t rank, group, warp, lane;  // group: the warpgroup 0 or 1, or the one a warp fills the ring of

  __device__ __forceinline__ const DecodeTarget& target_of(int32_t tile, int32_t& within) const {
    const int32_t i = (p.count > 1 && tile >= p.targets[1].first_tile) + (p.count > 2 && tile >= p.targets[2].first_tile);
    within = tile - p.targets[i].first_tile;
    return p.targets[i];
  }

  // Segments are whole groups: the first unit of segment s, 0..8.
  __device__ __forceinline__ int32_t segment_begin(int32_t s) const { return p.groups * s / 8 * f.units; }

  __device__ __forceinline__ int32_t first_item() const { return static_cast<int32_t>(blockIdx.x) / kWideCluster; }

  template <int32_t stages>
  struct PlaceOf {
    int32_t stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
      if (++stage < stages) return;
      stage = 0;
      phase ^= 1;
    }
  };
  using Place = PlaceOf<Layout::row_stages>;
  using WeightPlace = PlaceOf<Layout::weight_stages>;

  __device__ __forceinline__ int32_t first_segment() const { return (rank * 2 + group) * 2; }

  // Panel 0..3 of an item.
  __device__ __forceinline__ const uint8_t* panel_of(int32_t item, int32_t index) const {
    const int32_t tile = item / p.token_tiles;
    if (p.pair) {
      const DecodeTarget& target = p.targets[index / 2];
      return target.data + min(tile * 2 + index % 2, target.panels - 1) * p.panel_bytes;
    }
    int32_t within;
    const DecodeTarget& target = target_of(tile, within);
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
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      const int32_t token0 = item % p.token_tiles * tokens;
#pragma unroll 1
      for (int32_t unit = begin; unit < end; ++unit, at.next()) {
        const uint32_t done = full + at.stage * 8;
        barrier_wait(empty + at.stage * 8, at.phase ^ 1);
        barrier_expect(done, Layout::rows);
        tensor_copy(rows + at.stage * Layout::rows, map, unit * kUnitCols, token0, done);
      }
    }
  }

  __device__ __forceinline__ static void add_scaled(Sums& acc, const Sums& c, float row_g, float row_g8) {
#pragma unroll
    for (int32_t i = 0; i < tokens / 2; ++i) acc[i] = fmaf(i % 4 < 2 ? row_g : row_g8, c[i], acc[i]);
  }

  __device__ __forceinline__ uint32_t panel_at(int32_t stage) const {
    return ring + stage * Layout::weights + warp % 4 * Layout::panel;
  }
  __device__ __forceinline__ uint64_t rows_at(const Place& at) const { return swizzled_rows(rows + at.stage * Layout::rows); }
  __device__ __forceinline__ void await(const Place& at) const { barrier_wait(full + at.stage * 8, at.phase); }
  __device__ __forceinline__ void release(uint32_t barriers, int32_t stage) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barriers + stage * 8);
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

  // The products of inputs [32 * half, 32 * half + 32) into c and, where there are mins, the sums of x into sums.
  template <int32_t half>
  __device__ __forceinline__ static void issue_half(Sums& c, Sums& sums, const uint32_t (&a)[4][1][4], uint64_t rows) {
    wgmma_fence();
    wgmma_m64<A, false>(c, a[half * 2][0], rows + half * 4);
    wgmma_m64<A>(c, a[half * 2 + 1][0], rows + half * 4 + 2);
    if constexpr (Format<T>::has_min) {
      constexpr uint32_t one = twice(std::is_same_v<A, __half> ? 0x3c00u : 0x3f80u);
      const uint32_t ones[4] = {one, one, one, one};
      wgmma_m64<A, false>(sums, ones, rows + half * 4);
      wgmma_m64<A>(sums, ones, rows + half * 4 + 2);
    }
    wgmma_commit();
  }

  template <int32_t half>
  __device__ __forceinline__ static void add_half(Sums& acc, const Sums& c, const Sums& sums, const UnitScales<T, A>& scales) {
    add_scaled(acc, c, scales.scale[0][half], scales.scale[1][half]);
    if constexpr (Format<T>::has_min) add_scaled(acc, sums, scales.min[0][half], scales.min[1][half]);
  }

  template <int32_t step>
  __device__ __forceinline__ static void multiply_sixteen(Sums& acc, UnitQuants<T, A, 1>& quants, const UnitScales<T, A>& scales,
                                                          uint64_t rows) {
    uint32_t a[1][4];
    Sums c;
    quants.template take<step>(a);
    wgmma_fence();
    wgmma_m64<A, false>(c, a[0], rows + step * 2);
    wgmma_commit();
    wgmma_wait<0>();
    add_scaled(acc, c, scales.scale[0][step % UnitScales<T, A>::blocks], scales.scale[1][step % UnitScales<T, A>::blocks]);
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
    if constexpr (T == kQ6_K) {
      multiply_sixteen<0>(acc, quants, scales, rows);
      multiply_sixteen<1>(acc, quants, scales, rows);
      multiply_sixteen<2>(acc, quants, scales, rows);
      multiply_sixteen<3>(acc, quants, scales, rows);
    } else {
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
  }

  // Eights of tokens whose sums this warp makes.
  static constexpr int32_t own_eights = (tokens + 31) / 32;

  // What lasts from a folded block's first unit to its last.
  struct Block {
    FoldedHeader header;
    InputSums inputs[own_eights];
    Sums products, min_products;
    uint32_t a[2][4][4];
  };

  // The products of unit u of a folded block, asynchronous; those of the unit before end, and its tokens are released.
  template <int32_t u>
  __device__ __forceinline__ void issue_folded(Block& block, WeightPlace& weights, Place& at, int32_t& before, uint32_t terms) const {
    const uint32_t panel = panel_at(weights.stage);
    if constexpr (u == 0) {
      barrier_wait(full_weights + weights.stage * 8, weights.phase);
      block.header.load(panel + Format<T>::header_plane, lane);
      for (InputSums& inputs : block.inputs) inputs.clear();
    }
    UnitQuants<T, A, 1> quants;
    quants.begin(panel + Format<T>::quants_at(u), panel + Format<T>::high_at(u), lane);
    uint32_t (&a)[4][4] = block.a[u % 2];
    uint32_t g = block.header.template scale<u * 2>(0, false), g8 = block.header.template scale<u * 2>(1, false);
    folded_fragment<T, 0>(quants, g, g8, a[0]);
    folded_fragment<T, 1>(quants, g, g8, a[1]);
    g = block.header.template scale<u * 2 + 1>(0, false);
    g8 = block.header.template scale<u * 2 + 1>(1, false);
    folded_fragment<T, 2>(quants, g, g8, a[2]);
    folded_fragment<T, 3>(quants, g, g8, a[3]);
    if constexpr (u == 3) {
      release(empty_weights, weights.stage);
      weights.next();
    }
    await(at);
    const int32_t stage = at.stage;
    wgmma_fence();
    wgmma_m64<A, u != 0>(block.products, a[0], rows_at(at));
#pragma unroll
    for (int32_t step = 1; step < 4; ++step) wgmma_m64<A>(block.products, a[step], rows_at(at) + step * 2);
    wgmma_commit();
    add_inputs<u>(block, rows + stage * Layout::rows, terms);
    if constexpr (u > 0) {
      wgmma_wait<1>();
      release(empty, before);
    }
    before = stage;
    at.next();
  }

  // Adds a unit's tokens to this warp's sums; after the last, to their terms.
  template <int32_t u>
  __device__ __forceinline__ void add_inputs(Block& block, uint32_t tile, uint32_t terms) const {
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
      if constexpr (u == 3) store_terms(block.inputs[i], terms + eight * 512);
    }
  }

  // Eight rows of terms: the three pieces of 16 bytes are the terms, the fourth stays zero.
  __device__ __forceinline__ void store_terms(const InputSums& inputs, uint32_t to) const {
    uint32_t terms[3];
    inputs.split(terms);
    const uint32_t row = to + lane / 4 * 64 + lane % 4 * 4;
#pragma unroll
    for (int32_t i = 0; i < 3; ++i) store_shared4(row + (i ^ (lane / 8)) * 16, terms[i]);
  }

  // Adds the products of a segment's `units` units. turn: which of its two tiles of terms the warpgroup uses next.
  __device__ __forceinline__ void multiply_folded(Sums& acc, WeightPlace& weights, Place& at, int32_t units, uint32_t& turn) const {
#pragma unroll 1
    for (int32_t unit = 0; unit < units; unit += 4, turn ^= 1) {
      const uint32_t terms = exchange + (group * 2 + turn) * Layout::terms;
      int32_t before = 0;
      Block block;
      issue_folded<0>(block, weights, at, before, terms);
      issue_folded<1>(block, weights, at, before, terms);
      issue_folded<2>(block, weights, at, before, terms);
      issue_folded<3>(block, weights, at, before, terms);
      shared_fence();
      named_barrier(1 + group, 128);
      const uint32_t mins[4] = {block.header.mins[0], block.header.mins[1], block.header.mins[0], block.header.mins[1]};
      wgmma_fence();
      wgmma_m64<__nv_bfloat16, false>(block.min_products, mins, swizzled_rows64(terms));
      wgmma_m64<__nv_bfloat16>(block.min_products, mins, swizzled_rows64(terms) + 2);
      wgmma_commit();
      wgmma_wait<1>();
      release(empty, before);
      wgmma_wait<0>();
#pragma unroll
      for (int32_t n = 0; n < tokens / 2; n += 4) block.header.add(acc + n, block.products + n, block.min_products + n);
    }
  }

  __device__ __forceinline__ void consume(WideJoin<A, tokens>& join) const {
    grid_wait();
    Place at;
    WeightPlace weights;
    Header header;
    uint32_t turn = 0;
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
          multiply_folded(segments[s], weights, at, end - begin, turn);
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
template <int32_t T, class A, int32_t tokens>
__global__ void __launch_bounds__(kPrefillThreads, wide_blocks(tokens, kFolds<T, A>))
    wide_product(const __grid_constant__ PrefillParams p, const __grid_constant__ CUtensorMap map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = WideLayout<T, A, tokens>;
  extern __shared__ uint8_t memory[];
  const uint32_t ring = (shared_address(memory) + 1023) & ~1023u;
  WideBlock<T, A, tokens> block{p, &map};
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
    // The cluster's warps, and one that says how many bytes come.
    if (threadIdx.x == 0) {
      barrier_init(join.ready, 8 * kWideCluster + 1);
      barrier_init(join.ready + 8, 8 * kWideCluster + 1);
    }
    barrier_init_fence();
  }
  if constexpr (kFolds<T, A>) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * 4; i < Layout::exchange; i += kPrefillThreads * 4) {
      store_shared4(block.exchange + i, 0);
    }
    shared_fence();
  }
  cluster_sync();
  if (block.warp >= 8) {
    registers_down<Layout::blocks == 2 ? 32 : 40>();
    if (block.warp < 10) {
      if (block.lane == 0) block.ask_weights();
    } else {
      grid_wait();
      grid_trigger();
      if (block.lane == 0) block.ask_tokens();
    }
  } else {
    registers_up<Layout::blocks == 2 ? 104 : 232>();
    block.consume(join);
  }
#endif
}

template <int32_t T, class A, int32_t tokens>
PrefillKernel wide_kernel_of() {
  return {reinterpret_cast<const void*>(&wide_product<T, A, tokens>), WideLayout<T, A, tokens>::bytes, kPrefillThreads, tokens};
}
#else
template <int32_t T, class A, int32_t tokens>
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
  }
  return {};
}

}  // namespace mr::cuda
