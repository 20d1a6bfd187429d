// several_rows: the grouped GEMM of the decode class where experts have several pairs. A block computes 16 panels of an expert's
// matrix, or 8 of its gate and the same 8 of its up, for the pairs of one tile of the plan.
//
//   weights --cp.async--> [stage 0][stage 1] ...   each warp requests and reads its own two panels
//   rows    --cp.async--> [stage 0][stage 1] ...   gathered by pair; all warps request and read them
//                              |
//        a unit of 64 inputs:  two panels to A fragments, once for the whole tile; a B fragment for each 8 pairs; mma
//
// Weights are read and unpacked once for up to 16 pairs, and rows are read once for 16 panels: few_rows.cuh reads both again for each
// panel and each 8 pairs. A warp has all of K. It keeps the sum of the current split-K slice and the sum of the slices before it, so a
// pair has the bits of few_rows. Blocks are persistent and their pipelines are not drained between items. Fragments without pairs are
// skipped. A tile must not have more than 16 pairs: experts.cu gives larger ones to few_rows.
#pragma once

#include "kernels/experts/grouped.h"
#include "kernels/experts/grouped_epilogue.cuh"
#include "kernels/experts/grouped_work.cuh"
#include "kernels/gemm/gemv_async_pipeline.cuh"

namespace mr::cuda {

template <int32_t T, class A, int32_t room>
struct SeveralLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t pairs = kMostExpertTile, fragments = pairs / 8;
  static constexpr int32_t blocks = 2;  // of an SM
  // Units of a stage: a group, or as many as keep a stage of weights within 40 KiB.
  static constexpr int32_t unit = f.quants + f.high + f.scales, panels = 16;
  static constexpr int32_t units = f.units > 1 ? f.units : panels * unit * 4 <= 40960 ? 4 : panels * unit * 2 <= 40960 ? 2 : 1;
  using Shape = GemvShape<2, 8, units, blocks>;
  using Weights = GemvAsyncLayout<T, A, Shape, room>;
  static constexpr int32_t row = units * kUnitCols * 2 + 16;  // 16 bytes of padding: ldmatrix meets every bank once
  static constexpr int32_t rows = pairs * row, stage = Weights::stage + rows;
  static constexpr int32_t fixed = 2 * pairs * 4;
  static constexpr int32_t bytes_of(int32_t stages) { return stages * stage + fixed; }
  // As many stages, up to 4, as fit.
  static constexpr int32_t fitting(int32_t blocks_of_sm) {
    int32_t stages = 4;
    while (stages > 0 && bytes_of(stages) > room * 1024 / blocks_of_sm - 1024) --stages;
    return stages;
  }
  static constexpr int32_t shared = fitting(blocks), alone = fitting(1);
  static constexpr int32_t stages = shared >= 2 ? shared : alone >= 2 ? alone : 2;
  static constexpr int32_t rows_at = stages * Weights::stage, pairs_at = rows_at + stages * rows, bytes = bytes_of(stages);
};

template <int32_t T, class A>
struct SeveralRowsBlock {
  using Layout = SeveralLayout<T, A, kGemvSharedKiB>;
  using Shape = typename Layout::Shape;
  using Pipeline = GemvAsyncPipeline<T, A, Shape>;
  using Mma = GemvAsyncMma<T, A, Shape>;
  using Weights = typename Layout::Weights;
  using Split = typename Pipeline::Split;
  using E = typename Pipeline::E;
  static constexpr WeightFormat f = Pipeline::f;
  static constexpr int32_t kPanels = 2, kStages = Layout::stages, kUnits = Layout::units, kFragments = Layout::fragments;
  static constexpr int32_t kRowPieces = kUnits * 8, kRowsAtOnce = Shape::threads / kRowPieces;
  static constexpr int32_t kRowSteps = (Layout::pairs + kRowsAtOnce - 1) / kRowsAtOnce;  // 16-byte pieces of a thread

  const GroupedParams& grouped;
  const GemvParams& p;
  const Pipeline pipeline;
  int32_t* const pairs;  // two buffers of Layout::pairs: the pairs of an item's tile, in shared memory
  const int32_t warp = pipeline.warp, lane = pipeline.lane;
  const int32_t panel_blocks = (p.targets[0].panels + block_panels() - 1) / block_panels();
  int32_t tiles = 0, items = 0;

  using Sums = float[kPanels][kFragments][4];

  // Feed is where a thread copies an item's operands from: its first 16 bytes of each panel, and the rows of its pieces.
  struct Feed {
    typename Pipeline::WeightFeed weights;
    int32_t rows[kRowSteps];  // below 0: no pair is there
  };

  // Returns whether the two panels of a warp are of gate and up. A member would take a register.
  __device__ __forceinline__ bool pair() const { return p.pair != 0; }
  __device__ __forceinline__ int32_t block_panels() const { return Shape::warps * (pair() ? 1 : kPanels); }  // of a target
  __device__ __forceinline__ const KernelTarget& target(int32_t r) const { return p.targets[pair() ? r : 0]; }
  __device__ __forceinline__ int32_t thread() const { return warp * 32 + lane; }
  __device__ __forceinline__ uint32_t rows_in(int32_t stage) const { return pipeline.shared + Layout::rows_at + stage * Layout::rows; }

  // Returns the tile of an item, or the last tile if the item is past the last.
  __device__ __forceinline__ ExpertTile tile_of(int32_t item) const { return grouped.plan.tiles[min(item / panel_blocks, tiles - 1)]; }

  // Returns the panel of this warp in an item. It may lie past the last panel.
  __device__ __forceinline__ int32_t panel_of(int32_t item, int32_t r) const {
    return item % panel_blocks * block_panels() + (pair() ? warp : warp * kPanels + r);
  }

  // A warp past the last panel reads the last one and stores nothing.
  __device__ __forceinline__ void aim(Feed& feed, const ExpertTile& tile, int32_t item) const {
    const int64_t matrix = tile.expert * grouped.matrix_bytes;
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r)
      feed.weights.panel[r] = target(r).data + matrix + min(panel_of(item, r), target(r).panels - 1) * p.panel_bytes + lane * 16;
#pragma unroll
    for (int32_t i = 0; i < kRowSteps; ++i) {
      const int32_t at = thread() / kRowPieces + i * kRowsAtOnce;
      feed.rows[i] = at < tile.count ? grouped.plan.pairs[tile.first + at] : -1;
    }
  }

  // Requests a stage's rows. Rows without a pair keep what the stage holds; columns past the last become zeros.
  __device__ __forceinline__ void fill_rows(const Feed& feed, int32_t unit, int32_t stage) const {
    const int32_t own = thread() % kRowPieces * 16, left = min(max((p.cols - unit * kUnitCols) * 2 - own, 0), 16);
    const uint32_t to = rows_in(stage) + thread() / kRowPieces * Layout::row + own;
    const uint8_t* const from = static_cast<const uint8_t*>(p.x) + (left > 0 ? unit * (kUnitCols * 2) + own : 0);
#pragma unroll
    for (int32_t i = 0; i < kRowSteps; ++i) {
      if (feed.rows[i] < 0) continue;
      const int64_t row = feed.rows[i] / grouped.x_share;
      copy16_or_zero(to + i * kRowsAtOnce * Layout::row, from + row * p.x_stride * 2, static_cast<uint32_t>(left));
    }
  }

  // Cursor is the position of the next request. `next` is the feed of the block's item after it, and `after` the tile of the item
  // after that, because a tile is loaded an item ahead of its rows' numbers, and these an item ahead of their use.
  struct Cursor {
    int32_t item, unit;
    Feed feed, next;
    ExpertTile after;
  };

  __device__ __forceinline__ void request(Cursor& c, int32_t stage) const {
    if (c.item < items) {
      pipeline.fill(c.feed.weights, {0, c.unit}, stage);
      fill_rows(c.feed, c.unit, stage);
      c.unit += kUnits;
      if (c.unit >= pipeline.unit_end) {
        const int32_t step = static_cast<int32_t>(gridDim.x);
        c.unit = 0;
        c.item += step;
        c.feed = c.next;
        aim(c.next, c.after, c.item + step);
        c.after = tile_of(c.item + 2 * step);
      }
    }
    copies_commit();
  }

  // Where this lane's row of fragment 0 begins, for load_matrices.
  __device__ __forceinline__ uint32_t row_of_lane(int32_t stage) const {
    return rows_in(stage) + (lane & 7) * Layout::row + (lane >> 3) * 16;
  }

  // Adds the products of a stage, which is a whole group, to the sums of the slice.
  __device__ __forceinline__ void multiply_folded(Sums& acc, int32_t fragments, int32_t stage) const {
    const uint32_t weights = pipeline.weights_in(stage), row = row_of_lane(stage);
    FoldedHeader headers[kPanels];
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r) headers[r].load(weights + r * Weights::panel_stage + kUnits * Weights::unit, lane);
    Sums products = {};
    InputSums inputs[kFragments];
#pragma unroll
    for (InputSums& sums : inputs) sums.clear();
    multiply_folded_unit<0>(products, inputs, headers, fragments, weights, row);
    multiply_folded_unit<1>(products, inputs, headers, fragments, weights, row);
    multiply_folded_unit<2>(products, inputs, headers, fragments, weights, row);
    multiply_folded_unit<3>(products, inputs, headers, fragments, weights, row);
#pragma unroll
    for (int32_t n = 0; n < kFragments; ++n) {
      if (n >= fragments) break;
      uint32_t input_sums[3];
      inputs[n].split(input_sums);
#pragma unroll
      for (int32_t r = 0; r < kPanels; ++r) headers[r].add_with_mins(acc[r][n], products[r][n], input_sums);
    }
  }

  template <int32_t u>
  __device__ __forceinline__ void multiply_folded_unit(Sums& products, InputSums (&inputs)[kFragments],
                                                       const FoldedHeader (&headers)[kPanels], int32_t fragments, uint32_t weights,
                                                       uint32_t row) const {
    UnitQuants<T> quants[kPanels];
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r) {
      const uint32_t panel = weights + r * Weights::panel_stage;
      quants[r].begin(panel + Weights::quants_at(u), panel + Weights::high_at(u), lane);
    }
    multiply_folded_half<u, 0>(products, inputs, headers, quants, fragments, row);
    multiply_folded_half<u, 1>(products, inputs, headers, quants, fragments, row);
  }

  // Half a unit, so that few registers hold fragments.
  template <int32_t u, int32_t half>
  __device__ __forceinline__ void multiply_folded_half(Sums& products, InputSums (&inputs)[kFragments],
                                                       const FoldedHeader (&headers)[kPanels], const UnitQuants<T> (&quants)[kPanels],
                                                       int32_t fragments, uint32_t row) const {
    uint32_t a[kPanels][2][4];
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r) {
      const uint32_t g = headers[r].template scale<u * 2 + half>(0, false), g8 = headers[r].template scale<u * 2 + half>(1, false);
      folded_fragment<T, half * 2>(quants[r], g, g8, a[r][0]);
      folded_fragment<T, half * 2 + 1>(quants[r], g, g8, a[r][1]);
    }
#pragma unroll
    for (int32_t n = 0; n < kFragments; ++n) {
      if (n >= fragments) break;
      uint32_t x[4];
      load_matrices(x, row + n * 8 * Layout::row + u * (kUnitCols * 2) + half * 64);
      inputs[n].add(x, u * 2 + half, lane);
#pragma unroll
      for (int32_t r = 0; r < kPanels; ++r) {
        mma16816<E>(products[r][n], a[r][0], x[0], x[1]);
        mma16816<E>(products[r][n], a[r][1], x[2], x[3]);
      }
    }
  }

  // Inputs [32 * half, 32 * half + 32) of a unit; `quants` is the address of its first panel's quants, `row` of its inputs.
  template <int32_t half, class Unit>
  __device__ __forceinline__ void multiply_half(Sums& acc, Unit (&units)[kPanels], int32_t fragments, uint32_t quants, uint32_t row) const {
    uint32_t a[kPanels][2][Split::weights][4];
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r) {
      if constexpr (Format<T>::is_float) {
#pragma unroll
        for (int32_t s = 0; s < 2; ++s) load_terms<T>(a[r][s], quants + r * Weights::panel_stage, half * 2 + s, lane);
      } else {
        units[r].template take<half * 2>(a[r][0][0]);
        units[r].template take<half * 2 + 1>(a[r][1][0]);
      }
    }
#pragma unroll
    for (int32_t n = 0; n < kFragments; ++n) {
      if (n >= fragments) break;
      uint32_t b[4];
      load_matrices(b, row + n * 8 * Layout::row + half * 64);
#pragma unroll
      for (int32_t r = 0; r < kPanels; ++r) {
        Mma::product(acc[r][n], a[r][0], b[0], b[1]);
        Mma::product(acc[r][n], a[r][1], b[2], b[3]);
      }
    }
  }

  // Unit u of a stage: float weights, or quantised ones that are rounded to f16.
  __device__ __forceinline__ void multiply_unit(Sums& acc, const GroupHeader<T> (&headers)[kPanels], int32_t fragments, int32_t stage,
                                                int32_t u) const {
    const uint32_t weights = pipeline.weights_in(stage), row = row_of_lane(stage) + u * (kUnitCols * 2);
    std::conditional_t<Format<T>::is_float, typename Mma::NoUnit, RoundedUnit<T>> units[kPanels];
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r) {
      const uint32_t panel = weights + r * Weights::panel_stage;
      units[r].begin(panel + Weights::quants_at(u), panel + Weights::high_at(u), panel + Weights::scales_at(u), headers[r], lane);
    }
    multiply_half<0>(acc, units, fragments, weights + Weights::quants_at(u), row);
    multiply_half<1>(acc, units, fragments, weights + Weights::quants_at(u), row);
  }

  using Slices = SliceCursor<f.units>;

  // Adds the sums of a slice that has ended to those of the slices before.
  __device__ __forceinline__ static void add_slice(Sums& total, Sums& acc) {
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r)
#pragma unroll
      for (int32_t n = 0; n < kFragments; ++n)
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          total[r][n][i] += acc[r][n][i];
          acc[r][n][i] = 0;
        }
  }

  __device__ __forceinline__ void multiply(Sums& total, Sums& acc, Slices& slices, int32_t fragments, int32_t unit, int32_t stage) const {
    if constexpr (kFolds<T>) {
      multiply_folded(acc, fragments, stage);
      if (unit + kUnits == slices.end) {
        add_slice(total, acc);
        slices.next(p.groups);
      }
    } else {
      GroupHeader<T> headers[kPanels];
      if constexpr (Weights::grouped) {
#pragma unroll
        for (int32_t r = 0; r < kPanels; ++r)
          headers[r].load(pipeline.weights_in(stage) + r * Weights::panel_stage + kUnits * Weights::unit, lane);
      }
#pragma unroll
      for (int32_t u = 0; u < kUnits; ++u) {
        if (u > 0 && !Weights::grouped && unit + u >= pipeline.unit_end) break;
        multiply_unit(acc, headers, fragments, stage, u);
        if (unit + u + 1 == slices.end) {
          add_slice(total, acc);
          slices.next(p.groups);
        }
      }
    }
  }

  // The biases of this lane's rows of an item: g and g + 8 of each panel.
  __device__ __forceinline__ void load_biases(float (&bias)[kPanels][2], const ExpertTile& tile, int32_t item) const {
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r)
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t row = panel_of(item, r) * kPanelRows + i * 8 + lane / 4;
        const bool is = target(r).bias != nullptr && row < target(r).rows;
        bias[r][i] = is ? target(r).bias[static_cast<int64_t>(tile.expert) * target(r).rows + row] : 0;
      }
  }

  __device__ __forceinline__ void store(Sums& sums, const float (&bias)[kPanels][2], const ExpertTile& tile, int32_t item,
                                        const int32_t* of) const {
    const GroupedEpilogue<A> epilogue{grouped, p, lane};
#pragma unroll
    for (int32_t n = 0; n < kFragments; ++n) {
      if (n * 8 >= tile.count) break;
#pragma unroll
      for (int32_t r = 0; r < kPanels; ++r)
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) sums[r][n][i] = sums[r][n][i] * p.x_scale + bias[r][i / 2];
      const int32_t first = n * 8;
      if (pair()) {
        const int32_t at = first + lane / 4;
        epilogue.store_gated(sums[0][n], sums[1][n], panel_of(item, 0), at < tile.count ? of[at] : -1);
      } else {
#pragma unroll
        for (int32_t r = 0; r < kPanels; ++r) epilogue.store_sums(sums[r][n], panel_of(item, r), of, first, tile.count);
      }
    }
  }

  __device__ __forceinline__ void run() {
    grid_wait();
    grid_trigger();
    const int32_t first_item = static_cast<int32_t>(blockIdx.x), step = static_cast<int32_t>(gridDim.x);
    tiles = *grouped.plan.tile_count;
    items = tiles * panel_blocks;
    if (first_item >= items) return;
    Cursor next;
    next.item = first_item;
    next.unit = 0;
    ExpertTile tile = tile_of(first_item);
    aim(next.feed, tile, first_item);
    aim(next.next, tile_of(first_item + step), first_item + step);
    next.after = tile_of(first_item + 2 * step);
#pragma unroll 1
    for (int32_t s = 0; s < kStages - 1; ++s) request(next, s);

    int32_t stage = 0, free_stage = kStages - 1, buffer = 0;
#pragma unroll 1
    for (int32_t item = first_item; item < items; item += step) {
      int32_t* const of = pairs + buffer * Layout::pairs;
      if (thread() < tile.count) of[thread()] = grouped.plan.pairs[tile.first + thread()];
      float bias[kPanels][2];
      load_biases(bias, tile, item);
      const ExpertTile following = tile_of(item + step);
      const int32_t fragments = (tile.count + 7) / 8;
      Sums total = {}, acc = {};
      Slices slices;
      slices.next(p.groups);
#pragma unroll 1
      for (int32_t unit = 0; unit < pipeline.unit_end; unit += kUnits) {
        copies_wait<kStages - 2>();
        __syncthreads();  // the stage has arrived for every warp, and every warp has left the one before it
        request(next, free_stage);
        multiply(total, acc, slices, fragments, unit, stage);
        free_stage = stage;
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      store(total, bias, tile, item, of);
      tile = following;
      buffer ^= 1;
    }
  }
};

template <int32_t T, class A>
__global__ void __launch_bounds__(256, SeveralLayout<T, A, 228>::blocks) several_rows(const __grid_constant__ GroupedParams p) {
  using Layout = SeveralLayout<T, A, kGemvSharedKiB>;
  uint8_t* const memory = dynamic_memory();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  SeveralRowsBlock<T, A> block{
      p, p.gemm, {p.gemm, warp, lane, shared_address(memory), nullptr, evict_normal_policy(), 0, p.gemm.groups * Format<T>::f.units},
      reinterpret_cast<int32_t*>(memory + Layout::pairs_at)};
  block.run();
}

// Operands of several terms have no such kernel: few models have them, and few_rows.cuh gives the same bits. Nor has a build for compute
// capability 9.0 alone, where several_rows_wgmma.cuh takes every tile.
template <int32_t T>
GemvKernel several_rows_kernel(Act act) {
  return with_multiplied_act<T, GemvKernel>(act, [](auto element) -> GemvKernel {
    using A = decltype(element);
    if constexpr (MR_HOPPER != 2 && OperandSplit<T, A>::single) {
      return {reinterpret_cast<const void*>(&several_rows<T, A>),
              [](int32_t capability) {
                return gemv_shared_bytes(capability, [](auto room) { return SeveralLayout<T, A, decltype(room)::value>::bytes; });
              },
              256, SeveralLayout<T, A, 0>::panels, kMostExpertTile};
    } else {
      return {};
    }
  });
}

}  // namespace mr::cuda
