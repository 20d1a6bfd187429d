// one_row: the grouped GEMMs of the decode class of a single row, whose plan is its experts in ascending order.
//
//   one_row_gated    gate and up of an expert. An item is a panel of both; each of a block's 8 warps has one split-K slice.
//   one_row_branch   down of all experts of the row, and their weighted sum. A block has a panel of the hidden row, and its warps
//                    share the slices of all experts.
//
// A warp streams weights alone through stages of its own. Its slices follow one another in them, so that most of what a block reads is
// in flight at once: an item has few bytes, and its time is that of a round trip to memory. Inputs are copied to shared memory once for
// a block, and a lane keeps the expert of a pair, so that the next address needs no load. Slices are those of few_rows.cuh and are added in
// the same order, and the sum over experts is that of combine.cu, so the row has the bits that it has among others.
//
// one_row_branch requests weights before the dependency wait, while gate and up still run: the kernel that wrote the plan has ended
// (launch.h, 4). A shared expert has a GEMM before each kernel, and few bytes. Then one_row_branch requests inputs before the wait too, and
// so does one_row_gated with its operands if `ahead` is set.
#pragma once

#include "kernels/experts/gated.cuh"
#include "kernels/experts/grouped.h"
#include "kernels/gemm/gemv_async_pipeline.cuh"

namespace mr::cuda {

constexpr int32_t kBranchBlocks = 2;  // of an SM

// OneRow multiplies slices of panels by a warp, if `blocks` blocks share an SM.
template <int32_t T, class A, int32_t blocks>
struct OneRow {
  static constexpr WeightFormat f = Format<T>::f;
  // Units of a stage, which is contiguous in a panel: a group, or as many as have about 2 KiB.
  static constexpr int32_t unit = f.quants + f.high + f.scales, fit = 2304 / unit;
  static constexpr int32_t units = f.units > 1 ? f.units : fit > 4 ? 4 : fit < 1 ? 1 : fit;
  using Shape = GemvShape<1, 1, units, blocks>;
  using Pipeline = GemvAsyncPipeline<T, A, Shape>;
  using Mma = GemvAsyncMma<T, A, Shape>;
  using Layout = typename Pipeline::Layout;
  static constexpr int32_t stage = f.units > 1 ? Format<T>::group_bytes : units * unit;
  // As many stages of all warps as leave two blocks of an SM 25 KiB each for inputs and sums, and three blocks 9 KiB for inputs.
  static constexpr int32_t room = (blocks == 2 ? 88 : 64) << 10, fitting = room / (kSlices * stage);
  static constexpr int32_t stages = fitting > 8 ? 8 : fitting < 2 ? 2 : fitting, stage_bytes = kSlices * stages * stage;

  const GemvParams& p;
  int32_t warp, lane;
  uint32_t shared;  // address of this warp's stages

  // Bytes of a row of inputs in shared memory.
  __device__ __forceinline__ int32_t row_bytes() const { return p.groups * f.units * (kUnitCols * 2); }

  __device__ __forceinline__ int32_t begin_of(int32_t slice) const { return p.groups * slice / kSlices * f.units; }

  __device__ __forceinline__ int32_t units_of(int32_t slice) const { return begin_of(slice + 1) - begin_of(slice); }

  // skip_to returns the bytes from the beginning of a panel to a slice.
  __device__ __forceinline__ int64_t skip_to(int32_t slice) const {
    const int32_t begin = begin_of(slice);
    return f.units > 1 ? int64_t{begin / f.units} * Format<T>::group_bytes : int64_t{begin} * unit;
  }

  // request_expert returns the expert of pair `lane` of a row, which has up to 32 pairs.
  __device__ __forceinline__ int32_t request_expert(const GroupedParams& g) const {
    return lane < p.tokens * g.x_share ? __ldcg(&g.plan.tiles[lane].expert) : 0;
  }
  // expert_of returns the expert of a pair, from the lanes' experts. All lanes of a warp call it.
  __device__ __forceinline__ static int32_t expert_of(int32_t experts, int32_t pair) { return __shfl_sync(0xffffffffu, experts, pair); }

  // Copies a stage's weights, from unit `at` of a slice on, which has `count` units and begins at `from`.
  __device__ __forceinline__ void fill(const uint8_t* from, int32_t count, int32_t at, int32_t stage_index) const {
    const int32_t bytes = f.units > 1 ? stage : min(units, count - at) * unit;
    from += f.units > 1 ? at / f.units * stage : at * unit;
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

  // Multiplies the slices of this warp, and calls ended(walk, sums) after each. begin() runs once after the first stages are requested.
  // A walk is at a slice: valid() says whether there is one, units() has its number, which may be 0, weights() and inputs() its addresses,
  // and advance() goes to the next.
  template <class Walk, class Begin, class Ended>
  __device__ __forceinline__ void stream(const Walk& first, Begin&& begin, Ended&& ended) const {
    Walk next = first;
    const uint8_t* from = nullptr;
    int32_t done = 0, stage_index = 0, free_stage = stages - 1;
    const auto skip_empty = [&] {
      while (next.valid() && next.units() == 0) next.advance();
    };
    const auto request = [&](int32_t to) {
      if (next.valid()) {
        if (done == 0) from = next.weights();
        fill(from, next.units(), done, to);
        done += units;
        if (done >= next.units()) {
          done = 0;
          next.advance();
          skip_empty();
        }
      }
      copies_commit();
    };
    skip_empty();
#pragma unroll 1
    for (int32_t s = 0; s < stages - 1; ++s) request(s);
    begin();
#pragma unroll 1
    for (Walk walk = first; walk.valid(); walk.advance()) {
      float acc[1][4] = {};
#pragma unroll 1
      for (int32_t at = 0; at < walk.units(); at += units) {
        copies_wait<stages - 2>();
        __syncwarp();
        request(free_stage);
        multiply(acc, walk.units() - at, shared + stage_index * stage, walk.inputs() + at * (kUnitCols * 2));
        free_stage = stage_index;
        stage_index = stage_index + 1 == stages ? 0 : stage_index + 1;
      }
      ended(walk, acc[0]);
    }
  }

  // Copies rows of inputs to shared memory, one after another, with zeros up to whole units.
  __device__ __forceinline__ void copy_inputs(uint32_t to, int32_t rows, int32_t row_bytes) const {
    const uint8_t* from = static_cast<const uint8_t*>(p.x);
#pragma unroll 1
    for (int32_t r = 0; r < rows; ++r, from += p.x_stride * 2, to += row_bytes) {
#pragma unroll 1
      for (int32_t own = (warp * 32 + lane) * 16; own < row_bytes; own += kSlices * 32 * 16) {
        const int32_t left = min(max(p.cols * 2 - own, 0), 16);
        copy16_or_zero(to + own, left > 0 ? from + own : from, static_cast<uint32_t>(left));
      }
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

// GatedWalk goes through a warp's slice of gate and of up, from one item of the block to the next.
template <class Row>
struct GatedWalk {
  const Row& row;
  const GroupedParams& g;
  int32_t expert, used;  // request_expert, and the row's experts
  uint32_t x;            // of the slice
  int32_t pair = 0, panel = static_cast<int32_t>(blockIdx.x), number = 0;  // number: of the block's item
  bool up = false;

  __device__ __forceinline__ void carry() {
    for (; panel >= g.gemm.targets[0].panels; panel -= g.gemm.targets[0].panels) ++pair;
  }
  __device__ __forceinline__ bool valid() const { return pair < used; }
  __device__ __forceinline__ int32_t units() const { return row.units_of(row.warp); }
  __device__ __forceinline__ uint32_t inputs() const { return x; }
  __device__ __forceinline__ const uint8_t* weights() const {
    const uint8_t* const matrix = g.gemm.targets[up ? 1 : 0].data + Row::expert_of(expert, pair) * g.matrix_bytes;
    return matrix + panel * g.gemm.panel_bytes + row.skip_to(row.warp);
  }
  __device__ __forceinline__ void advance() {
    up = !up;
    if (up) return;
    ++number;
    panel += static_cast<int32_t>(gridDim.x);
    carry();
  }
};

// kGatedBlocks is three blocks of an SM, if they hold three stages: 384 items of Qwen3-30B then take one wave and not two.
template <int32_t T, class A>
constexpr int32_t kGatedBlocks = OneRow<T, A, 3>::fitting >= 3 ? 3 : 2;

template <int32_t T, class A>
__global__ void __launch_bounds__(kSlices * 32, kGatedBlocks<T, A>) one_row_gated(const __grid_constant__ GroupedParams g) {
  using Row = OneRow<T, A, kGatedBlocks<T, A>>;
  using Walk = GatedWalk<Row>;
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
  const int32_t expert = row.request_expert(g), used = __ldcg(g.plan.tile_count);
  row.copy_inputs(inputs, 1, row.row_bytes());
  Walk first{row, g, expert, used, inputs + row.begin_of(warp) * (kUnitCols * 2) + (lane >> 3) * 16};
  first.carry();
  float bias[2] = {0, 0};
  row.stream(
      first,
      [&] {
        if (g.ahead) {
          grid_wait();
          grid_trigger();
        }
        copies_wait<Row::stages - 2>();  // the inputs are in the first group
        __syncthreads();
      },
      [&](const Walk& item, const float (&acc)[4]) {
        const int32_t buffer = item.number % 2, output = item.panel * kPanelRows + lane;
        row.put(sums[buffer][warp][item.up ? 1 : 0], acc);
        // Warp i % 8 computes the epilogue of the block's item i.
        const bool stores = item.number % kSlices == warp && lane < kPanelRows && output < p.targets[0].rows;
        const int32_t biased = Row::expert_of(expert, item.pair);
        if (!item.up) {  // the biases come while up is multiplied
#pragma unroll
          for (int32_t r = 0; r < 2; ++r) {
            const float* const from = p.targets[r].bias;
            if (stores && from != nullptr) bias[r] = from[static_cast<int64_t>(biased) * p.targets[r].rows + output];
          }
          return;
        }
        __syncthreads();
        if (!stores) return;
        float y[2];
#pragma unroll
        for (int32_t r = 0; r < 2; ++r) y[r] = Row::add_slices(&sums[buffer][0][r][lane], 2 * kPanelRows) * p.x_scale + bias[r];
        static_cast<A*>(p.targets[0].out)[item.pair * p.targets[0].out_stride + output] =
            ActOps<A>::from(gated_product(g.activation, y[0], y[1]) * p.pair_share);
      });
}

// BranchWalk goes through a warp's share of the slices of all experts of a panel.
template <class Row>
struct BranchWalk {
  const Row& row;
  const GroupedParams& g;
  int32_t expert;    // request_expert
  uint32_t x;        // inputs of the first expert, of the lane
  int32_t row_bytes, slice, end;

  __device__ __forceinline__ bool valid() const { return slice < end; }
  __device__ __forceinline__ int32_t units() const { return row.units_of(slice % kSlices); }
  __device__ __forceinline__ uint32_t inputs() const {
    return x + slice / kSlices * row_bytes + row.begin_of(slice % kSlices) * (kUnitCols * 2);
  }
  __device__ __forceinline__ const uint8_t* weights() const {
    return g.gemm.targets[0].data + Row::expert_of(expert, slice / kSlices) * g.matrix_bytes +
           static_cast<int32_t>(blockIdx.x) * g.gemm.panel_bytes + row.skip_to(slice % kSlices);
  }
  __device__ __forceinline__ void advance() { ++slice; }
};

template <int32_t T, class A>
__global__ void __launch_bounds__(kSlices * 32, kBranchBlocks) one_row_branch(const __grid_constant__ GroupedParams g,
                                                                              const __grid_constant__ RowBranch b) {
  using Row = OneRow<T, A, kBranchBlocks>;
  using Walk = BranchWalk<Row>;
  static_assert(Row::fitting < 2 || kBranchBlocks * (Row::stage_bytes + 4 * (2880 * 2 + kBranchSums) + 1024) <= 228 << 10,
                "of four experts with 2 880 columns (gpt-oss) the second block would wait for the first to end");
  uint8_t* const memory = dynamic_memory();
  const GemvParams& p = g.gemm;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const uint32_t inputs = shared_address(memory) + Row::stage_bytes;
  const Row row{p, warp, lane, shared_address(memory) + warp * Row::stages * Row::stage};
  const bool inputs_ahead = b.shared != nullptr;
  const int32_t experts = row.request_expert(g), used = __ldcg(g.plan.tile_count);
  if (used == 0) {  // padding
    grid_wait();
    return;
  }
  const int32_t row_bytes = row.row_bytes();
  float* const sums = reinterpret_cast<float*>(memory + Row::stage_bytes + used * row_bytes);  // (used, kSlices, kPanelRows)
  float* const outputs = sums + used * (kSlices * kPanelRows);                                 // (used, kPanelRows)
  if (inputs_ahead) row.copy_inputs(inputs, used, row_bytes);
  // A thread has an output of an expert.
  const int32_t thread = warp * 32 + lane, local = thread % kPanelRows, expert = thread / kPanelRows;
  const int32_t at = static_cast<int32_t>(blockIdx.x) * kPanelRows + local, biased = Row::expert_of(experts, expert);
  const bool inside = at < p.targets[0].rows;
  float weight = 0, bias = 0, before = 0, shared = 0, shared_weight = 1;
  // A warp has `used` slices of all.
  row.stream(
      Walk{row, g, experts, inputs + (lane >> 3) * 16, row_bytes, warp * used, (warp + 1) * used},
      [&] {
        if (b.bias != nullptr && expert < used && inside) bias = b.bias[static_cast<int64_t>(biased) * p.targets[0].rows + at];
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
      [&](const Walk& walk, const float (&acc)[4]) { row.put(sums + walk.slice * kPanelRows, acc); });
  __syncthreads();
  if (expert < used) {
    // few_rows.cuh adds a bias of 0 to the outputs of down, and -0 + 0 is 0.
    float y = Row::add_slices(sums + expert * (kSlices * kPanelRows) + local, kPanelRows) * p.x_scale + 0.0f;
    if (b.bias != nullptr) y += bias;
    outputs[expert * kPanelRows + local] = y * weight;
  }
  __syncthreads();
  if (expert != 0 || !inside) return;
  float sum = outputs[local];
  for (int32_t e = 1; e < used; ++e) sum += outputs[e * kPanelRows + local];
  if (b.shared != nullptr) sum += shared * shared_weight;
  if (b.branch == nullptr) b.x[at] = before + sum;
  else b.branch[at] = sum;
}

template <int32_t T, class A>
GemvKernel one_row_kernel_for(GroupedForm form) {
  if (form == GroupedForm::kOneGated)
    return {reinterpret_cast<const void*>(&one_row_gated<T, A>),
            [](int32_t) -> int32_t { return OneRow<T, A, kGatedBlocks<T, A>>::stage_bytes; }, kSlices * 32, 1, 1};
  return {reinterpret_cast<const void*>(&one_row_branch<T, A>), [](int32_t) -> int32_t { return OneRow<T, A, kBranchBlocks>::stage_bytes; },
          kSlices * 32, 1, 1};
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
