// gemv_one_token: the decode class's kernel for one token on compute capability 9.0; see gemm.h for the contract.
//
// As in gemv_async, each of a block's 8 warps has one of the 8 split-K slices of a panel, and bits are the same. Inputs stay in
// shared memory for the whole kernel. Sums of several tiles wait there before the block reduces them together, so warps seldom
// meet. A warp's weights are contiguous, and come in one of two ways:
//
// * Through shared memory: one lane requests a stage by one bulk copy that completes an mbarrier.
// * If scales fold (folded.cuh), to registers: a word is requested for the next group as soon as this group's is unpacked. That
//   has a shorter latency, and these types have few bytes for their instructions. Sums of inputs are computed once for each
//   group, not for each tile.
//
// Shared memory: barriers | stages: one pipeline for each warp | sums of tiles, two buffers | inputs | terms of input sums
#pragma once

#include "kernels/gemm/folded.cuh"
#include "kernels/gemm/gemv_tile.cuh"
#include "kernels/instructions.cuh"
#include "kernels/launch.h"
#if MR_HOPPER
#include "kernels/gemm/wgmma.cuh"
#endif

namespace mr::cuda {

// GemvOneTokenShape: of a pair, an item is a panel of the gate and one of the up. stages: 0 if weights come to registers.
// waiting: items whose sums wait for the reduction.
template <int32_t panels_, int32_t units_, int32_t stages_, int32_t blocks_, int32_t waiting_>
struct GemvOneTokenShape : GemvShape<panels_, 1, units_, blocks_> {
  static constexpr int32_t stages = stages_;
  static constexpr int32_t waiting = waiting_;
  static_assert(waiting * kPanelRows <= GemvOneTokenShape::threads);
};

template <int32_t T, class S>
struct GemvOneTokenLayout {
  static constexpr WeightFormat f = Format<T>::f;
  static constexpr bool grouped = f.units > 1;  // then a stage is a whole group
  static_assert(!grouped || S::units == f.units);
  static constexpr int32_t unit = f.quants + f.high + f.scales, stage = S::units * unit + f.header;
  __device__ static constexpr int32_t quants_at(int32_t u) { return grouped ? Format<T>::quants_at(u) : u * unit; }
  __device__ static constexpr int32_t high_at(int32_t u) { return grouped ? Format<T>::high_at(u) : u * unit + f.quants; }
  __device__ static constexpr int32_t scales_at(int32_t u) { return grouped ? Format<T>::scales_at(u) : u * unit + f.quants + f.high; }

  static constexpr int32_t stages_at = S::warps * S::stages * 8, sums_at = stages_at + S::warps * S::stages * stage;
  static constexpr int32_t inputs_at = sums_at + 2 * S::waiting * S::reduction * 4;
  static_assert(stages_at % 16 == 0 && sums_at % 16 == 0 && inputs_at % 16 == 0);
  // For each group its inputs and, if they fold, the terms of their sums: those of lane t at 16 * t.
  static constexpr int32_t group_inputs = f.units * kUnitCols * 2, group_terms = kFolds<T> ? 64 : 0;
  static constexpr int32_t group_bytes = group_inputs + group_terms;
  static constexpr int32_t bytes = inputs_at + (grouped ? 0 : 3 * kUnitCols * 2);  // a normed row ends at a multiple of 256 columns
};

#if MR_HOPPER && defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int32_t T, class A, class S>
struct GemvOneTokenBlock {
  using Layout = GemvOneTokenLayout<T, S>;
  using Split = OperandSplit<T, A>;
  using E = typename Split::Element;
  static constexpr WeightFormat f = Format<T>::f;

  const GemvParams& p;
  GemvTile<A, S> tile;
  uint8_t* memory;
  uint64_t policy;
  const int32_t warp = tile.warp, lane = tile.lane;
  const uint32_t shared = shared_address(memory);
  // This warp's slice, which is cut at whole groups.
  const int32_t group_begin = p.groups * warp / kSlices, group_end = p.groups * (warp + 1) / kSlices;
  const int32_t unit_begin = group_begin * f.units, unit_end = group_end * f.units;

  // Cursor is a position in the sequence of stages of a warp's slice, panel after panel and item after item.
  struct Cursor {
    int32_t item, panel, unit;
    const uint8_t* from;
  };

  // Group is what a lane holds of a group whose weights come to registers.
  struct Group {
    uint4 quants[f.units], rows[2];  // rows: the headers of g and g + 8
    uint32_t high[f.units];
  };

  __device__ __forceinline__ uint32_t barrier(int32_t stage) const { return shared + (warp * S::stages + stage) * 8; }
  __device__ __forceinline__ uint32_t weights_in(int32_t stage) const {
    return shared + Layout::stages_at + (warp * S::stages + stage) * Layout::stage;
  }
  __device__ __forceinline__ uint32_t inputs_of(int32_t unit) const { return shared + Layout::inputs_at + unit * (kUnitCols * 2); }
  __device__ __forceinline__ uint32_t terms_of(int32_t group) const {
    return shared + Layout::inputs_at + p.groups * Layout::group_inputs + group * Layout::group_terms;
  }

  __device__ __forceinline__ void aim(Cursor& cursor) const {
    int32_t panel = cursor.item;
    const KernelTarget& target = S::panels == 2 ? p.targets[cursor.panel] : target_of(p, cursor.item, panel);
    cursor.from = target.data + panel * p.panel_bytes + int64_t{group_begin} * Format<T>::group_bytes;
  }

  // Requests the weights at the cursor, if there are any, and advances.
  __device__ __forceinline__ void fill(Cursor& cursor, int32_t stage) const {
    if (cursor.item >= p.items) return;
    const int32_t bytes = Layout::grouped ? Layout::stage : min(S::units, unit_end - cursor.unit) * Layout::unit;
    if (elected()) {
      barrier_expect(barrier(stage), bytes);
      bulk_copy(weights_in(stage), cursor.from, bytes, barrier(stage), policy);
    }
    __syncwarp();
    advance(cursor, bytes);
  }

  __device__ __forceinline__ void advance(Cursor& cursor, int32_t bytes) const {
    cursor.from += bytes;
    cursor.unit += S::units;
    if (cursor.unit < unit_end) return;
    cursor.unit = unit_begin;
    if (++cursor.panel == S::panels) {
      cursor.panel = 0;
      cursor.item += p.item_stride;
    }
    if (cursor.item < p.items) aim(cursor);
  }

  // Requests the headers, or a unit, of the group at the cursor, if there is one.
  __device__ __forceinline__ void request_rows(Group& group, const Cursor& cursor) const {
    if (cursor.item >= p.items) return;
#pragma unroll
    for (int32_t r = 0; r < 2; ++r)
      group.rows[r] = load_constant16(cursor.from + Format<T>::header_plane + ((lane >> 2) + r * 8) * 16, policy);
  }
  template <int32_t u>
  __device__ __forceinline__ void request_unit(Group& group, const Cursor& cursor) const {
    if (cursor.item >= p.items) return;
    group.quants[u] = load_constant16(cursor.from + Format<T>::quants_at(u) + lane * 16, policy);
    if constexpr (f.high > 0) group.high[u] = load_constant4(cursor.from + Format<T>::high_at(u) + lane * 4, policy);
  }

  // Copies the slice's inputs. Columns past the last become zeros.
  __device__ __forceinline__ void load_inputs() const {
    const uint8_t* const x = static_cast<const uint8_t*>(p.x);
    for (int32_t at = unit_begin * kUnitCols * 2 + lane * 16; at < unit_end * kUnitCols * 2; at += 512) {
      const int32_t left = p.cols * 2 - at;
      copy16_or_zero(inputs_of(0) + at, left > 0 ? x + at : x, static_cast<uint32_t>(min(max(left, 0), 16)));
    }
    copies_commit();
    copies_wait<0>();
    __syncwarp();
  }

  // Computes the terms of the sums of each group's inputs, with the additions of InputSums. There every row of the first
  // operand is a token; here a row is one of the group's eight blocks of 32.
  __device__ __forceinline__ void sum_inputs() const {
#pragma unroll 2
    for (int32_t group = group_begin; group < group_end; ++group) {
      uint32_t x[4];
      load_matrices(x, inputs_of(group * f.units) + (lane & 7) * 64 + (lane >> 3) * 16);
      float halves[4] = {0, 0, 0, 0};
      mma16816<__half>(halves, x, twice(0x3c00u), twice(0x3c00u));
      const float sum = halves[0] + halves[2];  // of block lane / 4
      uint32_t terms[3];
      split_input_sums(__shfl_sync(0xffffffffu, sum, (lane & 3) * 4), __shfl_sync(0xffffffffu, sum, (lane & 3) * 4 + 16), terms);
      if (lane < 4) store_shared16(terms_of(group) + lane * 16, make_uint4(terms[0], terms[1], terms[2], 0));
    }
    __syncwarp();
  }

  // Adds the products of a group whose first unit is `unit`, and requests the group at the cursor in its place.
  __device__ __forceinline__ void multiply(float (&acc)[4], Group& group, Cursor& next, int32_t unit) const {
    advance(next, Format<T>::group_bytes);
    FoldedHeader header;
    header.set(0, group.rows[0], lane);
    header.set(1, group.rows[1], lane);
    request_rows(group, next);
    float products[4] = {0, 0, 0, 0};
    const uint32_t inputs = inputs_of(unit) + (lane >> 3) * 16;
    multiply_folded<0>(products, header, group, next, inputs);
    multiply_folded<1>(products, header, group, next, inputs);
    multiply_folded<2>(products, header, group, next, inputs);
    multiply_folded<3>(products, header, group, next, inputs);
    const uint4 v = load_shared16(terms_of(unit / f.units) + (lane & 3) * 16);
    const uint32_t terms[3] = {v.x, v.y, v.z};
    header.add_with_mins(acc, products, terms);
  }

  template <int32_t u>
  __device__ __forceinline__ void multiply_folded(float (&products)[4], const FoldedHeader& header, Group& group, const Cursor& next,
                                                  uint32_t inputs) const {
    UnitQuants<T> quants;
    quants.words = group.quants[u];
    if constexpr (f.high > 0) quants.high[0] = group.high[u];
    uint32_t a[4][4];
    folded_unit<T, u>(header, quants, std::false_type{}, a);
    request_unit<u>(group, next);
    uint32_t x[2][4];
    load_matrices(x[0], inputs + u * (kUnitCols * 2));
    load_matrices(x[1], inputs + u * (kUnitCols * 2) + 64);
#pragma unroll
    for (int32_t step = 0; step < 4; ++step) mma16816<E>(products, a[step], x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]);
  }

  // Adds the products of a stage whose first unit is `unit`.
  __device__ __forceinline__ void multiply(float (&acc)[4], uint32_t weights, int32_t unit) const {
    GroupHeader<T> header;
    if constexpr (Layout::grouped) header.load(weights + Format<T>::header_plane, lane);
    const uint32_t inputs = inputs_of(unit) + (lane >> 3) * 16;
#pragma unroll
    for (int32_t u = 0; u < S::units; ++u) {
      if (u > 0 && !Layout::grouped && unit + u >= unit_end) break;
      multiply_unit(acc, header, weights, inputs + u * (kUnitCols * 2), u);
    }
  }

  // Unit u of the stage: float weights, or quantised ones that are rounded to f16.
  __device__ __forceinline__ void multiply_unit(float (&acc)[4], const GroupHeader<T>& header, uint32_t weights, uint32_t inputs,
                                                int32_t u) const {
    const uint32_t quants = weights + Layout::quants_at(u);
    if constexpr (Format<T>::is_float) {
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        uint32_t x[4], a[2][Split::weights][4];
        load_matrices(x, inputs + half * 64);
        load_terms<T>(a[0], quants, half * 2, lane);
        load_terms<T>(a[1], quants, half * 2 + 1, lane);
        multiply_terms<Split>(acc, a[0], x[0], x[1]);
        multiply_terms<Split>(acc, a[1], x[2], x[3]);
      }
    } else {
      RoundedUnit<T> unit;
      unit.begin(quants, weights + Layout::high_at(u), weights + Layout::scales_at(u), header, lane);
      uint32_t x[4], a[4];
      load_matrices(x, inputs);
      unit.template take<0>(a);
      mma16816<E>(acc, a, x[0], x[1]);
      unit.template take<1>(a);
      mma16816<E>(acc, a, x[2], x[3]);
      load_matrices(x, inputs + 64);
      unit.template take<2>(a);
      mma16816<E>(acc, a, x[0], x[1]);
      unit.template take<3>(a);
      mma16816<E>(acc, a, x[2], x[3]);
    }
  }

  // Reduces and ends `count` items, the first of which is `item`: one element for each thread.
  __device__ __forceinline__ void finish(int32_t item, int32_t count, const float* sums) const {
    __syncthreads();
    const int32_t thread = warp * 32 + lane, index = thread / kPanelRows;
    if (index < count) tile.finish_element(item + index * p.item_stride, thread % kPanelRows, sums + index * S::reduction);
  }

  // The item that this thread ends, if the first that waits is `item`.
  __device__ __forceinline__ void aim_heads(int32_t item, bool first) {
    const int32_t thread = warp * 32 + lane, own = item + thread / kPanelRows * p.item_stride;
    if (tile.ends_heads() && thread < S::waiting * kPanelRows) tile.aim_heads(own, thread % kPanelRows, first);
  }

  __device__ __forceinline__ void run() {
    const int32_t first_item = static_cast<int32_t>(blockIdx.x);
    Cursor next{unit_begin < unit_end ? first_item : p.items, 0, unit_begin, nullptr};
    if (next.item < p.items) aim(next);
    // Weights first: the kernel before may still be writing the inputs.
    Group group;
    PipelineState<S::stages> state;
    if constexpr (kFolds<T>) {
      request_rows(group, next);
      request_unit<0>(group, next);
      request_unit<1>(group, next);
      request_unit<2>(group, next);
      request_unit<3>(group, next);
    } else {
      if (elected()) {
#pragma unroll
        for (int32_t s = 0; s < S::stages; ++s) barrier_init(barrier(s), 1);
      }
      __syncwarp();
      barrier_init_fence();
#pragma unroll 1
      for (int32_t s = 0; s < S::stages - 1; ++s) fill(next, s);
    }
    if (p.norm.weight != nullptr) {
      tile.norm_row(memory + Layout::inputs_at);
    } else {
      grid_wait();
      grid_trigger();
      load_inputs();
    }
    aim_heads(first_item, true);
    if constexpr (kFolds<T>) sum_inputs();

    int32_t waiting = 0, waits_from = first_item, buffer = 0;
#pragma unroll 1
    for (int32_t item = first_item; item < p.items; item += p.item_stride) {
      float* const sums = tile.partial_sums + buffer * (S::waiting * S::reduction);
#pragma unroll 1
      for (int32_t r = 0; r < S::panels; ++r) {
        float acc[4] = {0, 0, 0, 0};
#pragma unroll 1
        for (int32_t unit = unit_begin; unit < unit_end; unit += S::units) {
          if constexpr (kFolds<T>) {
            multiply(acc, group, next, unit);
          } else {
            barrier_wait(barrier(state.stage), state.phase);
            // Every lane has multiplied what it loaded from the stage before.
            __syncwarp();
            fill(next, state.stage == 0 ? S::stages - 1 : state.stage - 1);
            multiply(acc, weights_in(state.stage), unit);
            state.next();
          }
        }
        tile.put(acc, r, sums + waiting * S::reduction);
      }
      const int32_t after = item + p.item_stride;
      if (++waiting < S::waiting && after < p.items) continue;
      finish(waits_from, waiting, sums);
      aim_heads(after, false);
      waits_from = after;
      waiting = 0;
      buffer ^= 1;
    }
  }
};
#endif

template <int32_t T, class A, class S>
__global__ void __launch_bounds__(S::threads, S::blocks_per_sm) gemv_one_token(const __grid_constant__ GemvParams p) {
#if MR_HOPPER && defined(__CUDA_ARCH_FEAT_SM90_ALL)
  uint8_t* const memory = dynamic_memory();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  float* const sums = reinterpret_cast<float*>(memory + GemvOneTokenLayout<T, S>::sums_at);
  GemvOneTokenBlock<T, A, S> block{p, {p, sums, warp, lane}, memory, evict_first_policy()};
  block.run();
#endif
}

// Other machine code than that of compute capability 9.0 is empty.
template <int32_t T, class A, class S>
GemvKernel gemv_one_token_kernel() {
  using Layout = GemvOneTokenLayout<T, S>;
  return {reinterpret_cast<const void*>(&gemv_one_token<T, A, S>),
          [](int32_t capability) { return MR_HOPPER && capability == 90 ? Layout::bytes : kNoSharedMemory; },
          S::threads, S::panels, S::tokens, Layout::group_bytes};
}

}  // namespace mr::cuda
