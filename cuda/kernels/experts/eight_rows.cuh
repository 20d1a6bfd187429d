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
#include "kernels/experts/gated.cuh"
#include "kernels/experts/grouped.h"
#include "kernels/gemm/folded.cuh"
#include "kernels/gemm/gemv_tile.cuh"
#include "kernels/gemm/mxfp4_unit.cuh"
#include "kernels/instructions.cuh"
#include "kernels/launch.h"

namespace mr::cuda {

template <int32_t T, int32_t room>
struct EightRowsLayout {
  static constexpr WeightFormat f = Format<T>::f;
  // Units of a stage: a group, or two if these have at most 2 304 bytes.
  static constexpr int32_t unit = f.quants + f.high + f.scales, units = f.units > 1 ? f.units : unit <= 1152 ? 2 : 1;
  using Shape = GemvShape<2, kEightRows, units, 2>;
  static constexpr int32_t warp_stage = f.units > 1 ? Format<T>::group_bytes : units * unit, stage = Shape::warps * warp_stage;
  // As many stages, up to 8, as fit.
  static constexpr int32_t fitting_stages(int32_t blocks) {
    const int32_t left = room * 1024 / blocks - 1024 - 2 * Shape::reduction * 4;
    return left / stage < 8 ? left / stage : 8;
  }
  static constexpr int32_t many = fitting_stages(Shape::blocks_per_sm), stages = many >= 2 ? many : fitting_stages(1);
  static constexpr int32_t partial_sums_at = stages * stage, bytes = partial_sums_at + 2 * Shape::reduction * 4;
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
  static constexpr WeightFormat f = Layout::f;
  static constexpr int32_t kUnits = Layout::units, kStages = Layout::stages;

  const GroupedParams& grouped;
  const GemvParams& p;
  const GemvTile<A, Shape> slices;
  const uint32_t shared;  // address of the stages
  const int32_t warp = slices.warp, lane = slices.lane;
  const int32_t first_group = p.groups * warp / kSlices;                              // of this warp's slice
  const int32_t units = (p.groups * (warp + 1) / kSlices - first_group) * f.units;  // <= kEightUnits
  const int32_t panels = p.targets[0].panels;
  // An item's tile and panel. Divisions would be a tenth of an item's instructions, so blocks add a step.
  const int32_t step_tiles = static_cast<int32_t>(gridDim.x) / panels, step_panels = static_cast<int32_t>(gridDim.x) % panels;
  int32_t tiles = 0;

  struct Item {
    int32_t tile, panel;
  };
  __device__ __forceinline__ void advance(Item& item) const {
    item.tile += step_tiles;
    item.panel += step_panels;
    if (item.panel < panels) return;
    item.panel -= panels;
    ++item.tile;
  }

  // Inputs is four units of eight rows.
  struct Inputs {
    uint32_t x[4][2][4];     // as load_matrices returns each 32 inputs of a unit
    uint32_t input_sums[3];  // of types that fold: their sums, as three bf16 terms
  };
  static constexpr int32_t kInputs = kEightUnits / 4;

  // Cursor is the position of the next request: a target of an item, and a unit of the slice.
  struct Cursor {
    const uint8_t* from;  // this lane's first 16 bytes of the stage; null: there is no such item
    int32_t target, unit;
    Item next;            // the block's item after this one
    int32_t next_expert;
  };

  // Aims at the next item. Its expert is loaded an item ahead.
  __device__ __forceinline__ void aim(Cursor& c) const {
    const int64_t panel = c.next_expert * grouped.matrix_bytes + c.next.panel * p.panel_bytes;
    c.from = c.next.tile < tiles ? p.targets[0].data + panel + first_group * Format<T>::group_bytes + lane * 16 : nullptr;
    advance(c.next);
    c.next_expert = grouped.plan.tiles[min(c.next.tile, tiles - 1)].expert;
  }

  __device__ __forceinline__ uint32_t weights_in(int32_t stage) const { return shared + stage * Layout::stage + warp * Layout::warp_stage; }

  // Requests a stage, if there is one, and advances.
  __device__ __forceinline__ void request(Cursor& c, int32_t stage) const {
    if (c.from != nullptr) {
      const uint32_t to = weights_in(stage) + lane * 16;
      const int32_t bytes = f.units > 1 ? Layout::warp_stage : min(kUnits, units - c.unit) * Layout::unit;
#pragma unroll
      for (int32_t at = 0; at < Layout::warp_stage; at += 512)
        if (at + lane * 16 < bytes) copy16(to + at, c.from + at, evict_first_policy());
      c.from += Layout::warp_stage;
      c.unit += kUnits;
      if (c.unit >= units) {
        if (c.target == 0) c.from += p.targets[1].data - p.targets[0].data - c.unit / kUnits * Layout::warp_stage;
        else aim(c);
        c.target ^= 1;
        c.unit = 0;
      }
    }
    copies_commit();
  }

  // Returns 16 bytes of a row of x in unit `unit` of the slice, with zeros past the last column and the last row.
  __device__ __forceinline__ uint4 piece_of(int32_t row, int32_t unit, int32_t piece) const {
    const int32_t begin = (first_group * f.units + unit) * (kUnitCols * 2) + piece, left = p.cols * 2 - begin;
    if (unit >= units || row >= p.tokens || left <= 0) return make_uint4(0, 0, 0, 0);
    uint4 v = __ldcg(reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(p.x) + row * p.x_stride * 2 + begin));
    if constexpr (Format<T>::is_float) {
      const auto whole = [&](uint32_t word, int32_t at) { return left >= at + 4 ? word : left > at ? word & 0xffffu : 0; };
      v = make_uint4(whole(v.x, 0), whole(v.y, 4), whole(v.z, 8), whole(v.w, 12));
    }
    return v;
  }

  // Loads the slice of all rows.
  __device__ __forceinline__ void keep(Inputs (&inputs)[kInputs]) const {
    const int32_t row = lane / 8, piece = lane % 8 * 16;
    uint4 pieces[kEightUnits][2];
#pragma unroll
    for (int32_t i = 0; i < kEightUnits * 2; ++i) pieces[i / 2][i % 2] = piece_of(row + i % 2 * 4, i / 2, piece);
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

  // Adds the products of unit u of a stage.
  __device__ __forceinline__ void multiply_unit(float (&acc)[4], const GroupHeader<T>& header, const uint32_t (&x)[2][4], uint32_t weights,
                                                int32_t u) const {
    const uint32_t quants = weights + u * (f.units > 1 ? f.quants : Layout::unit);
    uint32_t a[4][4];
    if constexpr (Format<T>::is_float) {
#pragma unroll
      for (int32_t s = 0; s < 4; ++s) load_fragment(a[s], quants, s, lane);
    } else if constexpr (T == kMXFP4) {
      take_mxfp4_unit(a, quants, quants + f.quants, lane);
    } else {
      RoundedUnit<T> unit;
      if constexpr (f.units > 1) unit.begin(quants, weights + Format<T>::high_at(u), weights + Format<T>::scales_at(u), header, lane);
      else unit.begin(quants, quants + f.quants, quants + f.quants + f.high, header, lane);
      unit.take_all(a);
    }
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) mma16816<E>(acc, a[s], x[s / 2][s % 2 * 2], x[s / 2][s % 2 * 2 + 1]);
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
      for (int32_t u = 0; u < kUnits; ++u) {
        if (u > 0 && f.units == 1 && unit + u >= units) break;
        multiply_unit(acc, header, inputs[(unit + u) / 4].x[(unit + u) % 4], weights, u);
      }
    }
  }

  // Position is where the pipeline is: the stage that is multiplied next, and the one that is requested next.
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
  __device__ __forceinline__ void finish(const Item& item, int32_t turn, const float* sums) const {
    const int32_t thread = (warp + turn) % kSlices * 32 + lane, local = thread % kPanelRows, index = thread / kPanelRows;
    const int32_t row = item.panel * kPanelRows + local;
    const ExpertTile tile = grouped.plan.tiles[item.tile];
    const bool stores = index < tile.count && row < p.targets[0].rows;
    const int32_t pair = stores ? grouped.plan.pairs[tile.first + index] : 0;
    float bias[2] = {};
#pragma unroll
    for (int32_t i = 0; i < 2; ++i)
      if (stores && p.targets[i].bias != nullptr) bias[i] = p.targets[i].bias[static_cast<int64_t>(tile.expert) * p.targets[i].rows + row];
    __syncthreads();
    if (!stores) return;
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
    Item item{block / panels, block % panels};
    Cursor next{nullptr, 0, 0, item, grouped.plan.tiles[item.tile].expert};  // of no use if there is no such item
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
    for (; item.tile < tiles; advance(item), ++turn) {
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
