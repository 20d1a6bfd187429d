// search_settle: rows with more than one candidate. A second pass over their scores finds the groups of four codewords
// with a score at or above the row's limit, and Q in binary64 decides between them.
#pragma once

#include "kernels/vectors/search_choose.cuh"
#include "kernels/vectors/search_exact.cuh"

namespace mr::cuda {

// SearchLists are the lists of a tile of rows, in shared memory.
struct SearchLists {
  uint32_t* groups;  // (kSearchTile, kListed): the first codeword of each
  uint32_t* counts;  // (kSearchTile): groups found, possibly more than fit
  uint32_t* rows;    // (kSearchTile): numbers
  float* limits;     // (kSearchTile)

  __device__ __forceinline__ explicit SearchLists(uint8_t* memory) {
    groups = reinterpret_cast<uint32_t*>(memory);
    counts = groups + kSearchTile * kListed;
    rows = counts + kSearchTile;
    limits = reinterpret_cast<float*>(rows + kSearchTile);
  }
};

// Lists groups with a score at or above the limit, or NaN; place: the thread's first row within the tile.
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

// Settles the rows of this warp, four codewords at a time: eight lanes for one. Row i of the tile is stored at
// place_of(i), so that all `warps` have equally many. If the codewords are searched in segments, the warp that settles
// the last one takes the least of all.
__device__ __forceinline__ int32_t place_of(int32_t i, int32_t warps) { return i % warps * 16 + i / warps; }
__device__ __forceinline__ int32_t row_at(int32_t place, int32_t warps) { return place % 16 * warps + place / 16; }

__device__ __forceinline__ void settle_rows(const SearchParams& p, const WorkOfListed& work, const SearchLists& lists, int32_t warp,
                                            int32_t lane) {
  const int32_t which = lane / 8, many = static_cast<int32_t>(work.rows()), warps = p.form.groups * 4;
  const int64_t first = work.begin * kSearchWide, behind = work.end * kSearchWide;
  const int64_t end = behind < p.codewords_each ? behind : p.codewords_each;
#pragma unroll 1
  for (int32_t i = warp; i < many; i += warps) {
    const int32_t r = place_of(i, warps);
    const uint32_t row = lists.rows[r], found = lists.counts[r];
    const bool all = found > kListed;
    const int64_t rounds = all ? (end - first + 3) / 4 : found, offset = row * p.row_stride + work.space * p.width;
    double least = __longlong_as_double(0x7ff0000000000000ll);
    uint32_t id = 0;
#pragma unroll 1
    for (int64_t round = 0; round < rounds; ++round) {
      const int64_t c = all ? first + 4 * round + which : lists.groups[r * kListed + round] + (which & 1) + (which & 2) * 4;
      const bool there = c < end;
      const float* const codeword = p.codewords + (work.space * p.codewords_each + (there ? c : 0)) * p.width;
      const double q = octet_distance([&](int64_t j, float(&x)[8]) { load_eight(p.rows, p.row_type, offset, j, p.width, x); },
                                      codeword, p.width, p.inner != 0);
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
    if (lane != 0) continue;
    if (work.segments == 1) {
      p.ids[work.space * p.stride + row] = id;
    } else {
      const int64_t at = (work.first_unit() + work.segment) * kSearchTile + r;
      p.least[at] = least;
      p.least_ids[at] = id;
    }
  }
  if (work.segments == 1 || warp >= many) return;
  uint32_t* const arrived = p.arrived + work.first_unit() * kSearchWarps + warp;
  __threadfence();
  __syncwarp();
  uint32_t before = 0;
  if (lane == 0) before = atomicAdd(arrived, 1u);
  if (__shfl_sync(0xffffffffu, before, 0) + 1 < static_cast<uint32_t>(work.segments)) return;
  __threadfence();
  if (lane == 0) *arrived = 0;
  const int32_t i = warp + lane * warps;
  if (i >= many) return;
  const volatile double* const found = p.least + work.first_unit() * kSearchTile + place_of(i, warps);
  const volatile uint32_t* const ids = p.least_ids + work.first_unit() * kSearchTile + place_of(i, warps);
  double least = found[0];
  uint32_t id = ids[0];
  for (int64_t s = 1; s < work.segments; ++s) {  // ids ascend from segment to segment, so of equal ones the first stays
    const double q = found[s * kSearchTile];
    if (q < least) {
      least = q;
      id = ids[s * kSearchTile];
    }
  }
  p.ids[work.space * p.stride + lists.rows[place_of(i, warps)]] = id;
}

}  // namespace mr::cuda
