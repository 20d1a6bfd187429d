// wide_kernel: the decode class of products by wgmma; see product.h for what it promises.
//
// A cluster of two blocks takes tiles of 64 rows by `tokens` tokens. Each of the four warpgroups that multiply has two of the
// eight segments of the columns, and a ring of its own that one warp fills: a stage is one unit of 64 inputs, the panels'
// packed bytes and the tokens as swizzled rows of 128 bytes. Of a pair the first half of the rows is the gate's. The
// warpgroups' sums meet in shared memory, and each block joins and ends half of the rows.
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/fragment.cuh"
#include "kernels/linear/prefill_kernel.cuh"
#include "kernels/linear/wide.h"

namespace mr::cuda {

template <int32_t T, int32_t tokens_>
struct WideLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t tokens = tokens_, panels = kWidePanels;
  static constexpr int32_t panel = f.quants + f.high + f.scales + f.header;
  static constexpr int32_t weights = (panels * panel + 1023) / 1024 * 1024, rows = tokens * 128;
  static constexpr int32_t stage = weights + rows;
  static constexpr bool publishes = Format<T>::superblock && Format<T>::has_min;
  static constexpr int32_t exchange = publishes ? 8 * 256 : 0;
  static constexpr int32_t join_stride = panels * kPanelRows + 4;    // floats; a token's column
  static constexpr int32_t join_plane = tokens * join_stride;        // of a warpgroup
  static constexpr int32_t join = 2 * join_plane * 4;                // twice: tiles alternate
  static constexpr int32_t barriers = 512;
  static constexpr int32_t stages_that_fit = (226 * 1024 - exchange - 2 * join - barriers) / (2 * stage);
  static constexpr int32_t stages = stages_that_fit > 12 ? 12 : stages_that_fit;  // of a warpgroup's ring
  static constexpr int32_t bytes = 2 * stages * stage + exchange + 2 * join + barriers + 1024;
  static_assert(stages >= 2 && (4 * stages + 1) * 8 <= barriers);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, class A, int32_t tokens>
struct WideBlock {
  using Layout = WideLayout<T, tokens>;
  using Header = GroupHeader<T, A>;
  using Sums = float[tokens / 2];
  static constexpr WeightFormat f = Format<T>::f;

  const PrefillParams& p;
  const void* map;
  uint32_t ring, full, empty;  // shared memory addresses, of this warp's group
  uint32_t exchange, ready;
  float* joins;
  int32_t rank, group, warp, lane;  // group: the warpgroup 0 or 1, or the one a warp fills the ring of

  __device__ __forceinline__ const DecodeTarget& target_of(int32_t tile, int32_t& within) const {
    const int32_t i = (p.count > 1 && tile >= p.targets[1].first_tile) + (p.count > 2 && tile >= p.targets[2].first_tile);
    within = tile - p.targets[i].first_tile;
    return p.targets[i];
  }

  // Segments are whole groups: the first unit of segment s, 0..8.
  __device__ __forceinline__ int32_t segment_begin(int32_t s) const { return p.groups * s / 8 * f.units; }

  __device__ __forceinline__ int32_t first_item() const { return static_cast<int32_t>(blockIdx.x) / kWideCluster; }

  struct Place {
    int32_t stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
      if (++stage < Layout::stages) return;
      stage = 0;
      phase ^= 1;
    }
  };

  __device__ __forceinline__ int32_t first_segment() const { return (rank * 2 + group) * 2; }

  // Lane l asks for plane l/4 of panel l%4: quants, high, scales, header.
  __device__ __forceinline__ const uint8_t* panel_of(int32_t item) const {
    const int32_t tile = item / p.token_tiles, index = lane % 4;
    if (p.pair) {
      const DecodeTarget& target = p.targets[index / 2];
      return target.data + min(tile * 2 + index % 2, target.panels - 1) * p.panel_bytes;
    }
    int32_t within;
    const DecodeTarget& target = target_of(tile, within);
    return target.data + min(within * 4 + index, target.panels - 1) * p.panel_bytes;
  }

  __device__ __forceinline__ void ask_weights(const uint8_t* panel, int32_t unit, int32_t stage) const {
    constexpr int32_t each = f.quants + f.high + f.scales;
    const int32_t plane = lane / 4, u = unit % f.units;
    const uint32_t done = full + stage * 8, to = ring + stage * Layout::stage + lane % 4 * Layout::panel;
    if (lane == 0) barrier_expect(done, Layout::rows + 4 * (each + (u == 0 ? f.header : 0)));
    __syncwarp();
    const uint8_t* from = panel + static_cast<int64_t>(unit / f.units) * Format<T>::group_bytes;
    if constexpr (f.units == 1) {
      if (plane == 0) bulk_copy(to, from, each, done);
    } else {
      if (plane == 0) bulk_copy(to, from + u * f.quants, f.quants, done);
      if (f.high > 0 && plane == 1) bulk_copy(to + f.quants, from + Format<T>::high_at(u), f.high, done);
      if (f.scales > 0 && plane == 2) bulk_copy(to + f.quants + f.high, from + Format<T>::scales_at(u), f.scales, done);
      if (plane == 3 && u == 0) bulk_copy(to + each, from + Format<T>::header_plane, f.header, done);
    }
  }

  __device__ __forceinline__ void ask_tokens(int32_t item, int32_t unit, int32_t stage) const {
    if (lane != 0) return;
    tensor_copy(ring + stage * Layout::stage + Layout::weights, map, unit * kUnitCols, item % p.token_tiles * tokens, full + stage * 8);
  }

  __device__ __forceinline__ void produce() const {
    // The ring's first round asks for weights before the kernel ahead has ended, and for tokens after.
    const int32_t begin = segment_begin(first_segment()), end = segment_begin(first_segment() + 2);
    const int32_t units = end - begin;
    int32_t early = 0;
    for (int32_t item = first_item(); item < p.items && early < Layout::stages && units > 0; item += p.item_stride) {
      const uint8_t* panel = panel_of(item);
      for (int32_t unit = begin; unit < end && early < Layout::stages; ++unit) ask_weights(panel, unit, early++);
    }
    grid_wait();
    grid_trigger();
    Place at;
    int32_t asked = 0;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      const uint8_t* panel = panel_of(item);
      for (int32_t unit = begin; unit < end; ++unit, ++asked, at.next()) {
        if (asked >= early) {
          barrier_wait(empty + at.stage * 8, at.phase ^ 1);
          ask_weights(panel, unit, at.stage);
        }
        ask_tokens(item, unit, at.stage);
      }
    }
  }

  __device__ __forceinline__ static void add_scaled(Sums& acc, const Sums& c, float row_g, float row_g8) {
#pragma unroll
    for (int32_t i = 0; i < tokens / 2; ++i) acc[i] = fmaf(i % 4 < 2 ? row_g : row_g8, c[i], acc[i]);
  }

  __device__ __forceinline__ uint32_t panel_at(const Place& at) const {
    return ring + at.stage * Layout::stage + warp % 4 * Layout::panel;
  }
  __device__ __forceinline__ uint64_t rows_at(const Place& at) const {
    return swizzled_rows(ring + at.stage * Layout::stage + Layout::weights);
  }
  __device__ __forceinline__ void await(const Place& at) const { barrier_wait(full + at.stage * 8, at.phase); }
  __device__ __forceinline__ void release(const Place& at) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + at.stage * 8);
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
    load_floats(a[0], panel_at(at));
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
          load_floats(a[1 - i], panel_at(at));
        }
        wgmma_wait<0>();
        release(now);
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

  __device__ __forceinline__ void consume() const {
    grid_wait();
    Place at;
    Header header;
    int32_t buffer = 0;
    uint32_t ready_phase = 0;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      Sums segments[2] = {};
#pragma unroll
      for (int32_t s = 0; s < 2; ++s) {
        const int32_t begin = segment_begin(first_segment() + s), end = segment_begin(first_segment() + s + 1);
        if constexpr (Format<T>::is_float) {
          multiply_floats(segments[s], at, end - begin);
        } else {
#pragma unroll 1
          for (int32_t unit = begin; unit < end; ++unit) {
            await(at);
            multiply_quants(segments[s], header, panel_at(at), rows_at(at), unit);
            release(at);
            at.next();
          }
        }
      }
      float* join = joins + buffer * (Layout::join / 4);
      store(segments, join + group * Layout::join_plane);
      __syncwarp();
      if (lane < kWideCluster) barrier_publish_at(ready, lane);
      barrier_wait_cluster(ready, ready_phase);
      ready_phase ^= 1;
      buffer ^= 1;
      finish(item, shared_address(join));
    }
  }

  // The sum of the pair of segments: column = token, then row.
  __device__ __forceinline__ void store(const Sums (&segments)[2], float* join) const {
    float* at = join + lane % 4 * 2 * Layout::join_stride + warp % 4 * kPanelRows + lane / 4;
#pragma unroll
    for (int32_t n = 0; n < tokens / 8; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        at[(n * 8 + i % 2) * Layout::join_stride + i / 2 * 8] = segments[0][n * 4 + i] + segments[1][n * 4 + i];
      }
    }
  }

  __device__ __forceinline__ static float joined(uint32_t join, int32_t at) {
    float v[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) v[i] = load_remote(join + (i % 2 * Layout::join_plane + at) * 4, i / 2);
    return (v[0] + v[1]) + (v[2] + v[3]);
  }

  // This block's half of the tile's rows.
  __device__ __forceinline__ void finish(int32_t item, uint32_t join) const {
    const int32_t tile = item / p.token_tiles, token0 = item % p.token_tiles * tokens, thread = warp * 32 + lane;
    const int32_t columns = min(p.tokens - token0, tokens);
    if (p.pair) {
      const DecodeTarget& target = p.targets[0];
      constexpr int32_t most = (16 * tokens + 255) / 256;
#pragma unroll
      for (int32_t j = 0; j < most; ++j) {
        const int32_t i = thread + j * 256, local = rank * 16 + i % 16, column = i / 16, row = tile * 32 + local;
        if (column >= columns || row >= target.rows) continue;
        float gate = joined(join, column * Layout::join_stride + local);
        float up = joined(join, column * Layout::join_stride + 32 + local);
        if (target.bias != nullptr) gate += target.bias[row];
        if (p.targets[1].bias != nullptr) up += p.targets[1].bias[row];
        static_cast<A*>(target.out)[(token0 + column) * target.out_stride + row] = A(gate / (1.0f + expf(-gate)) * up);
      }
      return;
    }
    int32_t within;
    const DecodeTarget& target = target_of(tile, within);
    constexpr int32_t most = (32 * tokens + 255) / 256;
    const int32_t local = rank * 32 + thread % 32, row = within * (kWidePanels * kPanelRows) + local;
    if (row >= target.rows) return;
    const float bias = target.bias == nullptr ? 0 : target.bias[row];
    float before[most];
    if (p.end == ProductEnd::kAddF32) {
#pragma unroll
      for (int32_t j = 0; j < most; ++j) {
        const int32_t column = thread / 32 + j * 8;
        before[j] = column < columns ? static_cast<const float*>(target.out)[(token0 + column) * target.out_stride + row] : 0;
      }
    }
#pragma unroll
    for (int32_t j = 0; j < most; ++j) {
      const int32_t column = thread / 32 + j * 8;
      if (column >= columns) continue;
      float y = joined(join, column * Layout::join_stride + local);
      if (target.bias != nullptr) y += bias;
      const int64_t at = (token0 + column) * target.out_stride + row;
      switch (p.end) {
        case ProductEnd::kStoreF32: static_cast<float*>(target.out)[at] = y; break;
        case ProductEnd::kAddF32: static_cast<float*>(target.out)[at] = before[j] + y; break;
        case ProductEnd::kStoreAct: static_cast<A*>(target.out)[at] = A(y); break;
        case ProductEnd::kSwiGLU: break;
      }
    }
  }
};

#endif

#if MR_HOPPER
template <int32_t T, class A, int32_t tokens>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    wide_product(const __grid_constant__ PrefillParams p, const __grid_constant__ CUtensorMap map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = WideLayout<T, tokens>;
  extern __shared__ uint8_t memory[];
  const uint32_t base = shared_address(memory), ring = (base + 1023) & ~1023u;
  uint8_t* behind = memory + (ring - base) + 2 * Layout::stages * Layout::stage;
  WideBlock<T, A, tokens> block{p, &map};
  block.rank = static_cast<int32_t>(cluster_rank());
  block.warp = static_cast<int32_t>(threadIdx.x) / 32;
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  block.group = block.warp < 8 ? block.warp / 4 : block.warp % 2;
  block.joins = reinterpret_cast<float*>(behind);
  block.exchange = shared_address(behind) + 2 * Layout::join;
  block.ready = block.exchange + Layout::exchange;
  const uint32_t barriers = block.ready + 8;
  block.ring = ring + block.group * Layout::stages * Layout::stage;
  block.full = barriers + block.group * Layout::stages * 16;
  block.empty = block.full + Layout::stages * 8;
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < 4 * Layout::stages; ++i) barrier_init(barriers + i * 8, i / Layout::stages % 2 == 0 ? 1 : 4);
    barrier_init(block.ready, 8 * kWideCluster);
    barrier_init_fence();
  }
  cluster_sync();
  if (block.warp >= 8) {
    registers_down<40>();
    if (block.warp < 10) block.produce();
  } else {
    registers_up<232>();
    block.consume();
  }
  __syncwarp();
  cluster_sync();  // others may still read this block's sums
#endif
}

template <int32_t T, class A, int32_t tokens>
PrefillKernel wide_kernel_of() {
  return {reinterpret_cast<const void*>(&wide_product<T, A, tokens>), WideLayout<T, tokens>::bytes, kPrefillThreads, tokens};
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
      case 0: return wide_kernel_of<T, A, 16>();
      case 1: return wide_kernel_of<T, A, 32>();
      case 2: return wide_kernel_of<T, A, 64>();
    }
  }
  return {};
}

}  // namespace mr::cuda
