// router_block: a block of the router: logits[r, e] = sum_k x[r, k] norm[k] router[e, k] * factor(r) + bias[e], in f32.
//
// A block has a panel of 16 experts and some rows; its warps share 16 slices of the columns, cut at whole units.
// Lane 4g + t has experts g and g + 8 and four of every 16 columns, as weights lie (weight.h). The order of a logit's sum
// is the lane's columns, then four lanes, then the slices in ascending order: it depends on the width alone. The squares
// for the norm are summed in the same order, and the factor multiplies the sum, so that x is read once.
// Test bound: 2^-17 of the sum of absolute terms.
#pragma once

#include "kernels/act.cuh"
#include "kernels/experts/route.h"
#include "kernels/gemm/packed_access.cuh"
#include "kernels/instructions.cuh"
#include "kernels/norm_row.cuh"

namespace mr::cuda {

constexpr int32_t kColumnSlices = 16;
constexpr int32_t kLine = 128;    // bytes of a cache line

// Four weights of an expert, of columns 2t, 2t + 1, 2t + 8 and 2t + 9 of a step.
struct Four {
  float of[4];
};

template <int32_t T>
__device__ __forceinline__ float widened(uint32_t bits) {
  if constexpr (T == kF16) return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
  else return __uint_as_float(bits << 16);
}

// The lane's four columns of a step in a row of `dim` numbers. whole: units do not pass the row's end, and rows begin at 8 bytes.
template <bool whole>
__device__ __forceinline__ Four load_columns(const float* row, int32_t first, int32_t dim) {
  if constexpr (whole) {
    const float2 low = *reinterpret_cast<const float2*>(row + first), high = *reinterpret_cast<const float2*>(row + first + 8);
    return {{low.x, low.y, high.x, high.y}};
  } else {
    Four v;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t column = first + i / 2 * 8 + i % 2;
      v.of[i] = column < dim ? row[column] : 0.0f;
    }
    return v;
  }
}

// RouterUnit is a lane's share of a unit of the panel, as it lies. All of it is requested before any of it is used.
template <int32_t T>
struct RouterUnit {
  static constexpr int32_t kSteps = kUnitCols / 16, kLoads = T == kF32 ? 2 : 1;
  uint4 weights[kSteps][kLoads];

  __device__ __forceinline__ void request(const uint8_t* panel, int32_t unit, int32_t lane) {
    const uint8_t* const from = panel + static_cast<int64_t>(unit) * Format<T>::group_bytes + lane * 16;
#pragma unroll
    for (int32_t step = 0; step < kSteps; ++step)
#pragma unroll
      for (int32_t i = 0; i < kLoads; ++i) weights[step][i] = *reinterpret_cast<const uint4*>(from + (step * kLoads + i) * 512);
    all_requested();
  }

  // The weights of expert g + 8r in a step.
  __device__ __forceinline__ Four of(int32_t step, int32_t r) const {
    if constexpr (T == kF32) {
      const uint4 v = weights[step][r];
      return {{__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)}};
    } else {
      const uint4 v = weights[step][0];
      const uint32_t low = r == 0 ? v.x : v.y, high = r == 0 ? v.z : v.w;
      return {{widened<T>(low & 0xffffu), widened<T>(low >> 16), widened<T>(high & 0xffffu), widened<T>(high >> 16)}};
    }
  }

  // Keeps the loads before this point before it, so that none waits until it is used.
  __device__ __forceinline__ static void all_requested() { asm volatile("" ::: "memory"); }
};

// Block (x, y) computes panel x for rows [kRows * y, kRows * (y + 1)).
template <int32_t T, int32_t kRows, int32_t kWarps, bool whole>
__device__ __forceinline__ void router_block(const RouterArgs& a) {
  using Unit = RouterUnit<T>;
  __shared__ float sums[kColumnSlices][kRows][kPanelRows], squares[kColumnSlices][kRows];
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
  const int32_t dim = static_cast<int32_t>(a.router.cols), experts = static_cast<int32_t>(a.router.rows);
  const int32_t units = (dim + kUnitCols - 1) / kUnitCols, first_row = static_cast<int32_t>(blockIdx.y) * kRows;
  const uint8_t* const panel = a.router.data + static_cast<int64_t>(blockIdx.x) * units * Format<T>::group_bytes;
  // Weights and norm are constants: a warp requests its first unit before the wait, and with few rows the rest of its slice into L2.
  Unit w;
  const int32_t own = units * warp / kColumnSlices, own_end = units * (warp + 1) / kColumnSlices;
  const int32_t requested = own < own_end ? own : -1;
  if (requested >= 0) w.request(panel, requested, lane);
  if constexpr (kRows == 1) {
    static_assert(kWarps == kColumnSlices, "a warp has one slice");
    constexpr int32_t kUnitBytes = Format<T>::group_bytes, kLineCols = kLine / static_cast<int32_t>(sizeof(float));
    for (int32_t at = (own + 1) * kUnitBytes + lane * kLine; at < own_end * kUnitBytes; at += 32 * kLine) prefetch_l2(panel + at);
    if (a.norm != nullptr)
      for (int32_t at = own * kUnitCols + lane * kLineCols; at < min(own_end * kUnitCols, dim); at += 32 * kLineCols)
        prefetch_l2(a.norm + at);
  }
  grid_wait();
  grid_trigger();

#pragma unroll 1
  for (int32_t slice = warp; slice < kColumnSlices; slice += kWarps) {
    float dot[kRows][2] = {}, square[kRows] = {};
#pragma unroll 1
    for (int32_t unit = units * slice / kColumnSlices; unit < units * (slice + 1) / kColumnSlices; ++unit) {
      const int32_t column = unit * kUnitCols + t * 2;
      if (unit != requested) w.request(panel, unit, lane);
      Four norm[Unit::kSteps];
#pragma unroll
      for (int32_t step = 0; step < Unit::kSteps; ++step) {
        norm[step] = {{1, 1, 1, 1}};
        if (a.norm != nullptr) norm[step] = load_columns<whole>(a.norm, column + step * 16, dim);
      }
#pragma unroll
      for (int32_t r = 0; r < kRows; ++r) {
        const float* const row = a.x + min(first_row + r, a.rows - 1) * a.x_stride;
        Four x[Unit::kSteps];
#pragma unroll
        for (int32_t step = 0; step < Unit::kSteps; ++step) x[step] = load_columns<whole>(row, column + step * 16, dim);
        Unit::all_requested();
#pragma unroll
        for (int32_t step = 0; step < Unit::kSteps; ++step) {
          const Four low = w.of(step, 0), high = w.of(step, 1);
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            const float v = x[step].of[i], normed = v * norm[step].of[i];
            square[r] = fmaf(v, v, square[r]);
            dot[r][0] = fmaf(normed, low.of[i], dot[r][0]);
            dot[r][1] = fmaf(normed, high.of[i], dot[r][1]);
          }
        }
      }
    }
#pragma unroll
    for (int32_t r = 0; r < kRows; ++r) {
      for (const int32_t partner : {2, 1}) {
        dot[r][0] += __shfl_xor_sync(0xffffffffu, dot[r][0], partner);
        dot[r][1] += __shfl_xor_sync(0xffffffffu, dot[r][1], partner);
        square[r] += __shfl_xor_sync(0xffffffffu, square[r], partner);
      }
      if (t == 0) {
        sums[slice][r][lane / 4] = dot[r][0];
        sums[slice][r][lane / 4 + 8] = dot[r][1];
      }
      if (lane == 0) squares[slice][r] = square[r];
    }
  }
  __syncthreads();
  const int32_t r = threadIdx.x / kPanelRows, local = threadIdx.x % kPanelRows;
  const int32_t row = first_row + r, expert = static_cast<int32_t>(blockIdx.x) * kPanelRows + local;
  if (r >= kRows || row >= a.rows || expert >= experts) return;
  float sum = sums[0][r][local], of_squares = squares[0][r];
  for (int32_t w = 1; w < kColumnSlices; ++w) {
    sum += sums[w][r][local];
    of_squares += squares[w][r];
  }
  const float factor = a.norm == nullptr ? a.scale : norm_factor(of_squares, dim, a.eps) * a.scale;
  a.logits[static_cast<int64_t>(row) * experts + expert] = sum * factor + (a.bias == nullptr ? 0.0f : a.bias[expert]);
}

}  // namespace mr::cuda
