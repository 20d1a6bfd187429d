// sort: stable radix sorts of rows by a key, in memory that the caller passes.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

// Returns the bits that hold the values 0 .. most, at least 1.
int bits_of(uint64_t most);

// Returns the scratch bytes of a sort of up to `count` rows by keys of 32 bits, and of one by keys of 64 or 32 bits in
// two pairs of arrays. They depend on the current device.
cudaError_t sort_bytes(int64_t count, uint64_t* bytes);
cudaError_t sort_pair_bytes(int64_t count, uint64_t* bytes);

// order[i] = i, count < 2^32.
cudaError_t launch_count_up(uint32_t* order, int64_t count, const Stream& on);

// Sorts rows 0 .. count - 1 by their keys, of which the low `bits` matter, into sorted_keys and order. `identity` must
// count up; count must be below 2^31.
cudaError_t launch_sort(void* scratch, uint64_t bytes, const uint32_t* keys, uint32_t* sorted_keys, const uint32_t* identity,
                        uint32_t* order, int64_t count, int bits, const Stream& on);

// SortPair is two arrays of keys and two of rows; `current` says which of each hold the result.
template <class Key>
struct SortPair {
  Key* keys[2];
  uint32_t* order[2];
  int keys_current = 0, order_current = 0;
  Key* sorted_keys() const { return keys[keys_current]; }
  uint32_t* sorted_order() const { return order[order_current]; }
};
cudaError_t launch_sort_pair(void* scratch, uint64_t bytes, SortPair<uint64_t>* pair, int64_t count, const Stream& on);
cudaError_t launch_sort_pair(void* scratch, uint64_t bytes, SortPair<uint32_t>* pair, int64_t count, int bits, const Stream& on);

// keys[i] = a key in the order of v[i], or in the reverse order if `descending`.
cudaError_t launch_distance_keys(const double* v, uint64_t* keys, int64_t count, bool descending, const Stream& on);

}  // namespace mr::cuda
