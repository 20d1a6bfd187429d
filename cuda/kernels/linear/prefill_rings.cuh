// prefill_rings: where a block of the prefill class stands in its cluster, and the thread that fills its ring.
//
// A cluster's blocks have tiles side by side, along the rows, along the tokens or both, and ask for what they have in common by
// shares, each for all. Behind a tile's last unit come stages that the ring lends to its end.
#pragma once

#include "kernels/launch.h"
#include "kernels/linear/prefill_layout.cuh"
#include "kernels/linear/prefill_parts.cuh"
#include "kernels/linear/targets.cuh"
#include "kernels/linear/wgmma.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int32_t T, int32_t rows, int32_t tokens>
struct PrefillRings {
  using Layout = PrefillLayout<T, rows, tokens>;
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t half_panels = Layout::panels / 2;

  const PrefillParams& p;
  const PrefillMaps& maps;
  const PrefillParts<rows> parts;
  uint32_t ring, spare, full, empty;  // shared memory addresses; full and empty: one barrier a stage
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

  // Whether an item may be half a tile.
  static constexpr bool kHalves = rows == kPrefillFormList[kWidestForm].rows && tokens == kPrefillFormList[kWidestForm].tokens;
  __device__ __forceinline__ bool is_half(int32_t item) const { return kHalves && item >= p.whole; }

  // This block's tile of rows, and the first of its tokens; either may lie past the last. Items go through all tokens for a few
  // clusters of row tiles at a time, so that what the device works on at once is nearly square.
  __device__ __forceinline__ void locate(int32_t item, int32_t& tile, int32_t& token0) const {
    int32_t half = 0;
    if (is_half(item)) {
      half = (item - p.whole) % 2;
      item = p.whole + (item - p.whole) / 2;
    }
    const int32_t band = item / (p.band * p.token_tiles), within = item % (p.band * p.token_tiles);
    const int32_t width = min(p.band, p.row_clusters - band * p.band);
    tile = (band * p.band + within % width) * p.row_blocks + row_rank;
    token0 = (within / width * p.token_blocks + token_rank) * tokens + half * (tokens / 2);
  }

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
    uint16_t for_rows, for_weights, for_peers;  // the ranks of the blocks that have the tokens, the weights, or either in common
  };
  __device__ __forceinline__ Share share() const {
    const int32_t rows_each = tokens / p.row_blocks;
    const uint16_t for_rows = static_cast<uint16_t>(((1 << p.row_blocks) - 1) << token_rank * p.row_blocks);
    const uint16_t for_weights = static_cast<uint16_t>((shares_weights() ? 1 | 1 << p.row_blocks : 1) << row_rank);
    return {rows_each, Layout::weights + static_cast<uint32_t>(row_rank * rows_each * 128), for_rows, for_weights,
            static_cast<uint16_t>(for_rows | for_weights)};
  }

  // Announces a unit's bytes and asks for its weights.
  __device__ __forceinline__ void ask_weights(const Weights& w, const Share& own, int32_t unit, int32_t stage, bool half) const {
    const uint32_t at = ring + stage * Layout::stage, done = full + stage * 8;
    barrier_expect(done, (half ? Layout::rows / 2 : Layout::rows) + weight_bytes(unit % f.units));
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

  // Asks for this block's share of a unit's tokens, for all blocks that have them in common. Shares of half a tile's tokens are those of
  // half of the blocks.
  __device__ __forceinline__ void ask_tokens(const Share& own, int32_t token0, int32_t unit, int32_t stage, bool half) const {
    if (half && row_rank * own.count >= tokens / 2) return;
    tensor_copy(ring + stage * Layout::stage + own.at, &maps.tokens, unit * kUnitCols, token0 + row_rank * own.count,
                full + stage * 8, own.for_rows);
  }

  using Place = RingPlace<Layout::stages>;

  // The first row of a tile within its target, which is `target`.
  __device__ __forceinline__ int32_t first_row(int32_t tile, int32_t& target) const {
    target = target_index(p, tile);
    return (tile - p.targets[target].first_tile) * rows;
  }

  // Lends the end of a tile's part the stages that it asks for, with what is added to, if any, as f32: in boxes of 32 rows, those of a
  // piece's tokens one after another. What the blocks of a cluster copy for one another into a lent stage is never read, but tells each that
  // all its peers have come so far: only then may it give the stage back to them.
  template <ProductEnd end>
  __device__ __forceinline__ void lend(const Share& own, int32_t tile, int32_t token0, int32_t part, Place& at) const {
    constexpr int32_t piece = Layout::piece(end), tall = Layout::out_box(end);  // tokens
    const bool adds = end == ProductEnd::kAddF32 && tile < p.tiles;
    int32_t target;
    const int32_t row = first_row(min(tile, p.tiles - 1), target);
    // Before the stages are given to those whose later stores a mark tells of: its return to 0 comes first.
    for (int32_t group = 0; adds && part > 0 && group < rows / 64; ++group) parts.await(group, part);
    for (int32_t i = 0; i < Layout::loans(end); ++i, at.next()) {
      const int32_t count = Layout::piece_tokens(end, i);
      const uint32_t to = ring + at.stage * Layout::stage, done = full + at.stage * 8;
      barrier_wait(empty + at.stage * 8, at.phase ^ 1);
      barrier_expect(done, peers(p) * 16 + (adds ? count * rows * 4 : 0));
      bulk_copy(spare, p.targets[0].data, 16, done, own.for_peers);
      if constexpr (end == ProductEnd::kAddF32) {
        for (int32_t box = 0; adds && box < rows / 32 * (count / tall); ++box) {
          const int32_t line = box % (rows / 32), n = box / (rows / 32) * tall;
          tensor_copy(to + (line * piece + n) * 128, &maps.out[target], row + line * 32, token0 + i * piece + n, done);
        }
      }
    }
  }
  __device__ __forceinline__ void lend(const Share& own, int32_t tile, int32_t token0, int32_t part, Place& at) const {
    if (p.pair) return lend<ProductEnd::kSwiGLU>(own, tile, token0, part, at);
    if (!p.boxed_out) return;
    if (p.end == ProductEnd::kStoreAct) lend<ProductEnd::kStoreAct>(own, tile, token0, part, at);
    else if (p.end == ProductEnd::kStoreF32) lend<ProductEnd::kStoreF32>(own, tile, token0, part, at);
    else lend<ProductEnd::kAddF32>(own, tile, token0, part, at);
  }

  // How many stages are lent to every end.
  __device__ __forceinline__ int32_t loans() const {
    if (p.pair) return Layout::loans(ProductEnd::kSwiGLU);
    if (!p.boxed_out) return 0;
    return p.end == ProductEnd::kStoreAct ? Layout::loans(ProductEnd::kStoreAct) : Layout::loans(ProductEnd::kStoreF32);
  }

  // By one thread.
  __device__ __forceinline__ void produce() const {
    const Share own = share();
    // The ring's first round asks for weights of the first tile before the kernel ahead has ended, and for tokens after. Further
    // weights of that tile may come as far as the second level cache, asked for by the blocks of the first tokens alone. First items are
    // whole.
    int32_t part = parts.first(), early = min(parts.units(part), Layout::stages);
    {
      int32_t tile, token0;
      locate(parts.first_item(), tile, token0);
      const Weights weights = weights_of(min(tile, p.tiles - 1));
      const int32_t begin = parts.unit(part);
      for (int32_t i = 0; i < early; ++i) ask_weights(weights, own, begin + i, i, false);
      if constexpr (Layout::boxed) {
        const int32_t end = min(p.beside ? parts.unit(part + 1) : p.units, begin + early + p.prefetch);
        for (int32_t unit = begin + early; token0 < p.token_blocks * tokens && unit < end; ++unit)
          for_boxes(weights, unit, [](const CUtensorMap* map, int32_t x, int32_t y, uint32_t) { tensor_prefetch(map, x, y); });
      }
    }
    grid_wait();
    grid_trigger();
    Place at;
    for (int32_t item = parts.first_item(); item < p.items; item += p.item_stride) {
      int32_t tile, token0;
      locate(item, tile, token0);
      const bool half = is_half(item);
      const Weights weights = weights_of(min(tile, p.tiles - 1));
      do {
        const int32_t end = parts.unit(part + 1);
        for (int32_t unit = parts.unit(part); unit < end; ++unit, --early, at.next()) {
          if (early <= 0) {
            barrier_wait(empty + at.stage * 8, at.phase ^ 1);
            ask_weights(weights, own, unit, at.stage, half);
          }
          ask_tokens(own, token0, unit, at.stage, half);
          if constexpr (kFetchesSums) fetch_sum(tile, token0, unit);
        }
        lend(own, tile, token0, part, at);
      } while (parts.next(part));
    }
  }

  // Large tiles add to more than a few units' time brings from memory: the second level cache is asked for a box with each of the first
  // units. Later parts find there what was stored.
  static constexpr bool kFetchesSums = rows * tokens >= 128 * 128;
  __device__ __forceinline__ void fetch_sum(int32_t tile, int32_t token0, int32_t unit) const {
    constexpr int32_t box = Layout::out_box(ProductEnd::kAddF32), across = rows / 32;
    if (p.end != ProductEnd::kAddF32 || !p.boxed_out || tile >= p.tiles || unit >= across * (tokens / box)) return;
    int32_t target;
    const int32_t row = first_row(tile, target);
    tensor_prefetch(&maps.out[target], row + unit % across * 32, token0 + unit / across * box);
  }

  __device__ __forceinline__ void await(const Place& at) const { barrier_wait(full + at.stage * 8, at.phase); }
  __device__ __forceinline__ void release(int32_t stage) const {
    __syncwarp();
    if (told >= 0) barrier_arrive_at(empty + stage * 8, told);
  }
  // Lets an end's lent stages go by.
  __device__ __forceinline__ void pass(Place& at) const {
    for (int32_t i = loans(); i > 0; --i, at.next()) {
      await(at);
      release(at.stage);
    }
  }
};

#endif

}  // namespace mr::cuda
