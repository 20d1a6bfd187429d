// training: what the kernels of a training share on the device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/vectors/training.h"

namespace mr::cuda {

constexpr int kTrainingThreads = 256;
constexpr unsigned kWholeWarp = 0xffffffffu;

// Blocks of `each` items, at most `most`, at least 1. Kernels go on by whole grids where there are more.
inline dim3 training_grid(int64_t count, int64_t each, int64_t most = int64_t{1} << 30) {
  return dim3(static_cast<unsigned>(std::clamp<int64_t>((count + each - 1) / each, 1, most)));
}

// The columns of a subspace of one row, wherever rows lie.
struct RowPart {
  const void* row;
  int32_t type;
  int64_t first;
  __device__ float operator[](int64_t j) const { return cpu::decode_element(type, row, first + j); }
};

__device__ inline int64_t element_bytes(int32_t type) {
  return type == MR_VECTOR_F32 ? 4 : type == MR_VECTOR_F16 || type == MR_VECTOR_BF16 ? 2 : 1;
}

__device__ inline RowPart row_part(const void* rows, int32_t type, int64_t full, int64_t row, int64_t first) {
  return {static_cast<const uint8_t*>(rows) + row * full * element_bytes(type), type, first};
}

// The sum of eight partial sums, which the first eight lanes of a warp hold, in every lane of it. All lanes call.
__device__ inline double fold_warp(double partial) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int half = 4; half > 0; half /= 2) {
    const double other = __shfl_down_sync(kWholeWarp, partial, half);
    if (lane < half) partial += other;
  }
  return __shfl_sync(kWholeWarp, partial, 0);
}

// The sum of v(j) * v(j), j < n, in the order of `dot`, by one warp.
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

// A row as a codeword, by one warp: for inner products divided by its length.
__device__ inline void take_row(const TrainingView& t, int64_t row, int64_t space, float* to) {
  const RowPart x = row_part(t.a.any_rows, t.p.stored, t.p.full, row, space * t.p.width);
  double length = 0;
  if (t.p.metric != MR_METRIC_L2)
    length = sqrt(warp_length_squared(t.p.width, [&](int64_t j) { return static_cast<double>(x[j]); }));
  for (int64_t j = threadIdx.x % 32; j < t.p.width; j += 32) {
    const double v = static_cast<double>(x[j]);
    to[j] = cpu::round_codeword(t.p.codeword_type, length > 0 ? v / length : v);
  }
}

}  // namespace mr::cuda
