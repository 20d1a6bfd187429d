// many_rows: the grouped GEMM of the prefill class. A block computes 16 panels of an expert's matrix, or 8 of its gate and
// the same 8 of its up, for the up to 64 pairs of one tile of the plan, or of one part of a larger tile.
//
//   weights --cp.async--> [stage 0][stage 1] ...   each warp requests and reads its own two panels
//   rows    --cp.async--> [stage 0][stage 1] ...   gathered by pair; all warps request and read them
//                              |
//        a unit of 64 inputs:  two panels to A fragments, rounded once (fragment.cuh); eight B fragments of 8 pairs; mma
//
// A warp sums in ascending order of the columns, in f32, so no sum crosses a warp and gate and up of an output meet in
// one lane. One barrier a unit frees the stage that all warps have left. Fragments without pairs are skipped, so a tile of
// few pairs costs little more than the stream of its weights. Two blocks share an SM, so that one multiplies while the other
// waits at its barrier; for that Q4_K and Q5_K spill up to five registers. Sums leave the registers through transposed fragments, with
// neighbouring outputs of a pair together.
#pragma once

#include "kernels/experts/grouped.h"
#include "kernels/experts/grouped_epilogue.cuh"
#include "kernels/gemm/gemv_async_pipeline.cuh"

namespace mr::cuda {

constexpr int32_t kManyPairs = kManyTile, kManyFragments = kManyPairs / 8;

// Two panels of a warp, one unit a stage: gemv_async's stages of weights.
using ManyShape = GemvShape<2, 8, 1, 1>;

template <int32_t T, class A, int32_t room>
struct ManyLayout {
  using Weights = GemvAsyncLayout<T, A, ManyShape, room>;
  static constexpr int32_t row = kUnitCols * 2 + 16;  // 16 bytes of padding: ldmatrix meets every bank once
  static constexpr int32_t rows = kManyPairs * row, stage = Weights::stage + rows;
  static constexpr int32_t published = Weights::f.units * 256;  // of a panel: what publish() writes
  static constexpr int32_t exchange_each = Format<T>::six_bits ? 2 * published : 0;  // of a warp
  static constexpr int32_t fixed = ManyShape::warps * exchange_each + kManyPairs * 4;
  static constexpr int32_t bytes_of(int32_t stages) { return stages * stage + fixed; }
  // As many stages, up to 4, as let two blocks share an SM, or else one block have an SM.
  static constexpr int32_t fitting(int32_t blocks) {
    int32_t stages = 4;
    while (stages > 0 && bytes_of(stages) > room * 1024 / blocks - 1024) --stages;
    return stages;
  }
  static constexpr int32_t shared = fitting(2), alone = fitting(1);
  static constexpr int32_t stages = shared >= 3 ? shared : alone >= 2 ? alone : 2;
  static constexpr int32_t rows_at = stages * Weights::stage, exchange_at = rows_at + stages * rows;
  static constexpr int32_t pairs_at = exchange_at + ManyShape::warps * exchange_each, bytes = bytes_of(stages);
};

template <int32_t T, class A>
struct ManyRowsBlock {
  using Pipeline = GemvAsyncPipeline<T, A, ManyShape>;
  using Layout = ManyLayout<T, A, kGemvSharedKiB>;
  using Weights = typename Layout::Weights;
  using WeightFeed = typename Pipeline::WeightFeed;
  static constexpr WeightFormat f = Pipeline::f;

  static constexpr int32_t kPanels = 2, kStages = Layout::stages;
  static constexpr int32_t kRowSteps = kManyPairs * (kUnitCols / 8) / ManyShape::threads;  // 16-byte pieces of a thread

  const GroupedParams& grouped;
  const GemvParams& p;
  const Pipeline pipeline;
  int32_t* const pairs;  // (kManyPairs) of the tile, in shared memory
  const int32_t warp = pipeline.warp, lane = pipeline.lane;
  ExpertTile tile = {};
  int32_t panel[kPanels] = {};  // of this warp, within their targets
  int32_t fragments = 0;        // that have pairs

  struct RowFeed {
    const uint8_t* rows[kRowSteps];  // null: no pair is there
  };

  // Returns whether the two panels of a warp are of gate and up. A member would take a register.
  __device__ __forceinline__ bool pair() const { return p.pair != 0; }
  __device__ __forceinline__ const KernelTarget& target(int32_t r) const { return p.targets[pair() ? r : 0]; }
  __device__ __forceinline__ int32_t thread() const { return warp * 32 + lane; }
  __device__ __forceinline__ uint32_t rows_in(int32_t stage) const { return pipeline.shared + Layout::rows_at + stage * Layout::rows; }

  // A warp past the last panel reads the last one and stores nothing.
  __device__ __forceinline__ void aim(WeightFeed& weights, RowFeed& rows) {
    const int64_t matrix = tile.expert * grouped.matrix_bytes;
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r) {
      panel[r] = (static_cast<int32_t>(blockIdx.x) * ManyShape::warps + warp) * (pair() ? 1 : kPanels) + (pair() ? 0 : r);
      weights.panel[r] = target(r).data + matrix + min(panel[r], target(r).panels - 1) * p.panel_bytes + lane * 16;
    }
#pragma unroll
    for (int32_t i = 0; i < kRowSteps; ++i) {
      const int32_t at = thread() / 8 + i * (ManyShape::threads / 8);
      rows.rows[i] = nullptr;
      if (at >= tile.count) continue;
      const int64_t row = grouped.plan.pairs[tile.first + at] / grouped.x_share;
      rows.rows[i] = static_cast<const uint8_t*>(p.x) + row * p.x_stride * 2 + thread() % 8 * 16;
    }
  }

  // Requests a unit's weights and rows. Rows without a pair keep what the stage holds; columns past the last become zeros.
  __device__ __forceinline__ void request(const WeightFeed& weights, const RowFeed& rows, int32_t unit, int32_t units,
                                          int32_t stage) const {
    if (unit < units) {
      pipeline.fill(weights, {0, unit}, stage);
      const int32_t left = min(max((p.cols - unit * kUnitCols) * 2 - thread() % 8 * 16, 0), 16);
#pragma unroll
      for (int32_t i = 0; i < kRowSteps; ++i) {
        if (rows.rows[i] == nullptr) continue;
        const uint32_t to = rows_in(stage) + (thread() / 8 + i * (ManyShape::threads / 8)) * Layout::row + thread() % 8 * 16;
        copy16_or_zero(to, rows.rows[i] + (left > 0 ? unit * (kUnitCols * 2) : 0), static_cast<uint32_t>(left));
      }
    }
    copies_commit();
  }

  using Sums = float[kPanels][kManyFragments][4];

  // Adds the products of 32 of a stage's inputs. Quants and scales are loaded for each half, which keeps registers free.
  template <int32_t half>
  __device__ __forceinline__ void multiply_half(Sums& acc, const GroupHeader<T> (&headers)[kPanels], int32_t unit, int32_t stage) const {
    uint32_t a[kPanels][2][4];
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r) {
      const uint32_t from = pipeline.weights_in(stage) + r * Weights::panel_stage, quants_at = from + Weights::quants_at(0);
      if constexpr (Format<T>::is_float) {
        load_rounded<T, A>(a[r][0], quants_at, half * 2, lane);
        load_rounded<T, A>(a[r][1], quants_at, half * 2 + 1, lane);
      } else {
        RoundedUnit<T> weights;
        weights.begin(quants_at, from + Weights::high_at(0), Format<T>::six_bits ? exchange(r) + unit % f.units * 256
                                                                                 : from + Weights::scales_at(0), headers[r], lane);
        weights.template take<half * 2>(a[r][0]);
        weights.template take<half * 2 + 1>(a[r][1]);
      }
    }
    const uint32_t row = rows_in(stage) + (lane & 7) * Layout::row + (lane >> 3) * 16 + half * 64;
#pragma unroll
    for (int32_t n = 0; n < kManyFragments; ++n) {
      if (n >= fragments) break;
      uint32_t b[4];
      load_matrices(b, row + n * 8 * Layout::row);
#pragma unroll
      for (int32_t r = 0; r < kPanels; ++r) {
        mma16816<A>(acc[r][n], a[r][0], b[0], b[1]);
        mma16816<A>(acc[r][n], a[r][1], b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ uint32_t exchange(int32_t r) const {
    return pipeline.shared + Layout::exchange_at + warp * Layout::exchange_each + r * Layout::published;
  }

  // Loads the groups' headers, which their first units carry.
  __device__ __forceinline__ void open(GroupHeader<T> (&headers)[kPanels], int32_t stage) const {
    if constexpr (Format<T>::six_bits) __syncwarp();  // every lane has read the scales of the groups before
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r) {
      headers[r].load(pipeline.weights_in(stage) + r * Weights::panel_stage + Weights::unit, lane);
      if constexpr (Format<T>::six_bits) headers[r].template publish<f.units>(exchange(r), 0, lane);
    }
    if constexpr (Format<T>::six_bits) __syncwarp();
  }

  __device__ __forceinline__ void multiply(Sums& acc, GroupHeader<T> (&headers)[kPanels], int32_t unit, int32_t stage) const {
    if constexpr (!Format<T>::is_float)
      if (unit % f.units == 0) open(headers, stage);
    multiply_half<0>(acc, headers, unit, stage);
    multiply_half<1>(acc, headers, unit, stage);
  }

  __device__ __forceinline__ void store(Sums& acc) const {
    const GroupedEpilogue<A> epilogue{grouped, p, lane};
    typename GroupedEpilogue<A>::RowBiases bias[kPanels];
#pragma unroll
    for (int32_t r = 0; r < kPanels; ++r) bias[r] = epilogue.biases(target(r), tile.expert, panel[r]);
#pragma unroll
    for (int32_t n = 0; n < kManyFragments; ++n) {
      if (n >= fragments) break;
#pragma unroll
      for (int32_t r = 0; r < kPanels; ++r) epilogue.finish(acc[r][n], bias[r]);
      if (pair()) {
        const int32_t at = n * 8 + lane / 4;
        epilogue.store_gated(acc[0][n], acc[1][n], panel[0], at < tile.count ? pairs[at] : -1);
      } else {
#pragma unroll
        for (int32_t r = 0; r < kPanels; ++r) epilogue.store_sums(acc[r][n], panel[r], pairs, n * 8, tile.count);
      }
    }
  }

  __device__ __forceinline__ void run() {
    grid_wait();
    grid_trigger();
    const int32_t index = static_cast<int32_t>(blockIdx.y) / grouped.parts;
    if (index >= *grouped.plan.tile_count) return;
    tile = grouped.plan.tiles[index];
    const int32_t skipped = static_cast<int32_t>(blockIdx.y) % grouped.parts * kManyPairs;
    if (skipped >= tile.count) return;
    tile.first += skipped;
    tile.count = min(tile.count - skipped, kManyPairs);
    fragments = (tile.count + 7) / 8;
    if (thread() < tile.count) pairs[thread()] = grouped.plan.pairs[tile.first + thread()];
    WeightFeed weights;
    RowFeed rows;
    aim(weights, rows);
    const int32_t units = p.groups * f.units;
#pragma unroll 1
    for (int32_t s = 0; s < kStages - 1; ++s) request(weights, rows, s, units, s);

    Sums acc = {};
    GroupHeader<T> headers[kPanels];
    int32_t stage = 0, free_stage = kStages - 1;
#pragma unroll 1
    for (int32_t unit = 0; unit < units; ++unit) {
      copies_wait<kStages - 2>();
      __syncthreads();  // the stage has arrived for every warp, and every warp has left the one before it
      request(weights, rows, unit + kStages - 1, units, free_stage);
      multiply(acc, headers, unit, stage);
      free_stage = stage;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    store(acc);
  }
};

template <int32_t T, class A>
__global__ void __launch_bounds__(ManyShape::threads, 2) many_rows(const __grid_constant__ GroupedParams p) {
  uint8_t* const memory = dynamic_memory();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  ManyRowsBlock<T, A> block{p, p.gemm, {p.gemm, warp, lane, shared_address(memory), nullptr, evict_normal_policy()},
                            reinterpret_cast<int32_t*>(memory + ManyLayout<T, A, kGemvSharedKiB>::pairs_at)};
  block.run();
}

template <int32_t T, class A>
GemvKernel many_rows_kernel_for() {
  return {reinterpret_cast<const void*>(&many_rows<T, A>),
          [](int32_t capability) {
            return gemv_shared_bytes(capability, [](auto room) { return ManyLayout<T, A, decltype(room)::value>::bytes; });
          },
          ManyShape::threads, ManyShape::warps * ManyShape::panels, kManyPairs};
}

template <int32_t T>
GemvKernel many_rows_kernel(Act act) {
  return with_multiplied_act<T, GemvKernel>(act, [](auto element) { return many_rows_kernel_for<T, decltype(element)>(); });
}

}  // namespace mr::cuda
