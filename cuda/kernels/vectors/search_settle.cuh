// search_settle: rows with more than one candidate. A second pass over their scores finds the groups of four codewords with one at
// or above the row's limit, and Q in binary64 decides between them.
#pragma once

#include "kernels/vectors/search_choose.cuh"
#include "kernels/vectors/search_exact.cuh"

namespace mr::cuda {

// Of a tile of rows, in shared memory.
struct SearchLists {
  uint32_t* groups;  // (kSearchTile, kListed): the first codeword of each
  uint32_t* counts;  // (kSearchTile): groups found, which may be more
  uint32_t* rows;    // (kSearchTile): numbers
  float* limits;     // (kSearchTile)

  __device__ __forceinline__ explicit SearchLists(uint8_t* memory) {
    groups = reinterpret_cast<uint32_t*>(memory);
    counts = groups + kSearchTile * kListed;
    rows = counts + kSearchTile;
    limits = reinterpret_cast<float*>(rows + kSearchTile);
  }
};

// Lists what is at or above the limits, and what is no number; place: the thread's first row within the tile.
__device__ __forceinline__ void list_scores(const float (&sums)[kSearchSums], int32_t tile, const SearchLists& lists, int32_t place,
                                            int32_t lane) {
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    const int32_t r = place + 8 * h;
    const float limit = lists.limits[r];
#pragma unroll
    for (int32_t g = 0; g < 8; ++g) {
      const int32_t at = g * 8 + h * 2;
      if (sums[at] < limit && sums[at + 1] < limit && sums[at + 4] < limit && sums[at + 5] < limit) continue;
      const uint32_t slot = atomicAdd(lists.counts + r, 1u);
      if (slot < kListed) lists.groups[r * kListed + slot] = static_cast<uint32_t>(tile * kSearchWide + g * 16 + 2 * (lane % 4));
    }
  }
}

// Decides the 16 rows of this warp, four codewords at a time: eight lanes have one.
__device__ __forceinline__ void settle_rows(const SearchParams& p, int64_t space, const SearchLists& lists, int32_t begin, int32_t many,
                                            int32_t lane) {
  const int32_t which = lane / 8;
#pragma unroll 1
  for (int32_t r = begin; r < begin + 16 && r < many; ++r) {
    const uint32_t row = lists.rows[r], found = lists.counts[r];
    const bool all = found > kListed;
    const int64_t rounds = all ? (p.codewords_each + 3) / 4 : found, offset = row * p.row_stride + space * p.width;
    double least = __longlong_as_double(0x7ff0000000000000ll);
    uint32_t id = 0;
#pragma unroll 1
    for (int64_t i = 0; i < rounds; ++i) {
      const int64_t c = all ? 4 * i + which : lists.groups[r * kListed + i] + (which & 1) + (which & 2) * 4;
      const bool there = c < p.codewords_each;
      const float* const codeword = p.codewords + (space * p.codewords_each + (there ? c : 0)) * p.width;
      const double q = octet_distance([&](int64_t j) { return load_element(p.rows, p.row_type, offset + j); }, codeword, p.width,
                                      p.inner != 0);
      if (there && (q < least || (q == least && static_cast<uint32_t>(c) < id))) {
        least = q;
        id = static_cast<uint32_t>(c);
      }
    }
#pragma unroll
    for (int32_t across = 8; across < 32; across *= 2) {
      const double least2 = __shfl_xor_sync(0xffffffffu, least, across);
      const uint32_t id2 = __shfl_xor_sync(0xffffffffu, id, across);
      if (least2 < least || (least2 == least && id2 < id)) {
        least = least2;
        id = id2;
      }
    }
    if (lane == 0) p.ids[space * p.stride + row] = id;
  }
}

}  // namespace mr::cuda
