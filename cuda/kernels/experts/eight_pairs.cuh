// eight_pairs: the grouped GEMM of the decode class of one target, as of down, for experts of at most eight pairs. An item is a panel of an
// expert. A warp computes it alone, with all of K.
//
//   weights --cp.async--> [stage 0][stage 1] ...   each warp requests and reads stages of its own, from its first item to its last
//   rows    --> shared memory                      of as many tiles as fit: mostly of all tiles of the block
//
// A block has a run of neighbouring items, of one or two tiles if experts have many panels, so all its rows fit into shared memory at
// once, and blocks have equal work to one panel. Of few columns some of the eight split-K slices are empty: a warp that has all of them
// does not wait for others, and its sums need no barrier. It keeps the sum of the current slice and the sum of the slices before it, so a
// pair has the bits of few_rows.cuh. The input sums of Q4_K and Q5_K are made once for a row.
#pragma once

#include "kernels/experts/eight_columns.cuh"
#include "kernels/experts/grouped_epilogue.cuh"
#include "kernels/experts/grouped_work.cuh"
#include "kernels/gemm/input_sums.cuh"
#include "kernels/gemm/input_sums.h"
#include "kernels/launch.h"

namespace mr::cuda {

template <int32_t T, int32_t room>
struct EightPairsLayout {
  using Stage = EightStage<T>;
  static constexpr int32_t stage = kSlices * Stage::bytes;
  static constexpr int32_t many = Stage::fitting(room, 2, kEightPairsRoom);
  static constexpr int32_t stages = many >= 2 ? many : Stage::fitting(room, 1, kEightPairsRoom);
  static constexpr int32_t rows_at = stages * stage, bytes = rows_at + kEightPairsRoom;
  static_assert(room == 0 || stages >= 2);
  static_assert(kFolds<T> == (Format<T>::f.header == 256), "eight_pairs_suffice counts the sums of types with such a header");
};

template <int32_t T, class A>
struct EightPairsBlock {
  using Layout = EightPairsLayout<T, kGemvSharedKiB>;
  using Stage = typename Layout::Stage;
  using E = typename OperandSplit<T, A>::Element;
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr int32_t kUnits = Stage::units, kStages = Layout::stages;

  const GroupedParams& grouped;
  const GemvParams& p;
  uint8_t* const rows;   // in shared memory
  const uint32_t shared;  // address of the stages
  const int32_t warp, lane;
  const int32_t panels = p.targets[0].panels, units = p.groups * f.units;
  const int32_t step_tiles = kSlices / panels, step_panels = kSlices % panels;
  // Rows follow one another, with 16 bytes of padding, so that ldmatrix meets every bank once, and then their sums do.
  const int32_t row_bytes = units * (kUnitCols * 2) + 16, sum_bytes = kFolds<T> ? p.groups * kInputSumBytes : 0;
  const int32_t most_rows = kEightPairsRoom / (row_bytes + sum_bytes);

  // Cursor is the position of the next request: a unit of an item.
  struct Cursor {
    const uint8_t* from;  // this lane's first 16 bytes of the stage
    int32_t unit, left;   // left: items that are not requested yet, this one among them
    EightItem next;       // the warp's item after this one
    int32_t next_expert;
  };

  // Aims at the next item. Its expert is loaded an item ahead.
  __device__ __forceinline__ void aim(Cursor& c, int32_t last_tile) const {
    c.from = p.targets[0].data + c.next_expert * grouped.matrix_bytes + c.next.panel * p.panel_bytes + lane * 16;
    c.next.advance(step_tiles, step_panels, panels);
    c.next_expert = grouped.plan.tiles[min(c.next.tile, last_tile)].expert;
  }

  __device__ __forceinline__ uint32_t weights_in(int32_t stage) const { return shared + stage * Layout::stage + warp * Stage::bytes; }

  // Requests a stage, if there is one, and advances.
  __device__ __forceinline__ void request(Cursor& c, int32_t stage, int32_t last_tile) const {
    if (c.left > 0) {
      Stage::request(weights_in(stage) + lane * 16, c.from, units - c.unit, lane);
      c.from += Stage::bytes;
      c.unit += kUnits;
      if (c.unit >= units) {
        c.unit = 0;
        --c.left;
        aim(c, last_tile);
      }
    }
    copies_commit();
  }

  // Copies the rows of the pairs pairs[0], ..., pairs[count - 1], with zeros up to whole groups. A warp copies 128 pieces of a row at a
  // time, four a lane.
  __device__ __forceinline__ void copy_rows(const int32_t* pairs, int32_t count) const {
    const int32_t pieces = units * 8, parts = (pieces + 127) / 128;
    for (int32_t i = warp; i < count * parts; i += kSlices) {
      const int32_t row = i / parts, first = i % parts * 128 + lane, source = pairs[row] / grouped.x_share;
      uint4 v[4];
#pragma unroll
      for (int32_t k = 0; k < 4; ++k) v[k] = input_piece<T>(p, true, source, (first + k * 32) * 16);
#pragma unroll
      for (int32_t k = 0; k < 4; ++k)
        if (first + k * 32 < pieces) *reinterpret_cast<uint4*>(rows + row * row_bytes + (first + k * 32) * 16) = v[k];
    }
  }

  // Sums the groups of `count` rows.
  __device__ __forceinline__ void sum_rows(int32_t count) const {
    const int32_t blocks = count * p.groups;
    for (int32_t first = warp * 8; first < blocks; first += kSlices * 8) {
      const int32_t own = min(first + lane / 4, blocks - 1), row = own / p.groups, group = own % p.groups;
      const auto* const block = reinterpret_cast<const __half*>(rows + row * row_bytes + group * (4 * kUnitCols * 2));
      sum_blocks(block, rows + most_rows * row_bytes + own * kInputSumBytes, first + lane / 4 < blocks, lane);
    }
  }

  // Position holds the stages that are multiplied next and requested next.
  struct Position {
    int32_t stage = 0, free_stage = kStages - 1;
  };

  using Slices = SliceCursor<f.units>;

  __device__ __forceinline__ static void add_slice(float (&total)[4], float (&acc)[4]) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      total[i] += acc[i];
      acc[i] = 0;
    }
  }

  // Adds the products of a stage of a type that does not fold, from its unit u on. unit: the stage's first.
  template <int32_t u>
  __device__ __forceinline__ void multiply_units(float (&total)[4], float (&acc)[4], Slices& slices, const GroupHeader<T>& header,
                                                 uint32_t inputs, uint32_t weights, int32_t unit) const {
    if constexpr (u < kUnits) {
      if (u > 0 && f.units == 1 && unit + u >= units) return;
      uint32_t x[2][4];
      load_matrices(x[0], inputs + u * (kUnitCols * 2));
      load_matrices(x[1], inputs + u * (kUnitCols * 2) + 64);
      Stage::template multiply<E>(acc, header, x, weights, u, lane);
      if (unit + u + 1 == slices.end) {
        add_slice(total, acc);
        slices.next(p.groups);
      }
      multiply_units<u + 1>(total, acc, slices, header, inputs, weights, unit);
    }
  }

  // Computes an item. base: the first pair of the rows in shared memory.
  __device__ __forceinline__ void compute(const EightItem& item, int32_t base, Cursor& next, Position& at, int32_t last_tile) const {
    const ExpertTile tile = grouped.plan.tiles[item.tile];
    const GroupedEpilogue<A> epilogue{grouped, p, lane};
    const auto bias = epilogue.biases(p.targets[0], tile.expert, item.panel);
    const int32_t pair_at = lane % 4 * 2;  // of this lane's sums
    const int32_t* const pairs = grouped.plan.pairs + tile.first;
    const int32_t stored[2] = {pair_at < tile.count ? pairs[pair_at] : -1, pair_at + 1 < tile.count ? pairs[pair_at + 1] : -1};
    // Columns without a pair repeat the last one; their sums are discarded.
    const int32_t first = tile.first - base, column = first + min(lane & 7, tile.count - 1);
    const int32_t summed = first + min(lane >> 2, tile.count - 1);
    const uint32_t inputs = shared_address(rows) + column * row_bytes + (lane >> 3) * 16;
    const uint32_t sums = shared_address(rows) + most_rows * row_bytes + summed * sum_bytes + lane % 4 * 4;
    float total[4] = {}, acc[4] = {};
    Slices slices;
    slices.next(p.groups);
#pragma unroll 1
    for (int32_t unit = 0; unit < units; unit += kUnits) {
      copies_wait<kStages - 2>();
      __syncwarp();
      request(next, at.free_stage, last_tile);
      const uint32_t weights = weights_in(at.stage), from = inputs + unit * (kUnitCols * 2);
      if constexpr (kFolds<T>) {
        uint32_t x[4][2][4];
#pragma unroll
        for (int32_t i = 0; i < 8; ++i) load_matrices(x[i / 2][i % 2], from + i * 64);
        const uint32_t of_group = sums + unit / f.units * kInputSumBytes;
        const uint32_t input_sums[3] = {load_shared4(of_group), load_shared4(of_group + 16), load_shared4(of_group + 32)};
        multiply_folded_block<T>(acc, weights, x, input_sums, lane);
        if (unit + kUnits == slices.end) {
          add_slice(total, acc);
          slices.next(p.groups);
        }
      } else {
        GroupHeader<T> header;
        if constexpr (f.units > 1) header.load(weights + Format<T>::header_plane, lane);
        multiply_units<0>(total, acc, slices, header, from, weights, unit);
      }
      at.free_stage = at.stage;
      at.stage = at.stage + 1 == kStages ? 0 : at.stage + 1;
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) total[i] = total[i] * p.x_scale + bias.of[i / 2];
    epilogue.store_sums(total, item.panel, stored);
  }

  __device__ __forceinline__ void run() const {
    grid_wait();
    grid_trigger();
    const int32_t items = *grouped.plan.tile_count * panels;
    const auto block = static_cast<int32_t>(blockIdx.x), blocks = static_cast<int32_t>(gridDim.x);
    const int32_t each = items / blocks, more = items % blocks;  // blocks that have another item
    const int32_t begin = block * each + min(block, more), end = begin + each + (block < more ? 1 : 0);
    if (begin == end) return;
    const int32_t last_tile = (end - 1) / panels, own = begin + warp;
    EightItem item{own / panels, own % panels};
    int32_t left = (end - own + kSlices - 1) / kSlices;
    Cursor next{nullptr, 0, left, item, grouped.plan.tiles[min(item.tile, last_tile)].expert};
    aim(next, last_tile);
#pragma unroll 1
    for (int32_t s = 0; s < kStages - 1; ++s) request(next, s, last_tile);
    Position at;
#pragma unroll 1
    for (int32_t tile = begin / panels; tile <= last_tile;) {
      const int32_t base = grouped.plan.tiles[tile].first;
      int32_t count = 0;
      for (; tile <= last_tile; ++tile) {
        const ExpertTile other = grouped.plan.tiles[tile];
        if (other.first + other.count - base > most_rows) break;
        count = other.first + other.count - base;
      }
      __syncthreads();  // no warp reads the rows before
      copy_rows(grouped.plan.pairs + base, count);
      __syncthreads();
      if constexpr (kFolds<T>) {
        sum_rows(count);
        __syncthreads();
      }
#pragma unroll 1
      for (; left > 0 && item.tile < tile; --left, item.advance(step_tiles, step_panels, panels)) compute(item, base, next, at, last_tile);
    }
  }
};

template <int32_t T, class A>
__global__ void __launch_bounds__(kSlices * 32, 2) eight_pairs(const __grid_constant__ GroupedParams p) {
  uint8_t* const memory = dynamic_memory();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const EightPairsBlock<T, A> block{p, p.gemm, memory + EightPairsLayout<T, kGemvSharedKiB>::rows_at, shared_address(memory), warp, lane};
  block.run();
}

// Operands of several terms have no such kernel: few models have them, and few_rows.cuh gives the same bits.
template <int32_t T>
GemvKernel eight_pairs_kernel(Act act) {
  return with_multiplied_act<T, GemvKernel>(act, [](auto element) -> GemvKernel {
    using A = decltype(element);
    if constexpr (OperandSplit<T, A>::single) {
      return {reinterpret_cast<const void*>(&eight_pairs<T, A>),
              [](int32_t capability) {
                return gemv_shared_bytes(capability, [](auto room) { return EightPairsLayout<T, decltype(room)::value>::bytes; });
              },
              kSlices * 32, 1, 8};
    } else {
      return {};
    }
  });
}

}  // namespace mr::cuda
