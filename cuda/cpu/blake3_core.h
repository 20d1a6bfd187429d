// blake3_core: constants of BLAKE3 and the interface between the tree (blake3.cpp) and the kernels that hash several
// inputs at once, one a vector lane.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mr::blake3_core {

constexpr uint32_t kIv[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

enum : uint32_t { kChunkStart = 1, kChunkEnd = 2, kParent = 4, kRoot = 8 };

// Which message word each step of the seven rounds takes: the first row, permuted again and again.
constexpr uint8_t kSchedule[7][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1}, {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4}, {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13}};

// Equal inputs for all lanes but for where they lie: lane i hashes `blocks` 64-byte blocks from data + i * stride with
// the counter counter + i * counter_step. first and last are or-ed into the flags of the first and the last block.
struct Job {
  const uint8_t* data;
  size_t stride;
  int blocks;
  uint64_t counter;
  uint32_t counter_step;
  uint32_t flags, first, last;
};

// value[i] = chaining value of lane i; 8 and 16 lanes. Only where the processor has AVX2, and AVX-512 F.
void hash_lanes_avx2(const Job& job, uint32_t (*value)[8]);
void hash_lanes_avx512(const Job& job, uint32_t (*value)[8]);

}  // namespace mr::blake3_core
