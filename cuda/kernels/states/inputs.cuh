// inputs: the inputs of a convolution, in the rows of a step and in the states before it. Args is ConvolveArgs or StoreInputsArgs, whose
// members have the same names.
#pragma once

#include "kernels/states/groups.cuh"
#include "kernels/states/states.h"

namespace mr::cuda {

// The inputs of one position: a row of `in`, or of a state; null: zeros.
struct InputRow {
  const float* row;
  bool stored;  // in a state
};

// Returns the inputs that are `distance` positions, fewer than conv, before a row.
template <class Args>
__device__ __forceinline__ InputRow input_before(const Args& a, int64_t row, int32_t distance) {
  int32_t segment = a.rows.segment_of[row];
  StateSegment s = a.rows.segments[segment];
  int32_t before = distance - static_cast<int32_t>(row - s.first_row);  // the segment
  if (before <= 0) return {a.in + (row - distance) * a.in_stride, false};
  const int32_t first = a.rows.chains[a.rows.chain_of[row]].first_segment;
  while (segment > first) {
    s = a.rows.segments[--segment];
    if (s.count >= before) return {a.in + (int64_t{s.first_row} + s.count - before) * a.in_stride, false};
    before -= s.count;
  }
  if (s.from < 0) return {nullptr, false};
  return {a.states.base + s.from * a.states.stride + int64_t{a.conv - 1 - before} * a.width, true};
}

// Four inputs from `column` on, of a row of `in`. Those of a state are loaded as they are.
template <bool gates, bool whole, class Args>
__device__ __forceinline__ float4 input_columns(const Args& a, const float* row, int32_t column, int32_t n) {
  const float4 x = load_columns<whole>(row + column, n);
  if constexpr (gates) return product(x, load_columns<whole>(row + 2 * int64_t{a.width} + column, n));
  return x;
}

// Stores the inputs that each segment of a chain ends with, of four columns. A thread does all of it, in ascending order of positions: a
// segment reads the state that the one before it wrote, and shifts a state in place if it reads and writes the same one.
template <bool gates, bool whole>
__device__ __forceinline__ void store_inputs(const StoreInputsArgs& a, const StateChain& chain, int32_t column) {
  constexpr int32_t kTogether = 4;  // loads before the first is stored
  const int32_t n = a.width - column, kept = a.conv - 1;
  if (n <= 0) return;
  for (int32_t i = 0; i < chain.segments; ++i) {
    const StateSegment s = a.rows.segments[chain.first_segment + i];
    const float* const from = a.states.base + s.from * a.states.stride + column;
    float* const to = a.states.base + s.to * a.states.stride + column;
    for (int32_t first = 0; first < kept; first += kTogether) {
      float4 x[kTogether];
#pragma unroll
      for (int32_t k = 0; k < kTogether; ++k) {
        const int32_t j = first + k, row = j + s.count - kept;  // of the segment
        x[k] = float4{};
        if (j >= kept) continue;
        if (row >= 0) x[k] = input_columns<gates, whole>(a, a.in + (int64_t{s.first_row} + row) * a.in_stride, column, n);
        else if (s.from >= 0) x[k] = load_columns<whole>(from + (int64_t{j} + s.count) * a.width, n);
      }
#pragma unroll
      for (int32_t k = 0; k < kTogether; ++k)
        if (first + k < kept) store_columns<whole>(to + int64_t{first + k} * a.width, n, x[k]);
    }
  }
}

// Whether store_inputs and input_columns may load four columns at once.
template <class Args>
bool whole_inputs(const Args& a) {
  return a.width % 4 == 0 && a.in_stride % 4 == 0 && a.states.stride % 4 == 0 && aligned(a.in, 16) && aligned(a.states.base, 16);
}

}  // namespace mr::cuda
