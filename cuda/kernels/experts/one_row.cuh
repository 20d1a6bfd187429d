// one_row: the grouped GEMMs of the decode class of a single row, whose plan is its experts in ascending order.
//
//   one_row_gated    gate and up of an expert. An item is a panel of both; each of a block's 8 warps has one split-K slice.
//   one_row_branch   down of all experts of the row, and their weighted sum. A block has a panel of the hidden row, and its warps
//                    share the slices of all experts.
//
// A warp streams weights alone through stages of its own. Its slices follow one another in them, so that most of what a block reads is
// in flight at once: an item has few bytes, and its time is that of a round trip to memory. Inputs are copied to shared memory once for
// a block. Slices are those of few_rows.cuh and are added in the same order, and the sum over experts is that of combine.cu, so the row
// has the bits that it has among others.
//
// one_row_branch requests weights before the dependency wait, while gate and up still run: the kernel that wrote the plan has ended
// (launch.h, 4). A shared expert has a GEMM before each kernel, and few bytes. Then one_row_branch requests inputs before the wait too, and
// so does one_row_gated with its operands if `ahead` is set.
#pragma once

#include "kernels/experts/gated.cuh"
#include "kernels/experts/grouped.h"
#include "kernels/gemm/gemv_async_mma.cuh"

namespace mr::cuda {

constexpr int32_t kOneRowBlocks = 2;  // of an SM

template <int32_t T, class A>
struct OneRow {
  static constexpr WeightFormat f = Format<T>::f;
  // Units of a stage, which is contiguous in a panel: a group, or as many as have about 2 KiB.
  static constexpr int32_t unit = f.quants + f.high + f.scales, fit = 2304 / unit;
  static constexpr int32_t units = f.units > 1 ? f.units : fit > 4 ? 4 : fit < 1 ? 1 : fit;
  using Shape = GemvShape<1, 1, units, kOneRowBlocks>;
  using Pipeline = GemvAsyncPipeline<T, A, Shape>;
  using Mma = GemvAsyncMma<T, A, Shape>;
  using Layout = typename Pipeline::Layout;
  static constexpr int32_t stage = f.units > 1 ? Format<T>::group_bytes : units * unit;
  // As many stages of all warps as let the blocks of an SM have 24 KiB each for inputs.
  static constexpr int32_t room = 88 << 10, fitting = room / (kSlices * stage), stages = fitting > 8 ? 8 : fitting < 2 ? 2 : fitting;
  static constexpr int32_t stage_bytes = kSlices * stages * stage;

  // Segment is a slice of a panel: where it begins, how many units it has, and the shared memory address of their inputs.
  struct Segment {
    const uint8_t* from;
    int32_t units;
    uint32_t inputs;
  };

  const GemvParams& p;
  int32_t warp, lane;
  uint32_t shared;  // address of this warp's stages

  // Bytes of a row of inputs in shared memory.
  __device__ __forceinline__ int32_t row_bytes() const { return p.groups * f.units * (kUnitCols * 2); }

  __device__ __forceinline__ int32_t begin_of(int32_t slice) const { return p.groups * slice / kSlices * f.units; }

  // Slice `slice` of a panel, whose row of inputs lies at `inputs`.
  __device__ __forceinline__ Segment segment(const uint8_t* panel, int32_t slice, uint32_t inputs) const {
    const int32_t begin = begin_of(slice);
    const int64_t skip = f.units > 1 ? int64_t{begin / f.units} * Format<T>::group_bytes : int64_t{begin} * unit;
    return {panel + skip, begin_of(slice + 1) - begin, inputs + begin * (kUnitCols * 2)};
  }

  // Copies a stage's weights, from unit `unit` of a segment on.
  __device__ __forceinline__ void fill(const Segment& s, int32_t at, int32_t stage_index) const {
    const int32_t bytes = f.units > 1 ? stage : min(units, s.units - at) * unit;
    const uint8_t* const from = s.from + (f.units > 1 ? at / f.units * stage : at * unit);
    const uint32_t to = shared + stage_index * stage;
#pragma unroll
    for (int32_t c = 0; c < stage; c += 512) {
      const int32_t own = c + lane * 16;
      if (own < bytes) copy16(to + own, from + own, evict_first_policy());
    }
  }

  __device__ __forceinline__ void multiply(float (&acc)[1][4], int32_t left, uint32_t weights, uint32_t inputs) const {
    const Pipeline pipeline{p, warp, lane, 0, nullptr, 0};
    const Mma mma{pipeline};
    typename Mma::Group group;
    if constexpr (f.units > 1) group.headers[0].load(weights + units * unit, lane);
    if constexpr (kFolds<T>) {
      mma.multiply_folded(acc, group, weights, inputs, 0);
    } else {
#pragma unroll
      for (int32_t u = 0; u < units; ++u) {
        if (u > 0 && f.units == 1 && u >= left) break;
        mma.multiply_unit(acc, group.headers, weights, inputs + u * (kUnitCols * 2), u);
      }
    }
  }

  // Multiplies the segments of this warp, which `at(n, segment)` gives until it returns false, and calls ended(n, sums) after each.
  // begin() runs once after the first stages are requested.
  template <class At, class Begin, class Ended>
  __device__ __forceinline__ void stream(At&& at, Begin&& begin, Ended&& ended) const {
    Segment next;
    int32_t index = 0, done = 0, stage_index = 0, free_stage = stages - 1;
    bool more = at(0, next);
    const auto skip_empty = [&] {
      while (more && next.units == 0) more = at(++index, next);
    };
    const auto request = [&](int32_t to) {
      if (more) {
        fill(next, done, to);
        done += units;
        if (done >= next.units) {
          done = 0;
          more = at(++index, next);
          skip_empty();
        }
      }
      copies_commit();
    };
    skip_empty();
#pragma unroll 1
    for (int32_t s = 0; s < stages - 1; ++s) request(s);
    begin();
    Segment own;
#pragma unroll 1
    for (int32_t n = 0; at(n, own); ++n) {
      float acc[1][4] = {};
#pragma unroll 1
      for (int32_t unit_at = 0; unit_at < own.units; unit_at += units) {
        copies_wait<stages - 2>();
        __syncwarp();
        request(free_stage);
        multiply(acc, own.units - unit_at, shared + stage_index * stage, own.inputs + unit_at * (kUnitCols * 2));
        free_stage = stage_index;
        stage_index = stage_index + 1 == stages ? 0 : stage_index + 1;
      }
      ended(n, acc[0]);
    }
  }

  // Copies rows of inputs to shared memory, one after another, with zeros up to whole units.
  __device__ __forceinline__ void copy_inputs(uint32_t to, int32_t rows, int32_t row_bytes) const {
    const int32_t pieces = row_bytes / 16;
    for (int32_t i = warp * 32 + lane; i < rows * pieces; i += kSlices * 32) {
      const int32_t row = i / pieces, own = i % pieces * 16, left = min(max(p.cols * 2 - own, 0), 16);
      const uint8_t* const from = static_cast<const uint8_t*>(p.x) + row * p.x_stride * 2;
      copy16_or_zero(to + row * row_bytes + own, left > 0 ? from + own : from, static_cast<uint32_t>(left));
    }
  }

  // Stores this warp's sums of a panel, of which every column is the row's: 16 floats.
  __device__ __forceinline__ void put(float* sums, const float (&acc)[4]) const {
    if (lane % 4 != 0) return;
    sums[lane / 4] = acc[0];
    sums[lane / 4 + 8] = acc[2];
  }

  // The eight slices of an output, in ascending order; `stride` floats apart.
  __device__ __forceinline__ static float add_slices(const float* sums, int32_t stride) {
    float sum = 0;
#pragma unroll
    for (int32_t s = 0; s < kSlices; ++s) sum += sums[s * stride];
    return sum;
  }
};

// Expert of a pair, each of which is a tile of a single row's plan. ahead: the kernel may not have waited yet (launch.h, 5).
__device__ __forceinline__ int32_t one_row_expert(const GroupedParams& g, int32_t pair, bool ahead) {
  const int32_t* const expert = &g.plan.tiles[pair].expert;
  return ahead ? __ldcg(expert) : *expert;
}

template <int32_t T, class A>
__global__ void __launch_bounds__(kSlices * 32, kOneRowBlocks) one_row_gated(const __grid_constant__ GroupedParams g) {
  using Row = OneRow<T, A>;
  __shared__ float sums[2][kSlices][2][kPanelRows];
  uint8_t* const memory = dynamic_memory();
  const GemvParams& p = g.gemm;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const uint32_t inputs = shared_address(memory) + Row::stage_bytes;
  const Row row{p, warp, lane, shared_address(memory) + warp * Row::stages * Row::stage};
  if (!g.ahead) {
    grid_wait();
    grid_trigger();
  }
  // The plan has room for every pair, so a block may read the expert of its first item before it knows the number of tiles.
  const int32_t panels = p.targets[0].panels, first_pair = static_cast<int32_t>(blockIdx.x) / panels;
  const int32_t first_expert = one_row_expert(g, first_pair, g.ahead), items = __ldcg(g.plan.tile_count) * panels;
  if (static_cast<int32_t>(blockIdx.x) >= items) {
    if (g.ahead) grid_wait();
    return;
  }
  row.copy_inputs(inputs, 1, row.row_bytes());
  const auto expert_of = [&](int32_t pair) { return pair == first_pair ? first_expert : one_row_expert(g, pair, g.ahead); };
  const auto item_of = [&](int32_t n) { return static_cast<int32_t>(blockIdx.x) + n / 2 * static_cast<int32_t>(gridDim.x); };
  row.stream(
      [&](int32_t n, typename Row::Segment& s) {
        const int32_t item = item_of(n);
        if (item >= items) return false;
        const uint8_t* const data = p.targets[n % 2].data + expert_of(item / panels) * g.matrix_bytes;
        s = row.segment(data + item % panels * p.panel_bytes, warp, inputs + (lane >> 3) * 16);
        return true;
      },
      [&] {
        if (g.ahead) {
          grid_wait();
          grid_trigger();
        }
        copies_wait<Row::stages - 2>();  // the inputs are in the first group
        __syncthreads();
      },
      [&](int32_t n, const float (&acc)[4]) {
        const int32_t item = item_of(n), buffer = n / 2 % 2;
        row.put(sums[buffer][warp][n % 2], acc);
        if (n % 2 == 0) return;
        const int32_t local = warp * 32 + lane, at = item % panels * kPanelRows + local;
        const bool stores = local < kPanelRows && at < p.targets[0].rows;
        const int32_t pair = item / panels;
        float y[2] = {0, 0};
#pragma unroll
        for (int32_t r = 0; r < 2; ++r) {
          const float* const bias = p.targets[r].bias;
          if (stores && bias != nullptr) y[r] = bias[static_cast<int64_t>(expert_of(pair)) * p.targets[r].rows + at];
        }
        __syncthreads();
        if (!stores) return;
#pragma unroll
        for (int32_t r = 0; r < 2; ++r) y[r] = Row::add_slices(&sums[buffer][0][r][local], 2 * kPanelRows) * p.x_scale + y[r];
        static_cast<A*>(p.targets[0].out)[pair * p.targets[0].out_stride + at] =
            ActOps<A>::from(gated_product(g.activation, y[0], y[1]) * p.pair_share);
      });
}

template <int32_t T, class A>
__global__ void __launch_bounds__(kSlices * 32, kOneRowBlocks) one_row_branch(const __grid_constant__ GroupedParams g,
                                                                              const __grid_constant__ RowBranch b) {
  using Row = OneRow<T, A>;
  __shared__ float sums[kMostRowExperts * kSlices][kPanelRows], outputs[kMostRowExperts][kPanelRows];
  uint8_t* const memory = dynamic_memory();
  const GemvParams& p = g.gemm;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t panel = static_cast<int32_t>(blockIdx.x);
  const uint32_t inputs = shared_address(memory) + Row::stage_bytes;
  const Row row{p, warp, lane, shared_address(memory) + warp * Row::stages * Row::stage};
  const bool inputs_ahead = b.shared != nullptr;
  const int32_t used = __ldcg(g.plan.tile_count);
  if (used == 0) {  // padding
    grid_wait();
    return;
  }
  const int32_t row_bytes = row.row_bytes();
  if (inputs_ahead) row.copy_inputs(inputs, used, row_bytes);
  // A thread has an output of an expert.
  const int32_t thread = warp * 32 + lane, local = thread % kPanelRows, expert = thread / kPanelRows, at = panel * kPanelRows + local;
  const bool inside = at < p.targets[0].rows;
  float weight = 0, bias = 0, before = 0, shared = 0, shared_weight = 1;
  // A warp has `used` slices of all.
  row.stream(
      [&](int32_t n, typename Row::Segment& s) {
        if (n >= used) return false;
        const int32_t slice = warp * used + n, pair = slice / kSlices;
        const uint8_t* const data = p.targets[0].data + one_row_expert(g, pair, true) * g.matrix_bytes + panel * p.panel_bytes;
        s = row.segment(data, slice % kSlices, inputs + pair * row_bytes + (lane >> 3) * 16);
        return true;
      },
      [&] {
        if (b.bias != nullptr && expert < used && inside)
          bias = b.bias[static_cast<int64_t>(one_row_expert(g, expert, true)) * p.targets[0].rows + at];
        grid_wait();
        grid_trigger();
        if (!inputs_ahead) {
          row.copy_inputs(inputs, used, row_bytes);
          copies_commit();
        }
        if (expert < used && inside) {
          weight = __ldcg(b.weights + expert);
          if (expert == 0 && b.branch == nullptr) before = __ldcg(b.x + at);
          if (expert == 0 && b.shared != nullptr) shared = __ldcg(b.shared + at);
          if (expert == 0 && b.shared_weight != nullptr) shared_weight = __ldcg(b.shared_weight);
        }
        if (inputs_ahead) copies_wait<Row::stages - 2>();
        else copies_wait<0>();
        __syncthreads();
      },
      [&](int32_t n, const float (&acc)[4]) { row.put(sums[warp * used + n], acc); });
  __syncthreads();
  if (expert < used) {
    // few_rows.cuh adds a bias of 0 to the outputs of down, and -0 + 0 is 0.
    float y = Row::add_slices(&sums[expert * kSlices][local], kPanelRows) * p.x_scale + 0.0f;
    if (b.bias != nullptr) y += bias;
    outputs[expert][local] = y * weight;
  }
  __syncthreads();
  if (expert != 0 || !inside) return;
  float sum = outputs[0][local];
  for (int32_t e = 1; e < used; ++e) sum += outputs[e][local];
  if (b.shared != nullptr) sum += shared * shared_weight;
  if (b.branch == nullptr) b.x[at] = before + sum;
  else b.branch[at] = sum;
}

template <int32_t T, class A>
GemvKernel one_row_kernel_for(GroupedForm form) {
  const auto stage_bytes = [](int32_t) -> int32_t { return OneRow<T, A>::stage_bytes; };
  const bool gated = form == GroupedForm::kOneGated;
  const auto function = gated ? reinterpret_cast<const void*>(&one_row_gated<T, A>) : reinterpret_cast<const void*>(&one_row_branch<T, A>);
  return {function, stage_bytes, kSlices * 32, 1, 1};
}

// Operands of several terms have no such kernels: few models have them, and other kernels give the same bits.
template <int32_t T>
GemvKernel one_row_kernel(Act act, GroupedForm form) {
  return with_multiplied_act<T, GemvKernel>(act, [&](auto element) -> GemvKernel {
    using A = decltype(element);
    if constexpr (OperandSplit<T, A>::single) return one_row_kernel_for<T, A>(form);
    else return {};
  });
}

}  // namespace mr::cuda
