// prefill_kernel: the prefill class of products on devices with wgmma; see product.h for what it promises.
//
// A block takes tiles of 128 rows by `tokens` tokens: two warpgroups of 64 rows, and one that asks for data. A stage of
// its ring is one unit of 64 inputs: the panels' packed bytes, and the tokens as rows of 128 bytes, swizzled, which a
// cluster's two blocks fetch by halves for both. Weights become A fragments in registers, scaled in f32 and rounded once to
// the activation type; sums are one f32 chain in ascending order. Of a pair the first warpgroup holds the gate's rows and the
// second the up's.
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/fragment.cuh"
#include "kernels/linear/prefill.h"
#include "kernels/linear/targets.cuh"
#include "kernels/linear/wgmma.cuh"

#if MR_HOPPER
#include <cuda.h>
#endif

namespace mr::cuda {

template <int32_t T, int32_t tokens_>
struct PrefillLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t tokens = tokens_, panels = kPrefillRows / kPanelRows;
  static constexpr int32_t panel = f.quants + f.high + f.scales + f.header;  // one unit's planes, then the header
  static constexpr int32_t weights = (panels * panel + 1023) / 1024 * 1024, rows = tokens * 128;
  static constexpr int32_t stage = weights + rows;
  // Units of 2048 bytes come four panels at a time, since the unit that copies takes about as long for a small piece as for a large one.
  static constexpr bool boxed = f.units == 1 && panel == 2048;
  static constexpr bool publishes = Format<T>::superblock && Format<T>::has_min;
  static constexpr int32_t exchange = publishes ? 8 * 256 : 0;  // of each warp's own
  static constexpr int32_t pair_stride = 36, pair_floats = 64 * pair_stride;  // 64 rows of 32 tokens
  static constexpr int32_t pairs = 2 * pair_floats * 4;                       // one for each warpgroup to give through
  static constexpr int32_t barriers = 256;
  static constexpr int32_t stages_that_fit = (226 * 1024 - exchange - pairs - barriers) / stage;
  static constexpr int32_t stages = stages_that_fit > 8 ? 8 : stages_that_fit;
  static constexpr int32_t bytes = stages * stage + exchange + pairs + barriers + 1024;  // 1024: to align the ring
};

#if MR_HOPPER
struct PrefillMaps {
  CUtensorMap tokens;      // boxes of one unit's columns and a block's share of a tile's tokens
  CUtensorMap weights[3];  // of each target whose units are boxed: boxes of one unit of four panels, in eight bytes
};
#endif

constexpr int32_t kPrefillThreads = 3 * 128;  // the third warpgroup gives its registers away and asks for data with one warp

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Both approximations are good to 2^-20 where the result is not lost in its rounding.
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// One unit's weights of a panel as A fragments of the activation type.
template <int32_t T, class A>
struct RoundedUnit {
  static constexpr bool same = (T == kF16 && std::is_same_v<A, __half>) || (T == kBF16 && std::is_same_v<A, __nv_bfloat16>);

  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    if constexpr (std::is_same_v<A, __half>) return bits_of(__floats2half2_rn(low, high));
    else return bits_of(__floats2bfloat162_rn(low, high));
  }

  __device__ __forceinline__ static float2 floats(uint32_t pair) {
    if constexpr (std::is_same_v<A, __half>) return half_pair(pair);
    else return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }

  template <int32_t step, class Quants, class Scales>
  __device__ __forceinline__ static void take(Quants& quants, const Scales& scales, uint32_t unit, int32_t lane, uint32_t (&a)[4]) {
    if constexpr (T == kF32) {
      const uint4 g = load_shared16(unit + (step * 2) * 512 + lane * 16), g8 = load_shared16(unit + (step * 2 + 1) * 512 + lane * 16);
      a[0] = pack(__uint_as_float(g.x), __uint_as_float(g.y));
      a[1] = pack(__uint_as_float(g8.x), __uint_as_float(g8.y));
      a[2] = pack(__uint_as_float(g.z), __uint_as_float(g.w));
      a[3] = pack(__uint_as_float(g8.z), __uint_as_float(g8.w));
    } else if constexpr (Format<T>::is_float) {
      const uint4 v = load_shared16(unit + step * 512 + lane * 16);
      const uint32_t r[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        if constexpr (same) {
          a[i] = r[i];
        } else if constexpr (T == kF16) {
          const float2 w = half_pair(r[i]);
          a[i] = pack(w.x, w.y);
        } else {
          a[i] = pack(__uint_as_float(r[i] << 16), __uint_as_float(r[i] & 0xffff0000u));
        }
      }
    } else {
      constexpr int32_t block = T == kQ6_K ? step : step / 2;
      uint32_t q[1][4];
      quants.template take<step>(q);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float2 w = floats(q[0][i]);
        const float scale = scales.scale[i & 1][block];
        if constexpr (Format<T>::has_min) {
          const float min = scales.min[i & 1][block];
          a[i] = pack(fmaf(scale, w.x, min), fmaf(scale, w.y, min));
        } else {
          a[i] = pack(scale * w.x, scale * w.y);
        }
      }
    }
  }
};

template <int32_t T, class A, int32_t tokens>
struct PrefillBlock {
  using Layout = PrefillLayout<T, tokens>;
  using Header = GroupHeader<T, A>;
  static constexpr WeightFormat f = Format<T>::f;

  const PrefillParams& p;
  const PrefillMaps& maps;
  uint32_t ring, exchange, full, empty;  // shared memory addresses; full and empty: one barrier a stage
  float* pairs;
  uint32_t rank;
  int32_t warp, lane;

  // This block's tile of rows, and the first of its tokens. Items go through all tokens for a few pairs of row tiles at a
  // time, so that what the device works on at once is nearly square.
  __device__ __forceinline__ void locate(int32_t item, int32_t& tile, int32_t& token0) const {
    const int32_t band = item / (p.band * p.token_tiles), within = item % (p.band * p.token_tiles);
    const int32_t width = min(p.band, p.row_pairs - band * p.band);
    tile = (band * p.band + within % width) * kPrefillCluster + static_cast<int32_t>(rank);
    token0 = within / width * tokens;
  }

  // A unit's weights of this block's tile of rows.
  //
  // Boxed: two copies of four panels, of a pair the gate's and the up's, with zeros past the last. Otherwise lane l asks for plane l/8
  // of panel l%8: quants, high, scales, header; panels past the last are the last.
  struct Weights {
    const uint8_t* panel;            // this lane's
    const CUtensorMap* map[2];
    int32_t first[2];
  };
  __device__ __forceinline__ Weights weights_of(int32_t tile) const {
    Weights w{};
    if constexpr (Layout::boxed) {
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        const int32_t i = p.pair ? half : target_index(p, tile);
        w.map[half] = &maps.weights[i];
        w.first[half] = p.pair ? tile * 4 : (tile - p.targets[i].first_tile) * 8 + half * 4;
      }
    } else {
      const int32_t panel_index = lane % 8;
      if (p.pair) {
        const DecodeTarget& target = p.targets[panel_index / 4];
        w.panel = target.data + min(tile * 4 + panel_index % 4, target.panels - 1) * p.panel_bytes;
      } else {
        int32_t within;
        const DecodeTarget& target = target_of(p, tile, within);
        w.panel = target.data + min(within * 8 + panel_index, target.panels - 1) * p.panel_bytes;
      }
    }
    return w;
  }
  __device__ __forceinline__ static constexpr int32_t weight_bytes(int32_t u) {
    return 8 * (f.quants + f.high + f.scales + (u == 0 ? f.header : 0));
  }
  __device__ __forceinline__ void ask_weights(const Weights& w, int32_t unit, uint32_t at, uint32_t done) const {
    if constexpr (Layout::boxed) {
      if (lane != 0) return;
#pragma unroll
      for (int32_t half = 0; half < 2; ++half)
        tensor_copy(at + half * 4 * Layout::panel, w.map[half], unit * (Layout::panel / 8), w.first[half], done);
    } else {
      const int32_t u = unit % f.units, plane = lane / 8;
      constexpr int32_t each = f.quants + f.high + f.scales;
      const uint8_t* from = w.panel + static_cast<int64_t>(unit / f.units) * Format<T>::group_bytes;
      const uint32_t to = at + lane % 8 * Layout::panel;
      if constexpr (f.units == 1) {
        if (plane == 0) bulk_copy(to, from, each, done);
      } else {
        if (plane == 0) bulk_copy(to, from + u * f.quants, f.quants, done);
        if (f.high > 0 && plane == 1) bulk_copy(to + f.quants, from + Format<T>::high_at(u), f.high, done);
        if (f.scales > 0 && plane == 2) bulk_copy(to + f.quants + f.high, from + Format<T>::scales_at(u), f.scales, done);
        if (plane == 3 && u == 0) bulk_copy(to + each, from + Format<T>::header_plane, f.header, done);
      }
    }
  }

  __device__ __forceinline__ void produce() const {
    constexpr int32_t half = tokens / kPrefillCluster;
    int32_t stage = 0;
    uint32_t phase = 0;
    for (int32_t item = static_cast<int32_t>(blockIdx.x) / kPrefillCluster; item < p.items; item += p.item_stride) {
      int32_t tile, token0;
      locate(item, tile, token0);
      const Weights weights = weights_of(min(tile, p.tiles - 1));
      for (int32_t unit = 0; unit < p.units; ++unit) {
        barrier_wait(empty + stage * 8, phase ^ 1);
        const uint32_t at = ring + stage * Layout::stage, done = full + stage * 8;
        if (lane == 0) barrier_expect(done, Layout::rows + weight_bytes(unit % f.units));
        __syncwarp();
        ask_weights(weights, unit, at, done);
        if (lane == 0) {
          tensor_copy(at + Layout::weights + rank * half * 128, &maps.tokens, unit * kUnitCols, token0 + static_cast<int32_t>(rank) * half,
                      done, (1 << kPrefillCluster) - 1);
        }
        if (++stage == Layout::stages) {
          stage = 0;
          phase ^= 1;
        }
      }
    }
  }

  // The A fragments of a unit.
  __device__ __forceinline__ void load(uint32_t (&a)[4][4], Header& header, uint32_t panel, int32_t unit) const {
    UnitQuants<T, A, 1> quants;
    UnitScales<T, A> scales;
    if constexpr (!Format<T>::is_float) {
      const uint32_t own = exchange + warp * 256;
      const int32_t u = unit % f.units;
      if (u == 0) header.load(panel + f.quants + f.high + f.scales, lane);
      if constexpr (Layout::publishes) {
        __syncwarp();
        header.template publish<1>(own, u, lane);
        __syncwarp();
      }
      quants.begin(panel, panel + f.quants, lane);
      scales.load(Layout::publishes ? own : panel + f.quants + f.high, header, lane);
    }
    using Unit = RoundedUnit<T, A>;
    Unit::template take<0>(quants, scales, panel, lane, a[0]);
    Unit::template take<1>(quants, scales, panel, lane, a[1]);
    Unit::template take<2>(quants, scales, panel, lane, a[2]);
    Unit::template take<3>(quants, scales, panel, lane, a[3]);
  }

  struct Place {
    int32_t stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
      if (++stage < Layout::stages) return;
      stage = 0;
      phase ^= 1;
    }
  };

  using Sums = float[tokens / 2];

  __device__ __forceinline__ void issue(Sums& sums, const uint32_t (&a)[4][4], int32_t stage) const {
    const uint64_t rows = swizzled_rows(ring + stage * Layout::stage + Layout::weights);
    wgmma_fence();
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) wgmma_m64<A>(sums, a[step], rows + step * 2);
    wgmma_commit();
  }

  __device__ __forceinline__ void release(int32_t stage) const {
    __syncwarp();
    if (lane < kPrefillCluster) barrier_arrive_at(empty + stage * 8, lane);
  }

  __device__ __forceinline__ void consume() const {
    Place at;
    Header header;
    const uint32_t panel = ring + warp * Layout::panel;
    for (int32_t item = static_cast<int32_t>(blockIdx.x) / kPrefillCluster; item < p.items; item += p.item_stride) {
      Sums sums = {};
      uint32_t a[2][4][4];
      barrier_wait(full + at.stage * 8, at.phase);
      load(a[0], header, panel + at.stage * Layout::stage, 0);
      for (int32_t unit = 0; unit < p.units; unit += 2) {
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
          if (unit + i >= p.units) break;
          const int32_t stage = at.stage;
          issue(sums, a[i], stage);
          at.next();
          // The next unit's fragments, while this one's products run.
          if (unit + i + 1 < p.units) {
            barrier_wait(full + at.stage * 8, at.phase);
            load(a[1 - i], header, panel + at.stage * Layout::stage, unit + i + 1);
          }
          wgmma_wait<0>();
          release(stage);
        }
      }
      finish(sums, item);
    }
  }

  __device__ __forceinline__ void finish(const Sums& sums, int32_t item) const {
    int32_t tile, token0;
    locate(item, tile, token0);
    const int32_t g = lane / 4, t = lane % 4, group = warp / 4;
    if (p.pair) {
      // Each warpgroup hands the other its sums of half the tokens, a chunk of 32 at a time, and ends those it keeps.
      const int32_t row = (tile * 4 + warp % 4) * kPanelRows + g;
      constexpr int32_t half = tokens / 16, chunk = half < 4 ? half : 4;  // in eights of tokens
      const int32_t at = ((warp % 4) * kPanelRows + g) * Layout::pair_stride + t * 2;
      float* give = pairs + group * Layout::pair_floats + at;
      const float* take = pairs + (1 - group) * Layout::pair_floats + at;
      if (group == 0) end_half<true, half, chunk>(sums, give, take, row, token0 + t * 2);
      else end_half<false, half, chunk>(sums, give, take, row, token0 + t * 2);
      return;
    }
    if (tile >= p.tiles) return;
    int32_t within;
    const DecodeTarget& target = target_of(p, tile, within);
    const int32_t row = (within * 8 + warp) * kPanelRows + g;
    switch (p.end) {
      case ProductEnd::kStoreF32: return end_rows<ProductEnd::kStoreF32>(target, sums, row, token0 + t * 2);
      case ProductEnd::kAddF32: return end_rows<ProductEnd::kAddF32>(target, sums, row, token0 + t * 2);
      case ProductEnd::kStoreAct: return end_rows<ProductEnd::kStoreAct>(target, sums, row, token0 + t * 2);
      case ProductEnd::kSwiGLU: return;
    }
  }

  // Rows row and row + 8, of every 8 tokens from `token` on two. What is added to is read for 32 elements at a time.
  template <ProductEnd kind>
  __device__ __forceinline__ void end_rows(const DecodeTarget& target, const Sums& sums, int32_t row, int32_t token) const {
    const bool has[2] = {row < target.rows, row + 8 < target.rows};
    float bias[2] = {0, 0};
    if (target.bias != nullptr) {
      if (has[0]) bias[0] = target.bias[row];
      if (has[1]) bias[1] = target.bias[row + 8];
    }
#pragma unroll
    for (int32_t n0 = 0; n0 < tokens / 8; n0 += 8) {
      float y[8][4];
#pragma unroll
      for (int32_t n = 0; n < 8; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          y[n][i] = sums[(n0 + n) * 4 + i] * p.x_scale + bias[i / 2];
          const int32_t at = token + (n0 + n) * 8 + i % 2;
          if constexpr (kind == ProductEnd::kAddF32) {
            if (has[i / 2] && at < p.tokens) y[n][i] += static_cast<const float*>(target.out)[at * target.out_stride + row + i / 2 * 8];
          }
        }
      }
#pragma unroll
      for (int32_t n = 0; n < 8; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t at = token + (n0 + n) * 8 + i % 2;
          if (!has[i / 2] || at >= p.tokens) continue;
          const int64_t place = at * target.out_stride + row + i / 2 * 8;
          if constexpr (kind == ProductEnd::kStoreAct) static_cast<A*>(target.out)[place] = A(y[n][i]);
          else static_cast<float*>(target.out)[place] = y[n][i];
        }
      }
    }
  }

  // The gate's warpgroup keeps the first half of the tokens.
  template <bool gate, int32_t half, int32_t chunk>
  __device__ __forceinline__ void end_half(const Sums& sums, float* give, const float* take, int32_t row, int32_t token) const {
    constexpr int32_t kept = gate ? 0 : half, given = gate ? half : 0;
    const DecodeTarget& target = p.targets[0];
    float bias[2][2] = {};
    for (int32_t i = 0; i < 2; ++i) {
      for (int32_t r = 0; r < 2; ++r) {
        if (p.targets[i].bias != nullptr && row + r * 8 < target.rows) bias[i][r] = p.targets[i].bias[row + r * 8];
      }
    }
#pragma unroll
    for (int32_t n0 = 0; n0 < half; n0 += chunk) {
#pragma unroll
      for (int32_t n = 0; n < chunk; ++n) {
        const int32_t from = (given + n0 + n) * 4;
        *reinterpret_cast<float2*>(give + n * 8) = make_float2(sums[from], sums[from + 1]);
        *reinterpret_cast<float2*>(give + 8 * Layout::pair_stride + n * 8) = make_float2(sums[from + 2], sums[from + 3]);
      }
      named_barrier(1, 256);
#pragma unroll
      for (int32_t n = 0; n < chunk; ++n) {
        const float2 low = *reinterpret_cast<const float2*>(take + n * 8);
        const float2 high = *reinterpret_cast<const float2*>(take + 8 * Layout::pair_stride + n * 8);
        const float other[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const float own = sums[(kept + n0 + n) * 4 + i];
          const float y0 = (gate ? own : other[i]) * p.x_scale + bias[0][i / 2];
          const float y1 = (gate ? other[i] : own) * p.x_scale + bias[1][i / 2];
          const int32_t at = token + (kept + n0 + n) * 8 + i % 2;
          if (row + i / 2 * 8 < target.rows && at < p.tokens) {
            static_cast<A*>(target.out)[at * target.out_stride + row + i / 2 * 8] =
                A(silu(y0) * y1 * p.pair_share);
          }
        }
      }
      named_barrier(1, 256);
    }
  }
};

#endif

#if MR_HOPPER
template <int32_t T, class A, int32_t tokens>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    prefill_product(const __grid_constant__ PrefillParams p, const __grid_constant__ PrefillMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = PrefillLayout<T, tokens>;
  extern __shared__ uint8_t memory[];
  const uint32_t base = shared_address(memory), ring = (base + 1023) & ~1023u;
  uint8_t* behind = memory + (ring - base) + Layout::stages * Layout::stage;
  PrefillBlock<T, A, tokens> block{p, maps};
  block.ring = ring;
  block.pairs = reinterpret_cast<float*>(behind);
  block.exchange = shared_address(behind) + Layout::pairs;
  block.full = block.exchange + Layout::exchange;
  block.empty = block.full + Layout::stages * 8;
  block.rank = cluster_rank();
  block.warp = static_cast<int32_t>(threadIdx.x) / 32;
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  if (threadIdx.x == 0) {
    for (int32_t s = 0; s < Layout::stages; ++s) {
      barrier_init(block.full + s * 8, 1);
      barrier_init(block.empty + s * 8, 8 * kPrefillCluster);  // the warps of both blocks that multiply
    }
    barrier_init_fence();
  }
  cluster_sync();
  grid_wait();
  grid_trigger();
  if (block.warp >= 8) {
    registers_down<40>();
    if (block.warp == 8) block.produce();
  } else {
    registers_up<232>();
    block.consume();
  }
  __syncwarp();
  cluster_sync();  // the other block may still fill this one's ring, or arrive at its barriers
#endif
}

template <int32_t T, class A, int32_t tokens>
PrefillKernel prefill_kernel_of() {
  return {reinterpret_cast<const void*>(&prefill_product<T, A, tokens>), PrefillLayout<T, tokens>::bytes, kPrefillThreads, tokens,
          PrefillLayout<T, tokens>::boxed};
}
#else
template <int32_t T, class A, int32_t tokens>
PrefillKernel prefill_kernel_of() {
  return {};
}
#endif

template <int32_t T, class A>
PrefillKernel prefill_kernel_for(int32_t form) {
  switch (form) {
    case 0: return prefill_kernel_of<T, A, 64>();
    case 1: return prefill_kernel_of<T, A, 128>();
    case 2: return prefill_kernel_of<T, A, 256>();
  }
  return {};
}

}  // namespace mr::cuda
