#include "kernels/vectors/sort.h"

#include <algorithm>

#include <cub/device/device_radix_sort.cuh>

#include "cpu/vector_rules.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostGrid = 4096;

dim3 grid_of(int64_t count) { return dim3(static_cast<unsigned>(std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, kMostGrid))); }

__global__ void count_up(uint32_t* order, int64_t count) {
  grid_wait();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads)
    order[i] = static_cast<uint32_t>(i);
}

__global__ void distance_keys(const double* v, uint64_t* keys, int64_t count, bool descending) {
  grid_wait();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    const uint64_t key = order_of(v[i]);
    keys[i] = descending ? ~key : key;
  }
}

}  // namespace

// All counts are int64_t: cub has other kernels for counts of 32 bits.

int bits_of(uint64_t most) { return most == 0 ? 1 : 64 - leading_zeros(most); }

cudaError_t sort_bytes(int64_t count, uint64_t* bytes) {
  size_t need = 0;
  const cudaError_t error = cub::DeviceRadixSort::SortPairs(
      nullptr, need, static_cast<const uint32_t*>(nullptr), static_cast<uint32_t*>(nullptr), static_cast<const uint32_t*>(nullptr),
      static_cast<uint32_t*>(nullptr), count, 0, 32);
  *bytes = need;
  return error;
}

cudaError_t sort_pair_bytes(int64_t count, uint64_t* bytes) {
  cub::DoubleBuffer<uint64_t> wide(nullptr, nullptr);
  cub::DoubleBuffer<uint32_t> narrow(nullptr, nullptr), order(nullptr, nullptr);
  size_t of_wide = 0, of_narrow = 0;
  cudaError_t error = cub::DeviceRadixSort::SortPairs(nullptr, of_wide, wide, order, count, 0, 64);
  if (error == cudaSuccess) error = cub::DeviceRadixSort::SortPairs(nullptr, of_narrow, narrow, order, count, 0, 32);
  *bytes = std::max(of_wide, of_narrow);
  return error;
}

cudaError_t launch_count_up(uint32_t* order, int64_t count, const Stream& on) {
  return launch(on, grid_of(count), dim3(kThreads), 0, count_up, order, count);
}

cudaError_t launch_distance_keys(const double* v, uint64_t* keys, int64_t count, bool descending, const Stream& on) {
  return launch(on, grid_of(count), dim3(kThreads), 0, distance_keys, v, keys, count, descending);
}

cudaError_t launch_sort(void* scratch, uint64_t bytes, const uint32_t* keys, uint32_t* sorted_keys, const uint32_t* identity,
                        uint32_t* order, int64_t count, int bits, const Stream& on) {
  size_t size = bytes;
  return cub::DeviceRadixSort::SortPairs(scratch, size, keys, sorted_keys, identity, order, count, 0, bits, on.stream);
}

cudaError_t launch_sort_pair(void* scratch, uint64_t bytes, SortPair<uint64_t>* pair, int64_t count, const Stream& on) {
  size_t size = bytes;
  cub::DoubleBuffer<uint64_t> keys(pair->sorted_keys(), pair->keys[1 - pair->keys_current]);
  cub::DoubleBuffer<uint32_t> order(pair->sorted_order(), pair->order[1 - pair->order_current]);
  const cudaError_t error = cub::DeviceRadixSort::SortPairs(scratch, size, keys, order, count, 0, 64, on.stream);
  pair->keys_current ^= keys.selector;
  pair->order_current ^= order.selector;
  return error;
}

cudaError_t launch_sort_pair(void* scratch, uint64_t bytes, SortPair<uint32_t>* pair, int64_t count, int bits, const Stream& on) {
  size_t size = bytes;
  cub::DoubleBuffer<uint32_t> keys(pair->sorted_keys(), pair->keys[1 - pair->keys_current]);
  cub::DoubleBuffer<uint32_t> order(pair->sorted_order(), pair->order[1 - pair->order_current]);
  const cudaError_t error = cub::DeviceRadixSort::SortPairs(scratch, size, keys, order, count, 0, bits, on.stream);
  pair->keys_current ^= keys.selector;
  pair->order_current ^= order.selector;
  return error;
}

}  // namespace mr::cuda
