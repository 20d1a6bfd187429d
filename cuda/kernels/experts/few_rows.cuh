// few_rows: the grouped GEMM of the decode class for experts of few pairs. It is gemv_async.cuh with another order of work: an item is
// two panels of an expert's matrix, or a panel of its gate and of its up, for one tile of the plan. Slices and pipelines are those of
// gemv_async; the sums of the eight split-K slices are added in ascending order.
//
// Items of a tile follow one another, so neighbouring blocks stream one matrix, and a matrix that several tiles read is
// in L2 for the later ones. Which experts there are is known after grid_wait(): no weight is requested before. Where a tile is divided,
// parts without pairs are skipped.
#pragma once

#include "kernels/act.cuh"
#include "kernels/experts/gated.cuh"
#include "kernels/experts/grouped.h"
#include "kernels/gemm/gemv_async_pipeline.cuh"

namespace mr::cuda {

template <int32_t T, class A, class S>
struct FewRowsBlock {
  using Mma = GemvAsyncMma<T, A, S>;
  using Pipeline = GemvAsyncPipeline<T, A, S>;
  using Layout = typename Pipeline::Layout;
  using Cursor = typename Pipeline::Cursor;

  static_assert(S::rows * S::tokens <= S::threads, "a thread stores one output of an item");

  const GroupedParams& grouped;
  const GemvParams& p;
  const GemvTile<A, S> slices;
  const Pipeline pipeline;
  const bool pair = p.pair != 0;  // the two panels are of gate and up
  const int32_t item_panels = pair ? 1 : S::panels;  // of a target
  const int32_t panel_items = (p.targets[0].panels + item_panels - 1) / item_panels;
  int32_t items = 0;  // panel_items * tiles * parts of a tile

  // Feed is where a lane copies an item's operands from: its first 16 bytes of each panel, and the rows of x.
  struct Feed {
    typename Pipeline::WeightFeed weights;
    const uint8_t* rows[Pipeline::row_steps];  // null: no pair is there
  };

  // The pairs of an item: its part of a tile, which may have none.
  __device__ __forceinline__ ExpertTile tile_of(int32_t item) const {
    const int32_t index = item / panel_items;
    ExpertTile tile = grouped.plan.tiles[index / grouped.parts];
    const int32_t skipped = index % grouped.parts * S::tokens;
    tile.first += skipped;
    tile.count = min(tile.count - skipped, S::tokens);
    return tile;
  }

  // Returns the block's first item from `item` on that has a pair: a part of a tile may have none.
  __device__ __forceinline__ int32_t next_of(int32_t item) const {
    if (grouped.parts == 1) return item;
    while (item < items && tile_of(item).count <= 0) item += static_cast<int32_t>(gridDim.x);
    return item;
  }

  // A panel past the last is read as the last; its sums are discarded.
  __device__ __forceinline__ void aim_weights(Feed& feed, int32_t item) const {
    const int64_t matrix = tile_of(item).expert * grouped.matrix_bytes + pipeline.lane * 16;
    const int32_t first = item % panel_items * item_panels;
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      const KernelTarget& target = p.targets[pair ? r : 0];
      feed.weights.panel[r] = target.data + matrix + min(pair ? first : first + r, target.panels - 1) * p.panel_bytes;
    }
  }

  __device__ __forceinline__ void aim_rows(Feed& feed, int32_t item) const {
    const ExpertTile tile = tile_of(item);
#pragma unroll
    for (int32_t i = 0; i < Pipeline::row_steps; ++i) {
      const int32_t at = pipeline.own_row() + i * Pipeline::rows_at_once;
      feed.rows[i] = nullptr;
      if (at >= tile.count) continue;
      const int64_t row = grouped.plan.pairs[tile.first + at] / grouped.x_share;
      feed.rows[i] = static_cast<const uint8_t*>(p.x) + row * p.x_stride * 2 + pipeline.own_piece();
    }
  }

  // Requests a stage's rows. Rows without a pair keep what the stage holds, because their sums are discarded; columns past
  // the last become zeros.
  __device__ __forceinline__ void fill_rows(const Feed& feed, int32_t unit, int32_t stage) const {
    const uint32_t to = pipeline.tokens_in(stage) + pipeline.own_row() * Layout::token_row + pipeline.own_piece();
    const int64_t from = static_cast<int64_t>(unit) * (kUnitCols * 2);
    const bool whole = (unit + S::units) * kUnitCols <= p.cols;
    const int32_t left = (p.cols - unit * kUnitCols) * 2 - pipeline.own_piece();
#pragma unroll
    for (int32_t i = 0; i < Pipeline::row_steps; ++i) {
      if (feed.rows[i] == nullptr) continue;
      const uint32_t place = to + i * Pipeline::rows_at_once * Layout::token_row;
      if (whole) copy16_through(place, feed.rows[i] + from);
      else copy16_or_zero(place, left > 0 ? feed.rows[i] + from : feed.rows[i], static_cast<uint32_t>(min(max(left, 0), 16)));
    }
  }

  // Requests a stage, if there is one, and advances. Weights do not wait for the list of pairs.
  __device__ __forceinline__ void request(Feed& feed, Cursor& cursor, int32_t stage) const {
    if (cursor.item < items) {
      pipeline.fill(feed.weights, cursor, stage);
      if (cursor.unit == pipeline.unit_begin) aim_rows(feed, cursor.item);
      fill_rows(feed, cursor.unit, stage);
      cursor.unit += S::units;
      if (cursor.unit >= pipeline.unit_end) {
        cursor.unit = pipeline.unit_begin;
        cursor.item = next_of(cursor.item + static_cast<int32_t>(gridDim.x));
        if (cursor.item < items) aim_weights(feed, cursor.item);
      }
    }
    copies_commit();
  }

  // Adds the slices of an item in ascending order, and stores one output for each thread.
  __device__ __forceinline__ void finish(int32_t item, const float* sums) const {
    const int32_t thread = pipeline.warp * 32 + pipeline.lane, rows = pair ? kPanelRows : S::rows, local = thread % rows;
    const int32_t column = thread / rows, row = item % panel_items * rows + local;
    const ExpertTile tile = tile_of(item);
    const bool stores = column < tile.count && row < p.targets[0].rows;
    const int64_t out = stores ? grouped.plan.pairs[tile.first + column] * p.targets[0].out_stride + row : 0;
    float bias[2] = {};
#pragma unroll
    for (int32_t i = 0; i < 2; ++i)
      if (stores && (i == 0 || pair) && p.targets[i].bias != nullptr)
        bias[i] = p.targets[i].bias[static_cast<int64_t>(tile.expert) * p.targets[i].rows + row];
    __syncthreads();
    if (!stores) return;
    const auto output = [&](int32_t i) {
      const int32_t index = column * S::reduction_stride + i * kPanelRows + local;
      float sum = 0;
#pragma unroll
      for (int32_t s = 0; s < kSlices; ++s) sum += sums[s * S::reduction_plane + index];
      return sum * p.x_scale + bias[i];
    };
    if (pair) {
      static_cast<A*>(p.targets[0].out)[out] = ActOps<A>::from(gated_product(grouped.activation, output(0), output(1)) * p.pair_share);
    } else {
      static_cast<float*>(p.targets[0].out)[out] = output(0);
    }
  }

  __device__ __forceinline__ void run() {
    grid_wait();
    grid_trigger();
    const int32_t begin = pipeline.unit_begin, end = pipeline.unit_end, block = static_cast<int32_t>(blockIdx.x);
    Feed feed;
    aim_weights(feed, block);  // before the number of items is loaded; without this item the address is not used
    items = *grouped.plan.tile_count * grouped.parts * panel_items;
    const int32_t first_item = next_of(block);
    if (first_item != block && first_item < items) aim_weights(feed, first_item);
    Cursor next{begin < end ? first_item : items, begin};
#pragma unroll 1
    for (int32_t s = 0; s < Layout::stages - 1; ++s) request(feed, next, s);

    const Mma mma{pipeline};
    int32_t stage = 0, free_stage = Layout::stages - 1, buffer = 0;
#pragma unroll 1
    for (int32_t item = first_item; item < items; item = next_of(item + static_cast<int32_t>(gridDim.x))) {
      typename Mma::Sums acc = {};
      typename Mma::Group group;
#pragma unroll 1
      for (int32_t unit = begin; unit < end; unit += S::units) {
        copies_wait<Layout::stages - 2>();
        __syncwarp();
        request(feed, next, free_stage);
        mma.multiply(acc, group, stage, unit);
        free_stage = stage;
        stage = stage + 1 == Layout::stages ? 0 : stage + 1;
      }
      float* const sums = slices.partial_sums + buffer * S::reduction;
#pragma unroll
      for (int32_t r = 0; r < S::panels; ++r) slices.put(acc[r], r, sums);
      finish(item, sums);
      buffer ^= 1;
    }
  }
};

template <int32_t T, class A, class S>
__global__ void __launch_bounds__(S::threads, S::blocks_per_sm) few_rows(const __grid_constant__ GroupedParams p) {
  using Layout = GemvAsyncLayout<T, A, S, kGemvSharedKiB>;
  uint8_t* const stage_memory = dynamic_memory();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  FewRowsBlock<T, A, S> block{p, p.gemm,
                              {p.gemm, reinterpret_cast<float*>(stage_memory + Layout::partial_sums_at), warp, lane},
                              {p.gemm, warp, lane, shared_address(stage_memory), nullptr, evict_normal_policy()}};
  block.run();
}

// Picks the shape with the most units in a stage, up to `units`, that gemv_async would take.
template <int32_t T, class A, int32_t tokens, int32_t units, int32_t blocks>
GemvKernel few_rows_fitting() {
  using S = GemvShape<2, tokens, units, blocks>;
  constexpr bool everywhere = tokens > 1 || T == kF32 || GemvAsyncLayout<T, A, S, 100>::alone >= 2;
  if constexpr (GemvAsyncLayout<T, A, S, 228>::many >= 2 && everywhere) {
    return {reinterpret_cast<const void*>(&few_rows<T, A, S>),
            [](int32_t capability) {
              return gemv_shared_bytes(capability, [](auto room) { return GemvAsyncLayout<T, A, S, decltype(room)::value>::bytes; });
            },
            S::threads, S::panels, S::tokens};
  } else {
    static_assert(units > 1, "the pipelines do not fit");
    return few_rows_fitting<T, A, tokens, units / 2, blocks>();
  }
}

// Compute capability 9.0 has the shared memory of the other kernels, and a build for it alone has no tiles of one pair.
template <int32_t T>
GemvKernel few_rows_kernel(Act act, GroupedForm form) {
  constexpr int32_t blocks = T == kF32 ? 1 : 2, most = Format<T>::is_float ? 1 : 4;
  return with_multiplied_act<T, GemvKernel>(act, [&](auto element) -> GemvKernel {
    using A = decltype(element);
    if (form == GroupedForm::kFew) return few_rows_fitting<T, A, kLeastExpertTile, most, blocks>();
    if constexpr (MR_HOPPER == 2) return {};
    else return few_rows_fitting<T, A, 1, Format<T>::superblock ? 2 : most, blocks>();
  });
}

}  // namespace mr::cuda
