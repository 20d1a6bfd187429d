// training: device functions shared by the kernels of a training.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/vectors/training.h"

namespace mr::cuda {

constexpr int kTrainingThreads = 256;
constexpr unsigned kWholeWarp = 0xffffffffu;

// Blocks of `each` items, at most `most`, at least 1. If there are more items, kernels loop by whole grids.
inline dim3 training_grid(int64_t count, int64_t each, int64_t most = int64_t{1} << 30) {
  return dim3(static_cast<unsigned>(std::clamp<int64_t>((count + each - 1) / each, 1, most)));
}

// RowPart is the columns of a subspace of one row, in any row layout.
struct RowPart {
  const void* row;
  int32_t type;
  int64_t first;
  __device__ float operator[](int64_t j) const { return decode_element(type, row, first + j); }
};

__device__ inline int64_t element_bytes(int32_t type) {
  return type == MR_VECTOR_F32 ? 4 : type == MR_VECTOR_F16 || type == MR_VECTOR_BF16 ? 2 : 1;
}

__device__ inline RowPart row_part(const void* rows, int32_t type, int64_t full, int64_t row, int64_t first) {
  return {static_cast<const uint8_t*>(rows) + row * full * element_bytes(type), type, first};
}

// Adds the eight partial sums of the first eight lanes; every lane gets the result. All lanes must call it.
__device__ inline double fold_warp(double partial) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int half = 4; half > 0; half /= 2) {
    const double other = __shfl_down_sync(kWholeWarp, partial, half);
    if (lane < half) partial += other;
  }
  return __shfl_sync(kWholeWarp, partial, 0);
}

// Returns the sum of v(j) * v(j), j < n, in the order of `dot`; run by one warp.
template <class F>
__device__ inline double warp_length_squared(int64_t n, F&& v) {
  double partial = 0;
  if (threadIdx.x % 32 < 8)
    for (int64_t j = threadIdx.x % 32; j < n; j += 8) {
      const double x = v(j);
      partial += x * x;
    }
  return fold_warp(partial);
}

// Writes a row as a codeword; run by one warp. For inner products the row is divided by its length.
__device__ inline void take_row(const TrainingView& t, int64_t row, int64_t space, float* to) {
  const RowPart x = row_part(t.a.any_rows, t.p.stored, t.p.full, row, space * t.p.width);
  double length = 0;
  if (t.p.metric != MR_METRIC_L2)
    length = sqrt(warp_length_squared(t.p.width, [&](int64_t j) { return static_cast<double>(x[j]); }));
  for (int64_t j = threadIdx.x % 32; j < t.p.width; j += 32) {
    const double v = static_cast<double>(x[j]);
    to[j] = round_codeword(t.p.codeword_type, length > 0 ? v / length : v);
  }
}

}  // namespace mr::cuda
