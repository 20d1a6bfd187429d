// eight_rows: gate and up of the decode class for at most eight rows of x, which most experts share one or two of. An item is a panel of
// gate and of up of one expert.
//
//   x        --> registers        once for a launch: a warp's slice of all rows, as the B fragments of its products
//   weights  --cp.async--> [stage 0][stage 1] ...   all of a warp's shared memory; a stage is of one panel: gate's, then up's
//                              |
//        each panel times all eight rows; stored are those of the expert's pairs
//
// Column c of a product is row c of x, for every expert, so nothing is gathered and no stage has room for inputs: few_rows.cuh gives them
// half of its shared memory, and its two stages keep too few weights in flight. The input sums of Q4_K and Q5_K are made once, too. A row
// uses an expert once, so an expert has at most eight pairs, and all of them are in one tile of the plan. Slices are those of
// few_rows.cuh and are added in the same order, so a pair has the same bits.
#pragma once

#include "kernels/act.cuh"
#include "kernels/experts/eight_columns.cuh"
#include "kernels/experts/gated.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

template <int32_t T, int32_t room>
struct EightRowsLayout {
  using Stage = EightStage<T>;
  using Shape = GemvShape<2, kEightRows, Stage::units, 2>;
  static constexpr int32_t stage = Shape::warps * Stage::bytes, sums = 2 * Shape::reduction * 4;
  static constexpr int32_t many = Stage::fitting(room, 2, sums), stages = many >= 2 ? many : Stage::fitting(room, 1, sums);
  static constexpr int32_t partial_sums_at = stages * stage, bytes = partial_sums_at + sums;
  // Scratch that turns a unit's inputs into fragments: eight rows of 128 bytes and 16 of padding, so that ldmatrix meets every bank
  // once. It is where the warp's first sums will be.
  static constexpr int32_t row = kUnitCols * 2 + 16;
  static_assert(kEightRows * row <= Shape::reduction_plane * 4);
  static_assert(room == 0 || stages >= 2);
};

template <int32_t T, class A>
struct EightRowsBlock {
  using Layout = EightRowsLayout<T, kGemvSharedKiB>;
  using Shape = typename Layout::Shape;
  using E = typename OperandSplit<T, A>::Element;
  using Stage = typename Layout::Stage;
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t kUnits = Stage::units, kStages = Layout::stages;

  const GroupedParams& grouped;
  const GemvParams& p;
  const GemvTile<A, Shape> slices;
  const uint32_t shared;  // address of the stages
  const int32_t warp = slices.warp, lane = slices.lane;
  const int32_t first_group = p.groups * warp / kSlices;                              // of this warp's slice
  const int32_t units = (p.groups * (warp + 1) / kSlices - first_group) * f.units;  // <= kEightUnits
  const int32_t panels = p.targets[0].panels;
  const int32_t step_tiles = static_cast<int32_t>(gridDim.x) / panels, step_panels = static_cast<int32_t>(gridDim.x) % panels;
  int32_t tiles = 0;

  // Inputs is four units of eight rows.
  struct Inputs {
    uint32_t x[4][2][4];     // as load_matrices returns each 32 inputs of a unit
    uint32_t input_sums[3];  // of types that fold: their sums, as three bf16 terms
  };
  static constexpr int32_t kInputs = kEightUnits / 4;

  // Cursor is the position of the next request: a target of an item, and a unit of the slice.
  struct Cursor {
    const uint8_t* from;  // this lane's first 16 bytes of the stage; null past the last item
    int32_t target, unit;
    EightItem next;       // the block's item after this one
    int32_t next_expert;
  };

  // Aims at the next item. Its expert is loaded an item ahead.
  __device__ __forceinline__ void aim(Cursor& c) const {
    const int64_t panel = c.next_expert * grouped.matrix_bytes + c.next.panel * p.panel_bytes;
    c.from = c.next.tile < tiles ? p.targets[0].data + panel + first_group * Format<T>::group_bytes + lane * 16 : nullptr;
    c.next.advance(step_tiles, step_panels, panels);
    c.next_expert = grouped.plan.tiles[min(c.next.tile, tiles - 1)].expert;
  }

  __device__ __forceinline__ uint32_t weights_in(int32_t stage) const { return shared + stage * Layout::stage + warp * Stage::bytes; }

  // Requests a stage, if there is one, and advances.
  __device__ __forceinline__ void request(Cursor& c, int32_t stage) const {
    if (c.from != nullptr) {
      Stage::request(weights_in(stage) + lane * 16, c.from, units - c.unit, lane);
      c.from += Stage::bytes;
      c.unit += kUnits;
      if (c.unit >= units) {
        if (c.target == 0) c.from += p.targets[1].data - p.targets[0].data - c.unit / kUnits * Stage::bytes;
        else aim(c);
        c.target ^= 1;
        c.unit = 0;
      }
    }
    copies_commit();
  }

  // Loads the slice of all rows.
  __device__ __forceinline__ void keep(Inputs (&inputs)[kInputs]) const {
    const int32_t row = lane / 8, piece = lane % 8 * 16;
    uint4 pieces[kEightUnits][2];
#pragma unroll
    for (int32_t i = 0; i < kEightUnits * 2; ++i) {
      const int32_t token = row + i % 2 * 4, unit = first_group * f.units + i / 2;
      pieces[i / 2][i % 2] = input_piece<T>(p, i / 2 < units && token < p.tokens, token, unit * (kUnitCols * 2) + piece);
    }
    const uint32_t place = shared_address(slices.partial_sums + warp * Shape::reduction_plane);
    const uint32_t to = place + row * Layout::row + piece, fragments = place + (lane & 7) * Layout::row + (lane >> 3) * 16;
#pragma unroll
    for (int32_t n = 0; n < kInputs; ++n) {
      InputSums sums;
      if constexpr (kFolds<T>) sums.clear();
#pragma unroll
      for (int32_t u = 0; u < 4; ++u) {
        store_shared16(to, pieces[n * 4 + u][0]);
        store_shared16(to + 4 * Layout::row, pieces[n * 4 + u][1]);
        __syncwarp();
#pragma unroll
        for (int32_t half = 0; half < 2; ++half) {
          load_matrices(inputs[n].x[u][half], fragments + half * 64);
          if constexpr (kFolds<T>) sums.add(inputs[n].x[u][half], u * 2 + half, lane);
        }
        __syncwarp();
      }
      if constexpr (kFolds<T>) sums.split(inputs[n].input_sums);
    }
  }

  // Adds the products of a stage, which begins with unit `unit` of the slice.
  template <int32_t unit>
  __device__ __forceinline__ void multiply(float (&acc)[4], const Inputs (&inputs)[kInputs], uint32_t weights) const {
    if constexpr (kFolds<T>) {
      multiply_folded_block<T>(acc, weights, inputs[unit / 4].x, inputs[unit / 4].input_sums, lane);
    } else {
      GroupHeader<T> header;
      if constexpr (f.units > 1) header.load(weights + Format<T>::header_plane, lane);
#pragma unroll
      for (int32_t u = 0; u < kUnits && unit + u < kEightUnits; ++u) {
        if (u > 0 && f.units == 1 && unit + u >= units) break;
        Stage::template multiply<E>(acc, header, inputs[(unit + u) / 4].x[(unit + u) % 4], weights, u, lane);
      }
    }
  }

  // Position holds the stages that are multiplied next and requested next.
  struct Position {
    int32_t stage = 0, free_stage = kStages - 1;
  };

  // Multiplies the stages of a panel's slice, from unit `unit` on.
  template <int32_t unit>
  __device__ __forceinline__ void multiply_from(float (&acc)[4], const Inputs (&inputs)[kInputs], Cursor& next, Position& at) const {
    if constexpr (unit < kEightUnits) {
      if (unit >= units) return;
      copies_wait<kStages - 2>();
      __syncwarp();
      request(next, at.free_stage);
      multiply<unit>(acc, inputs, weights_in(at.stage));
      at.free_stage = at.stage;
      at.stage = at.stage + 1 == kStages ? 0 : at.stage + 1;
      multiply_from<unit + kUnits>(acc, inputs, next, at);
    }
  }

  // Adds the slices of an item in ascending order, and stores one output for each thread. turn: of the block's items; few threads have one,
  // so warps take turns.
  __device__ __forceinline__ void finish(const EightItem& item, int32_t turn, const float* sums) const {
    const int32_t thread = (warp + turn) % kSlices * 32 + lane, local = thread % kPanelRows, index = thread / kPanelRows;
    const int32_t row = item.panel * kPanelRows + local;
    int32_t pair = -1;
    float bias[2] = {};
    if (index < kEightRows && row < p.targets[0].rows) {
      const ExpertTile tile = grouped.plan.tiles[item.tile];
      if (index < tile.count) {
        pair = grouped.plan.pairs[tile.first + index];
#pragma unroll
        for (int32_t i = 0; i < 2; ++i)
          if (p.targets[i].bias != nullptr) bias[i] = p.targets[i].bias[static_cast<int64_t>(tile.expert) * p.targets[i].rows + row];
      }
    }
    __syncthreads();
    if (pair < 0) return;
    const float* const own = sums + pair / grouped.x_share * Shape::reduction_stride + local;
    float y[2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      float sum = 0;
#pragma unroll
      for (int32_t s = 0; s < kSlices; ++s) sum += own[s * Shape::reduction_plane + i * kPanelRows];
      y[i] = sum * p.x_scale + bias[i];
    }
    static_cast<A*>(p.targets[0].out)[pair * p.targets[0].out_stride + row] =
        ActOps<A>::from(gated_product(grouped.activation, y[0], y[1]) * p.pair_share);
  }

  __device__ __forceinline__ void run() {
    grid_wait();
    grid_trigger();
    const auto block = static_cast<int32_t>(blockIdx.x);
    EightItem item{block / panels, block % panels};
    Cursor next{nullptr, 0, 0, item, grouped.plan.tiles[item.tile].expert};  // not used past the last item
    tiles = *grouped.plan.tile_count;
    if (item.tile >= tiles) return;
    if (units > 0) aim(next);
#pragma unroll 1
    for (int32_t s = 0; s < kStages - 1; ++s) request(next, s);
    Inputs inputs[kInputs];
    keep(inputs);

    Position at;
    int32_t turn = 0;
#pragma unroll 1
    for (; item.tile < tiles; item.advance(step_tiles, step_panels, panels), ++turn) {
      float* const sums = slices.partial_sums + turn % 2 * Shape::reduction;
#pragma unroll 1
      for (int32_t target = 0; target < 2; ++target) {
        float acc[4] = {};
        multiply_from<0>(acc, inputs, next, at);
        slices.put(acc, target, sums);
      }
      finish(item, turn, sums);
    }
  }
};

template <int32_t T, class A>
__global__ void __launch_bounds__(kSlices * 32, 2) eight_rows(const __grid_constant__ GroupedParams p) {
  uint8_t* const memory = dynamic_memory();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  float* const partial_sums = reinterpret_cast<float*>(memory + EightRowsLayout<T, kGemvSharedKiB>::partial_sums_at);
  EightRowsBlock<T, A> block{p, p.gemm, {p.gemm, partial_sums, warp, lane}, shared_address(memory)};
  block.run();
}

// Operands of several terms have no such kernel: few models have them, and few_rows.cuh gives the same bits.
template <int32_t T>
GemvKernel eight_rows_kernel(Act act) {
  return with_multiplied_act<T, GemvKernel>(act, [](auto element) -> GemvKernel {
    using A = decltype(element);
    if constexpr (OperandSplit<T, A>::single) {
      return {reinterpret_cast<const void*>(&eight_rows<T, A>),
              [](int32_t capability) {
                return gemv_shared_bytes(capability, [](auto room) { return EightRowsLayout<T, decltype(room)::value>::bytes; });
              },
              kSlices * 32, 2, kEightRows};
    } else {
      return {};
    }
  });
}

}  // namespace mr::cuda
