// few_rows: the grouped GEMM of the decode class for experts of few pairs. It is gemv_async.cuh with another order of work: an item is a
// panel of an expert's matrix, or the panels of its gate and up, for one tile of the plan. Slices and pipelines are those of
// gemv_async; the sums of the eight split-K slices are added in ascending order.
//
// Items of a tile follow one another, so neighbouring blocks stream one matrix, and a matrix that several tiles read is
// in L2 for the later ones. Which experts there are is known after grid_wait(): no weight is requested before. Where a tile is divided,
// parts without pairs are skipped.
#pragma once

#include "kernels/act.cuh"
#include "kernels/experts/gated.cuh"
#include "kernels/experts/grouped.h"
#include "kernels/gemm/gemv_async_mma.cuh"

namespace mr::cuda {

template <int32_t T, class A, class S>
struct FewRowsBlock {
  using Mma = GemvAsyncMma<T, A, S>;
  using Pipeline = GemvAsyncPipeline<T, A, S>;
  using Layout = typename Pipeline::Layout;
  using Cursor = typename Pipeline::Cursor;

  static constexpr bool pair = S::panels == 2;
  static constexpr int32_t kRows = kPanelRows, kOutputs = kRows * S::tokens;  // of an item; a thread stores one

  const GroupedParams& grouped;
  const GemvParams& p;
  const GemvTile<A, S> slices;
  const Pipeline pipeline;
  int32_t items = 0;  // panels * tiles * parts of a tile

  // Feed is where a lane copies an item's operands from: its first 16 bytes of each panel, and the rows of x.
  struct Feed {
    typename Pipeline::WeightFeed weights;
    const uint8_t* rows[Pipeline::row_steps];  // null: no pair is there
  };

  // The pairs of an item: its part of a tile, which may have none.
  __device__ __forceinline__ ExpertTile tile_of(int32_t item) const {
    const int32_t index = item / p.targets[0].panels;
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

  __device__ __forceinline__ void aim_weights(Feed& feed, int32_t item) const {
    const int64_t matrix = tile_of(item).expert * grouped.matrix_bytes;
    const int64_t panel = matrix + item % p.targets[0].panels * p.panel_bytes + pipeline.lane * 16;
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) feed.weights.panel[r] = p.targets[r].data + panel;
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
    const int32_t thread = pipeline.warp * 32 + pipeline.lane, local = thread % kRows, column = thread / kRows;
    const ExpertTile tile = tile_of(item);
    const int32_t row = item % p.targets[0].panels * kPanelRows + local;
    const bool stores = thread < kOutputs && column < tile.count && row < p.targets[0].rows;
    const int64_t out = stores ? grouped.plan.pairs[tile.first + column] * p.targets[0].out_stride + row : 0;
    float bias[S::panels] = {};
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r)
      if (stores && p.targets[r].bias != nullptr)
        bias[r] = p.targets[r].bias[static_cast<int64_t>(tile.expert) * p.targets[r].rows + row];
    __syncthreads();
    if (!stores) return;
    float y[S::panels];
#pragma unroll
    for (int32_t r = 0; r < S::panels; ++r) {
      const int32_t index = column * S::reduction_stride + r * kPanelRows + local;
      float sum = 0;
#pragma unroll
      for (int32_t s = 0; s < kSlices; ++s) sum += sums[s * S::reduction_plane + index];
      y[r] = sum * p.x_scale + bias[r];
    }
    if constexpr (pair) {
      static_cast<A*>(p.targets[0].out)[out] = ActOps<A>::from(gated_product(grouped.activation, y[0], y[1]) * p.pair_share);
    } else {
      static_cast<float*>(p.targets[0].out)[out] = y[0];
    }
  }

  __device__ __forceinline__ void run() {
    grid_wait();
    grid_trigger();
    const int32_t begin = pipeline.unit_begin, end = pipeline.unit_end, block = static_cast<int32_t>(blockIdx.x);
    Feed feed;
    aim_weights(feed, block);  // before the number of items is loaded; without this item the address is not used
    items = *grouped.plan.tile_count * grouped.parts * p.targets[0].panels;
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
template <int32_t T, class A, int32_t panels, int32_t tokens, int32_t units, int32_t blocks>
GemvKernel few_rows_fitting() {
  using S = GemvShape<panels, tokens, units, blocks>;
  constexpr bool everywhere = tokens > 1 || T == kF32 || GemvAsyncLayout<T, A, S, 100>::alone >= 2;
  if constexpr (GemvAsyncLayout<T, A, S, 228>::many >= 2 && everywhere) {
    return {reinterpret_cast<const void*>(&few_rows<T, A, S>),
            [](int32_t capability) {
              return gemv_shared_bytes(capability, [](auto room) { return GemvAsyncLayout<T, A, S, decltype(room)::value>::bytes; });
            },
            S::threads, 1, S::tokens};
  } else {
    static_assert(units > 1, "the pipelines do not fit");
    return few_rows_fitting<T, A, panels, tokens, units / 2, blocks>();
  }
}

template <int32_t T, class A>
GemvKernel few_rows_kernel_for(GroupedForm form) {
  constexpr bool number = Format<T>::is_float;
  constexpr int32_t blocks = T == kF32 ? 1 : 2, most = number ? 1 : 4;
  switch (form) {
    case GroupedForm::kFewSingle1: return few_rows_fitting<T, A, 1, 1, number ? 2 : 4, blocks>();
    case GroupedForm::kFewPair1: return few_rows_fitting<T, A, 2, 1, Format<T>::superblock ? 2 : most, blocks>();
    case GroupedForm::kFewSingle8: return few_rows_fitting<T, A, 1, 8, most, blocks>();
    case GroupedForm::kFewPair8: return few_rows_fitting<T, A, 2, 8, most, blocks>();
    default: return {};
  }
}

// Quantised weights multiply f16 activations alone.
template <int32_t T>
GemvKernel few_rows_kernel_of(Act act, GroupedForm form) {
  if (act == Act::kF16) return few_rows_kernel_for<T, __half>(form);
  if constexpr (Format<T>::is_float) return few_rows_kernel_for<T, __nv_bfloat16>(form);
  else return {};
}

}  // namespace mr::cuda
