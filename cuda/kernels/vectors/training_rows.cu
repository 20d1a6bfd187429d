#include "kernels/vectors/training.cuh"

namespace mr::cuda {
namespace {

constexpr int kColumns = 128;        // of a block
constexpr int64_t kInspected = 64;   // rows of a block

// A thread inspects one column of some rows.
__global__ void inspect_rows(const void* rows, int32_t type, int64_t count, int64_t full, int64_t tiles, uint64_t first,
                             unsigned long long* bad, uint32_t* largest) {
  grid_wait();
  const int64_t j = blockIdx.x % tiles * kColumns + threadIdx.x;
  if (j >= full) return;
  const int64_t begin = blockIdx.x / tiles * kInspected, end = min(begin + kInspected, count);
  uint32_t most = 0;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t bits = bits_as<uint32_t>(decode_element(type, rows, i * full + j)) & 0x7fffffffu;
    if (bits >= 0x7f800000u) {
      if (bad != nullptr) atomicMin(bad, static_cast<unsigned long long>(first + static_cast<uint64_t>(i)));
    } else if (bits > most) {
      most = bits;
    }
  }
  if (largest != nullptr && most > 0) atomicMax(&largest[j], most);
}

__global__ void raise_largest(uint32_t* to, const uint32_t* from, int64_t full) {
  grid_wait();
  const int64_t j = int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x;
  if (j < full && from[j] > to[j]) to[j] = from[j];
}

// One warp divides a row by its length.
__global__ void normalise_rows(const void* rows, int32_t type, int64_t count, int64_t full, float* to) {
  grid_wait();
  const int64_t i = (int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x) / 32;
  if (i >= count) return;
  const RowPart x = row_part(rows, type, full, i, 0);
  const double length = sqrt(warp_length_squared(full, [&](int64_t j) { return static_cast<double>(x[j]); }));
  for (int64_t j = threadIdx.x % 32; j < full; j += 32)
    to[i * full + j] = length > 0 ? static_cast<float>(static_cast<double>(x[j]) / length) : x[j];
}

__global__ void gather_ids(TrainingView t, int64_t first, int64_t count, uint32_t* to) {
  grid_wait();
  const int64_t all = count * t.p.spaces;
  for (int64_t i = int64_t{blockIdx.x} * kTrainingThreads + threadIdx.x; i < all; i += int64_t{gridDim.x} * kTrainingThreads)
    to[i] = t.a.ids[i % t.p.spaces * t.p.n + first + i / t.p.spaces];
}

}  // namespace

cudaError_t launch_inspect_rows(const void* rows, int32_t type, int64_t count, int64_t full, uint64_t first, unsigned long long* bad,
                                uint32_t* largest, const Stream& on) {
  if (count == 0) return cudaSuccess;
  const int64_t tiles = (full + kColumns - 1) / kColumns, strips = (count + kInspected - 1) / kInspected;
  return launch(on, training_grid(tiles * strips, 1), dim3(kColumns), 0, inspect_rows, rows, type, count, full, tiles, first, bad, largest);
}

cudaError_t launch_raise_largest(uint32_t* to, const uint32_t* from, int64_t full, const Stream& on) {
  return launch(on, training_grid(full, kTrainingThreads), dim3(kTrainingThreads), 0, raise_largest, to, from, full);
}

cudaError_t launch_normalise_rows(const void* rows, int32_t type, int64_t count, int64_t full, float* to, const Stream& on) {
  if (count == 0) return cudaSuccess;
  return launch(on, training_grid(count, kTrainingThreads / 32), dim3(kTrainingThreads), 0, normalise_rows, rows, type, count, full, to);
}

cudaError_t launch_gather_ids(const TrainingView& t, int64_t first, int64_t count, uint32_t* to, const Stream& on) {
  return launch(on, training_grid(count * t.p.spaces, kTrainingThreads, 4096), dim3(kTrainingThreads), 0, gather_ids, t, first, count, to);
}

}  // namespace mr::cuda
