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

// The weights of experts g and g + 8 in a step of a packed unit.
template <int32_t T>
__device__ __forceinline__ void load_step(const uint8_t* unit, int32_t step, int32_t lane, Four (&rows)[2]) {
  if constexpr (T == kF32) {
#pragma unroll
    for (int32_t r = 0; r < 2; ++r) {
      const float4 v = *reinterpret_cast<const float4*>(unit + (step * 2 + r) * 512 + lane * 16);
      rows[r] = {{v.x, v.y, v.z, v.w}};
    }
  } else {
    const uint4 v = *reinterpret_cast<const uint4*>(unit + step * 512 + lane * 16);
    rows[0] = {{widened<T>(v.x & 0xffffu), widened<T>(v.x >> 16), widened<T>(v.z & 0xffffu), widened<T>(v.z >> 16)}};
    rows[1] = {{widened<T>(v.y & 0xffffu), widened<T>(v.y >> 16), widened<T>(v.w & 0xffffu), widened<T>(v.w >> 16)}};
  }
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

// Block (x, y) computes panel x for rows [kRows * y, kRows * (y + 1)).
template <int32_t T, int32_t kRows, int32_t kWarps, bool whole>
__device__ __forceinline__ void router_block(const RouterArgs& a) {
  __shared__ float sums[kColumnSlices][kRows][kPanelRows], squares[kColumnSlices][kRows];
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
  const int32_t dim = static_cast<int32_t>(a.router.cols), experts = static_cast<int32_t>(a.router.rows);
  const int32_t units = (dim + kUnitCols - 1) / kUnitCols, first_row = static_cast<int32_t>(blockIdx.y) * kRows;
  const uint8_t* const panel = a.router.data + static_cast<int64_t>(blockIdx.x) * units * Format<T>::group_bytes;
  // Weights of a few rows come from device memory, so they are requested before the wait.
  if constexpr (kRows == 1) {
    static_assert(kWarps == kColumnSlices, "a warp has one slice");
    constexpr int32_t kUnitBytes = Format<T>::group_bytes;
    const int32_t from = units * warp / kColumnSlices * kUnitBytes, until = units * (warp + 1) / kColumnSlices * kUnitBytes;
    for (int32_t at = from + lane * kLine; at < until; at += 32 * kLine) prefetch_l2(panel + at);
  }
  grid_wait();
  grid_trigger();

#pragma unroll 1
  for (int32_t slice = warp; slice < kColumnSlices; slice += kWarps) {
    float dot[kRows][2] = {}, square[kRows] = {};
    for (int32_t unit = units * slice / kColumnSlices; unit < units * (slice + 1) / kColumnSlices; ++unit) {
      constexpr int32_t kSteps = kUnitCols / 16;
      const int32_t column = unit * kUnitCols + t * 2;
      Four w[kSteps][2], norm[kSteps];  // all of a unit is requested before it is used
#pragma unroll
      for (int32_t step = 0; step < kSteps; ++step) {
        load_step<T>(panel + static_cast<int64_t>(unit) * Format<T>::group_bytes, step, lane, w[step]);
        if (a.norm == nullptr) norm[step] = {{1, 1, 1, 1}};
        else norm[step] = load_columns<whole>(a.norm, column + step * 16, dim);
      }
#pragma unroll
      for (int32_t r = 0; r < kRows; ++r) {
        const float* const row = a.x + min(first_row + r, a.rows - 1) * a.x_stride;
        Four x[kSteps];
#pragma unroll
        for (int32_t step = 0; step < kSteps; ++step) x[step] = load_columns<whole>(row, column + step * 16, dim);
#pragma unroll
        for (int32_t i = 0; i < kSteps * 4; ++i) {
          const float v = x[i / 4].of[i % 4], normed = v * norm[i / 4].of[i % 4];
          square[r] = fmaf(v, v, square[r]);
          dot[r][0] = fmaf(normed, w[i / 4][0].of[i % 4], dot[r][0]);
          dot[r][1] = fmaf(normed, w[i / 4][1].of[i % 4], dot[r][1]);
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
