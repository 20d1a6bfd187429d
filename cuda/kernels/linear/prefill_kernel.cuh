// prefill_kernel: the prefill class of products on devices with wgmma; see product.h for what it promises.
//
// A block takes tiles of 64 or 128 rows by `tokens` tokens: a warpgroup for every 64 rows, and a warp that asks for data. A
// stage of its ring is one unit of 64 inputs: the panels' packed bytes, and the tokens as rows of 128 bytes, swizzled. A
// cluster's blocks have tiles side by side, along the rows, along the tokens or both, and ask for what they have in common by
// shares, each for all. Weights become A fragments in registers, scaled in f32 and rounded once to the activation type; sums
// are one f32 chain in ascending order. Of a pair half of the warps hold the gate's rows, the others the up's. Where one
// warpgroup multiplies quantised weights, a second makes the fragments of every other unit for it.
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

constexpr int32_t kPrefillThreads = 3 * 128;  // the third warpgroup gives its registers away and asks for data with one warp

template <int32_t T, int32_t rows_, int32_t tokens_>
struct PrefillLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t tokens = tokens_, panels = rows_ / kPanelRows, warps = panels;  // a panel for each warp that multiplies
  // A stage holds the planes one after another, each as two halves of the panels.
  static constexpr bool boxed = prefill_boxed(f);
  __host__ __device__ static constexpr int32_t plane_bytes(int32_t i) {
    constexpr WeightFormat format = f;
    return prefill_plane(format, i);
  }
  __host__ __device__ static constexpr int32_t half_bytes(int32_t i) { return (panels / 2 * plane_bytes(i) + 127) / 128 * 128; }
  __host__ __device__ static constexpr int32_t plane_at(int32_t i) {
    return 2 * ((i > 0 ? half_bytes(0) : 0) + (i > 1 ? half_bytes(1) : 0) + (i > 2 ? half_bytes(2) : 0) + (i > 3 ? half_bytes(3) : 0));
  }
  static constexpr int32_t weights = (plane_at(kPrefillPlanes) + 1023) / 1024 * 1024, rows = tokens * 128;
  static constexpr int32_t stage = weights + rows;
  static constexpr bool publishes = Format<T>::superblock && Format<T>::has_min;
  // Warps that hand fragments to those that multiply, and all that read a stage.
  static constexpr int32_t helpers = f.block > 1 && warps == 4 ? warps : 0, readers = warps + helpers;
  static constexpr int32_t slots = 2, handed = slots * helpers * 2048;  // a unit's fragments of a warp
  static constexpr int32_t exchange_each = publishes ? f.units * 256 : 0;  // a warp's
  static constexpr int32_t exchange = readers * exchange_each;
  static constexpr int32_t pair_stride = 36, pair_floats = rows_ / 2 * pair_stride;  // of half the rows, 32 tokens
  static constexpr int32_t pairs = 2 * pair_floats * 4;                              // one for each half to give through
  static constexpr int32_t most_stages = 16, barriers = (2 * most_stages + 2 * slots * helpers) * 8;
  static constexpr int32_t stages_that_fit = (226 * 1024 - exchange - handed - pairs - barriers) / stage;
  static constexpr int32_t stages = stages_that_fit > most_stages ? most_stages : stages_that_fit;
  static constexpr int32_t bytes = stages * stage + exchange + handed + pairs + barriers + 1024;  // 1024: to align the ring
  // Behind one block of a kernel no other of it fits: clusters that begin early, on the multiprocessors that the kernel before
  // leaves first, spread over all of them.
  static_assert(bytes > 114 * 1024 && stages >= 3);
  // Where two warpgroups multiply, a third gives them its registers. Where one does and none helps it, half of a multiprocessor's
  // registers suffice, and kernels before that still run leave room to begin beside them.
  static constexpr bool gives_registers = warps > 4;
  static constexpr int32_t threads = gives_registers ? kPrefillThreads : readers * 32 + 32;
  static constexpr int32_t blocks = gives_registers || helpers > 0 ? 1 : 2;
};

#if MR_HOPPER
struct PrefillMaps {
  CUtensorMap tokens;  // boxes of one unit's columns and a block's share of a tile's tokens
  CUtensorMap weights[3][kPrefillPlanes];  // of each target: boxes of a plane of half a tile's panels
};
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// `bytes` (a multiple of 16) from global memory to the same place in every block of `mask`, completing on each one's barrier.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint16_t mask) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier), "h"(mask)
               : "memory");
}

// The box at (x, y) of a tensor map into the second level cache.
__device__ __forceinline__ void tensor_prefetch(const void* map, int32_t x, int32_t y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y) : "memory");
}

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

template <int32_t T, class A, int32_t rows, int32_t tokens>
struct PrefillBlock {
  using Layout = PrefillLayout<T, rows, tokens>;
  using Header = GroupHeader<T, A>;
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t half_panels = Layout::panels / 2;

  const PrefillParams& p;
  const PrefillMaps& maps;
  uint32_t ring, exchange, full, empty;  // shared memory addresses; full and empty: one barrier a stage
  uint32_t handed, ready, taken;         // likewise; ready and taken: one a slot and warp
  float* pairs;
  int32_t row_rank, token_rank;  // this block's place in its cluster, whose rank is token_rank * row_blocks + row_rank
  int32_t warp, lane;
  int32_t panel;  // of the tile: the warp's own, or that of the warp that it helps
  int32_t told;  // the rank of the peer that this lane tells of what its warp has read; none: -1

  // The blocks that ask for some of this block's data, and whose data it asks for: those of its tokens and those of its rows,
  // itself among both.
  __device__ __forceinline__ static int32_t peers(const PrefillParams& p) { return p.row_blocks + p.token_blocks - 1; }
  // The rank of peer i.
  __device__ __forceinline__ int32_t peer(int32_t i) const {
    return i < p.row_blocks ? token_rank * p.row_blocks + i : (1 - token_rank) * p.row_blocks + row_rank;
  }

  // This block's tile of rows, and the first of its tokens; either may lie past the last. Items go through all tokens for a few
  // clusters of row tiles at a time, so that what the device works on at once is nearly square.
  __device__ __forceinline__ void locate(int32_t item, int32_t& tile, int32_t& token0) const {
    const int32_t band = item / (p.band * p.token_tiles), within = item % (p.band * p.token_tiles);
    const int32_t width = min(p.band, p.row_clusters - band * p.band);
    tile = (band * p.band + within % width) * p.row_blocks + row_rank;
    token0 = (within / width * p.token_blocks + token_rank) * tokens;
  }
  __device__ __forceinline__ int32_t first_item() const { return static_cast<int32_t>(blockIdx.x) / (p.row_blocks * p.token_blocks); }

  // A unit's weights of this block's tile of rows come as two halves, of a pair the gate's and the up's. Where two blocks have
  // them in common, each asks for one. Panels past the last are zeros; where they come one by one, the last.
  struct Weights {
    int32_t target[2], first[2];
  };
  __device__ __forceinline__ Weights weights_of(int32_t tile) const {
    if (p.pair) return {{0, 1}, {tile * half_panels, tile * half_panels}};
    const int32_t i = target_index(p, tile), first = (tile - p.targets[i].first_tile) * Layout::panels;
    return {{i, i}, {first, first + half_panels}};
  }
  __device__ __forceinline__ static constexpr int32_t weight_bytes(int32_t u) {
    return Layout::panels * (f.quants + f.high + f.scales + (u == 0 ? f.header : 0));
  }
  // Bytes from the start of a group to its plane i of unit u.
  __device__ __forceinline__ static constexpr int32_t plane_from(int32_t i, int32_t u) {
    return i == 0 ? Format<T>::quants_at(u) : i == 1 ? Format<T>::high_at(u) : i == 2 ? Format<T>::scales_at(u) : Format<T>::header_plane;
  }

  // Whether another block has this one's weights too, along the tokens, and asks for the other half.
  __device__ __forceinline__ bool shares_weights() const { return p.token_blocks > 1; }

  // copy(map, x, y, place in a stage) for every box of this block's share of a unit's weights.
  template <class Copy>
  __device__ __forceinline__ void for_boxes(const Weights& w, int32_t unit, Copy&& copy) const {
    const int32_t group = unit / f.units, u = unit % f.units;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      if (shares_weights() && half != token_rank) continue;
#pragma unroll
      for (int32_t plane = 0; plane < kPrefillPlanes; ++plane) {
        if (Layout::plane_bytes(plane) == 0 || (plane == 3 && u != 0)) continue;
        copy(&maps.weights[w.target[half]][plane], (group * Format<T>::group_bytes + plane_from(plane, u)) / 8, w.first[half],
             Layout::plane_at(plane) + half * Layout::half_bytes(plane));
      }
    }
  }

  // What this block asks for, in every unit, and for whom.
  struct Share {
    int32_t count;              // of a tile's tokens
    uint32_t at;                // where they lie in a stage
    uint16_t for_rows, for_weights;  // the ranks of the blocks that have the tokens, or the weights, in common
  };
  __device__ __forceinline__ Share share() const {
    const int32_t rows_each = tokens / p.row_blocks;
    return {rows_each, Layout::weights + static_cast<uint32_t>(row_rank * rows_each * 128),
            static_cast<uint16_t>(((1 << p.row_blocks) - 1) << token_rank * p.row_blocks),
            static_cast<uint16_t>((1 | 1 << p.row_blocks) << row_rank)};
  }

  // Announces a unit's bytes and asks for its weights.
  __device__ __forceinline__ void ask_weights(const Weights& w, const Share& own, int32_t unit, int32_t stage) const {
    const uint32_t at = ring + stage * Layout::stage, done = full + stage * 8;
    barrier_expect(done, Layout::rows + weight_bytes(unit % f.units));
    const bool shared = shares_weights();
    if constexpr (Layout::boxed) {
      for_boxes(w, unit, [&](const CUtensorMap* map, int32_t x, int32_t y, uint32_t place) {
        if (shared) tensor_copy(at + place, map, x, y, done, own.for_weights);
        else tensor_copy(at + place, map, x, y, done);
      });
    } else {
#pragma unroll
      for (int32_t i = 0; i < Layout::panels; ++i) {
        const int32_t half = i / half_panels;
        if (shared && half != token_rank) continue;
        const DecodeTarget& target = p.targets[w.target[half]];
        const int32_t panel_index = min(w.first[half] + i % half_panels, target.panels - 1);
        const uint8_t* from = target.data + panel_index * p.panel_bytes + int64_t{unit} * Format<T>::group_bytes;
        const uint32_t to = at + i * Layout::plane_bytes(0);
        if (shared) bulk_copy(to, from, Layout::plane_bytes(0), done, own.for_weights);
        else bulk_copy(to, from, Layout::plane_bytes(0), done);
      }
    }
  }

  // Asks for this block's share of a unit's tokens, for all blocks that have them in common.
  __device__ __forceinline__ void ask_tokens(const Share& own, int32_t token0, int32_t unit, int32_t stage) const {
    tensor_copy(ring + stage * Layout::stage + own.at, &maps.tokens, unit * kUnitCols, token0 + row_rank * own.count,
                full + stage * 8, own.for_rows);
  }

  template <int32_t count>
  struct Ring {
    int32_t stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
      if (++stage < count) return;
      stage = 0;
      phase ^= 1;
    }
  };
  using Place = Ring<Layout::stages>;
  using Slot = Ring<Layout::slots>;

  // By one thread.
  __device__ __forceinline__ void produce() const {
    const Share own = share();
    // The ring's first round asks for weights before the kernel ahead has ended, and for tokens after. Further weights of the
    // first tile may come as far as the second level cache, asked for by the blocks of the first tokens alone.
    int32_t early = 0;
    for (int32_t item = first_item(); item < p.items && early < Layout::stages; item += p.item_stride) {
      int32_t tile, token0;
      locate(item, tile, token0);
      const Weights weights = weights_of(min(tile, p.tiles - 1));
      for (int32_t unit = 0; unit < p.units && early < Layout::stages; ++unit) ask_weights(weights, own, unit, early++);
      if constexpr (Layout::boxed) {
        const int32_t end = min(p.units, early + p.prefetch);
        for (int32_t unit = early; token0 < p.token_blocks * tokens && unit < end; ++unit)
          for_boxes(weights, unit, [](const CUtensorMap* map, int32_t x, int32_t y, uint32_t) { tensor_prefetch(map, x, y); });
      }
    }
    grid_wait();
    grid_trigger();
    Place at;
    int32_t asked = 0;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      int32_t tile, token0;
      locate(item, tile, token0);
      const Weights weights = weights_of(min(tile, p.tiles - 1));
      for (int32_t unit = 0; unit < p.units; ++unit, ++asked, at.next()) {
        if (asked >= early) {
          barrier_wait(empty + at.stage * 8, at.phase ^ 1);
          ask_weights(weights, own, unit, at.stage);
        }
        ask_tokens(own, token0, unit, at.stage);
      }
    }
  }

  // The address of this warp's plane i in a stage.
  __device__ __forceinline__ uint32_t plane(int32_t stage, int32_t i) const {
    return ring + stage * Layout::stage + Layout::plane_at(i) + panel / half_panels * Layout::half_bytes(i) +
           panel % half_panels * Layout::plane_bytes(i);
  }
  __device__ __forceinline__ uint32_t published() const { return exchange + warp * Layout::exchange_each; }

  // Reads what a group's first unit has for all.
  __device__ __forceinline__ void open(Header& header, int32_t stage) const {
    header.load(plane(stage, 3), lane);
    if constexpr (Layout::publishes) {
      __syncwarp();
      header.template publish<f.units>(published(), 0, lane);
      __syncwarp();
    }
  }

  // The A fragments of a unit that lies in a stage.
  __device__ __forceinline__ void load(uint32_t (&a)[4][4], Header& header, int32_t stage, int32_t unit) const {
    const uint32_t at = plane(stage, 0);
    UnitQuants<T, A, 1> quants;
    UnitScales<T, A> scales;
    if constexpr (!Format<T>::is_float) {
      const bool alone = f.units == 1;  // one plane of all
      const int32_t u = unit % f.units;
      quants.begin(at, alone ? at + f.quants : plane(stage, 1), lane);
      if (u == 0) open(header, stage);
      scales.load(Layout::publishes ? published() + u * 256 : alone ? at + f.quants + f.high : plane(stage, 2), header, lane);
    }
    using Unit = RoundedUnit<T, A>;
    Unit::template take<0>(quants, scales, at, lane, a[0]);
    Unit::template take<1>(quants, scales, at, lane, a[1]);
    Unit::template take<2>(quants, scales, at, lane, a[2]);
    Unit::template take<3>(quants, scales, at, lane, a[3]);
  }

  using Sums = float[tokens / 2];

  __device__ __forceinline__ void issue(Sums& sums, const uint32_t (&a)[4][4], int32_t stage) const {
    const uint64_t tokens_at = swizzled_rows(ring + stage * Layout::stage + Layout::weights);
    wgmma_fence();
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) wgmma_m64<A>(sums, a[step], tokens_at + step * 2);
    wgmma_commit();
  }

  __device__ __forceinline__ void release(int32_t stage) const {
    __syncwarp();
    if (told >= 0) barrier_arrive_at(empty + stage * 8, told);
  }

  // The fragments of every other unit, for the warp that multiplies this panel.
  __device__ __forceinline__ void help() const {
    Place at;
    Slot to;
    Header header;
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      for (int32_t unit = 0; unit < p.units; ++unit, at.next()) {
        barrier_wait(full + at.stage * 8, at.phase);
        if (unit % 2 == 1) {
          uint32_t a[4][4];
          load(a, header, at.stage, unit);
          const int32_t slot = to.stage * Layout::helpers + panel;
          barrier_wait(taken + slot * 8, to.phase ^ 1);
#pragma unroll
          for (int32_t step = 0; step < 4; ++step) {
            const uint4 v = make_uint4(a[step][0], a[step][1], a[step][2], a[step][3]);
            store_shared16(handed + slot * 2048 + step * 512 + lane * 16, v);
          }
          __syncwarp();
          if (lane == 0) barrier_arrive(ready + slot * 8);
          to.next();
        } else if (unit % f.units == 0) {
          open(header, at.stage);
        }
        release(at.stage);
      }
    }
  }

  // The fragments that this warp's helper made.
  __device__ __forceinline__ void take(uint32_t (&a)[4][4], Slot& from) const {
    const int32_t slot = from.stage * Layout::helpers + panel;
    barrier_wait(ready + slot * 8, from.phase);
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) {
      const uint4 v = load_shared16(handed + slot * 2048 + step * 512 + lane * 16);
      a[step][0] = v.x;
      a[step][1] = v.y;
      a[step][2] = v.z;
      a[step][3] = v.w;
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(taken + slot * 8);
    from.next();
  }

  // Whether products of two units are under way at once: where they take longer than making fragments, so that the next begin
  // with no pause.
  static constexpr bool overlaps = rows == 128 && tokens >= 128;

  // Products under way read the registers of their fragments until they are waited for, and ptxas 12.4 has given such to others
  // behind a wait for those before. A use behind the last keeps them; it never runs.
  __device__ __forceinline__ void keep(const uint32_t (&a)[4][4]) const {
    if (p.units > 0) return;
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) store_shared16(ring, make_uint4(a[step][0], a[step][1], a[step][2], a[step][3]));
  }

  __device__ __forceinline__ void consume() const {
    grid_wait();
    Place at;
    Slot from;
    Header header;
    const auto fetch = [&](uint32_t (&a)[4][4], int32_t unit, bool odd) {
      const int32_t stage = at.stage;
      barrier_wait(full + stage * 8, at.phase);
      if (Layout::helpers > 0 && odd) take(a, from);
      else load(a, header, stage, unit);
      at.next();
      return stage;
    };
    for (int32_t item = first_item(); item < p.items; item += p.item_stride) {
      Sums sums = {};
      uint32_t a[2][4][4] = {};
      int32_t next = fetch(a[0], 0, false), before = 0;
      for (int32_t unit = 0; unit < p.units; unit += 2) {
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
          if (unit + i >= p.units) break;
          const int32_t stage = next;
          issue(sums, a[i], stage);
          if constexpr (overlaps) {
            wgmma_wait<1>();
            keep(a[1 - i]);
            if (unit + i > 0) release(before);
            before = stage;
          }
          // The next unit's fragments, while this one's products run.
          if (unit + i + 1 < p.units) next = fetch(a[1 - i], unit + i + 1, i == 0);
          if constexpr (!overlaps) {
            wgmma_wait<0>();
            release(stage);
          }
        }
      }
      if constexpr (overlaps) {
        wgmma_wait<0>();
        keep(a[0]);
        keep(a[1]);
        release(before);
      }
      finish(sums, item);
    }
  }

  __device__ __forceinline__ void finish(const Sums& sums, int32_t item) const {
    int32_t tile, token0;
    locate(item, tile, token0);
    const int32_t g = lane / 4, t = lane % 4;
    if (p.pair) {
      // Each half of the warps hands the other its sums of half the tokens, a chunk of 32 at a time, and ends those it keeps.
      const int32_t side = panel / half_panels, within = panel % half_panels;
      const int32_t row = (tile * half_panels + within) * kPanelRows + g;
      constexpr int32_t half = tokens / 16, chunk = half < 4 ? half : 4;  // in eights of tokens
      const int32_t at = (within * kPanelRows + g) * Layout::pair_stride + t * 2;
      float* give = pairs + side * Layout::pair_floats + at;
      const float* take = pairs + (1 - side) * Layout::pair_floats + at;
      if (side == 0) end_half<true, half, chunk>(sums, give, take, row, token0 + t * 2);
      else end_half<false, half, chunk>(sums, give, take, row, token0 + t * 2);
      return;
    }
    if (tile >= p.tiles) return;
    int32_t within;
    const DecodeTarget& target = target_of(p, tile, within);
    const int32_t row = (within * Layout::panels + panel) * kPanelRows + g;
    switch (p.end) {
      case ProductEnd::kStoreF32: return end_rows<ProductEnd::kStoreF32>(target, sums, row, token0 + t * 2);
      case ProductEnd::kAddF32: return end_rows<ProductEnd::kAddF32>(target, sums, row, token0 + t * 2);
      case ProductEnd::kStoreAct: return end_rows<ProductEnd::kStoreAct>(target, sums, row, token0 + t * 2);
      case ProductEnd::kSwiGLU: return;
    }
  }

  // Rows row and row + 8, of every 8 tokens from `token` on two. What is added to is read for up to 32 elements at a time.
  template <ProductEnd kind>
  __device__ __forceinline__ void end_rows(const DecodeTarget& target, const Sums& sums, int32_t row, int32_t token) const {
    const bool has[2] = {row < target.rows, row + 8 < target.rows};
    float bias[2] = {0, 0};
    if (target.bias != nullptr) {
      if (has[0]) bias[0] = target.bias[row];
      if (has[1]) bias[1] = target.bias[row + 8];
    }
    constexpr int32_t together = tokens < 64 ? tokens / 8 : 8;
#pragma unroll
    for (int32_t n0 = 0; n0 < tokens / 8; n0 += together) {
      float y[together][4];
#pragma unroll
      for (int32_t n = 0; n < together; ++n) {
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
      for (int32_t n = 0; n < together; ++n) {
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

  // The gate's warps keep the first half of the tokens.
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
      named_barrier(1, Layout::warps * 32);
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
      named_barrier(1, Layout::warps * 32);
    }
  }
};

#endif

#if MR_HOPPER
template <int32_t T, class A, int32_t rows, int32_t tokens>
__global__ void __launch_bounds__(PrefillLayout<T, rows, tokens>::threads, PrefillLayout<T, rows, tokens>::blocks)
    prefill_product(const __grid_constant__ PrefillParams p, const __grid_constant__ PrefillMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Layout = PrefillLayout<T, rows, tokens>;
  using Block = PrefillBlock<T, A, rows, tokens>;
  extern __shared__ uint8_t memory[];
  const uint32_t base = kept_address(memory), ring = (base + 1023) & ~1023u;
  uint8_t* behind = memory + (ring - base) + Layout::stages * Layout::stage;
  Block block{p, maps};
  block.ring = ring;
  block.pairs = reinterpret_cast<float*>(behind);
  block.exchange = ring + Layout::stages * Layout::stage + Layout::pairs;
  block.handed = block.exchange + Layout::exchange;
  block.full = block.handed + Layout::handed;
  block.empty = block.full + Layout::stages * 8;
  block.ready = block.empty + Layout::stages * 8;
  block.taken = block.ready + Layout::slots * Layout::helpers * 8;
  const int32_t rank = static_cast<int32_t>(cluster_rank());
  block.row_rank = rank % p.row_blocks;
  block.token_rank = rank / p.row_blocks;
  block.warp = static_cast<int32_t>(threadIdx.x) / 32;
  block.lane = static_cast<int32_t>(threadIdx.x) % 32;
  block.panel = block.warp % Layout::warps;
  block.told = block.lane < Block::peers(p) ? block.peer(block.lane) : -1;
  if (threadIdx.x == 0) {
    for (int32_t s = 0; s < Layout::stages; ++s) {
      barrier_init(block.full + s * 8, 1);
      barrier_init(block.empty + s * 8, Layout::readers * Block::peers(p));  // the warps that read what this block asks for
    }
    for (int32_t s = 0; s < Layout::slots * Layout::helpers; ++s) {
      barrier_init(block.ready + s * 8, 1);
      barrier_init(block.taken + s * 8, 1);
    }
    barrier_init_fence();
  }
  cluster_sync();
  if constexpr (Layout::gives_registers) {
    if (block.warp >= Layout::warps) {
      registers_down<40>();
      if (block.warp == Layout::warps && elected()) block.produce();
    } else {
      registers_up<232>();
      block.consume();
    }
  } else {
    if (block.warp < Layout::warps) block.consume();
    else if (block.warp < Layout::readers) block.help();
    else if (elected()) block.produce();
  }
  __syncwarp();
  cluster_sync();  // other blocks may still fill this one's ring, or arrive at its barriers
#endif
}

template <int32_t T, class A, int32_t form>
PrefillKernel prefill_kernel_of() {
  constexpr int32_t rows = kPrefillFormList[form].rows, tokens = kPrefillFormList[form].tokens;
  using Layout = PrefillLayout<T, rows, tokens>;
  return {reinterpret_cast<const void*>(&prefill_product<T, A, rows, tokens>), Layout::bytes, Layout::threads, tokens, rows};
}
#else
template <int32_t T, class A, int32_t form>
PrefillKernel prefill_kernel_of() {
  return {};
}
#endif

template <int32_t T, class A, int32_t i = 0>
PrefillKernel prefill_kernel_for(int32_t form) {
  if constexpr (i < kPrefillForms) return i == form ? prefill_kernel_of<T, A, i>() : prefill_kernel_for<T, A, i + 1>(form);
  else return {};
}

}  // namespace mr::cuda
