// search_choose: from the scores of tiles to the best and the second best of each row, and whether they say which codeword it is.
//
// A thread has two rows of its warp's tile, lane / 4 and 8 further on, and of each a quarter of the columns. It compares groups of
// four columns by the best of each, whose lowest bits hold the group's number within the tile. The four scores of a row's best group
// are kept in shared memory, where they are until the last tile has been taken: registers cannot be chosen among by a number.
#pragma once

#include "kernels/vectors/search_tile.cuh"

namespace mr::cuda {

constexpr int32_t kGroups = kSearchSums / 8;  // of a tile, of a thread's row
constexpr uint32_t kPlaces = kGroups - 1;     // the bits that a group's number takes

struct Leader {
  float best = kNoScore, second = kNoScore;
  int32_t tile = 0;  // of the best
};

// Where a warp keeps scores: 16 rows of four lanes of four scores.
struct KeptScores {
  uint32_t warp;
  __device__ __forceinline__ KeptScores(const SearchShared& s, int32_t number) : warp(s.kept + static_cast<uint32_t>(number * (16 * 4 * 16))) {}
  __device__ __forceinline__ uint32_t at(int32_t row, int32_t quarter) const {
    return warp + static_cast<uint32_t>((row * 4 + quarter) * 16);
  }
};

// Goes on with a tile's scores.
__device__ __forceinline__ void take_scores(const float (&sums)[kSearchSums], int32_t tile, Leader (&leaders)[2], const KeptScores& kept,
                                            int32_t lane) {
  const float before[2] = {leaders[0].best, leaders[1].best};
#pragma unroll
  for (int32_t g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      const int32_t at = g * 8 + h * 2;
      const float score = fmaxf(fmaxf(sums[at], sums[at + 1]), fmaxf(sums[at + 4], sums[at + 5]));
      const float placed = __uint_as_float((__float_as_uint(score) & ~kPlaces) | static_cast<uint32_t>(g));
      leaders[h].second = fmaxf(leaders[h].second, fminf(leaders[h].best, placed));
      leaders[h].best = fmaxf(leaders[h].best, placed);
    }
  }
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    if (leaders[h].best == before[h]) continue;
    leaders[h].tile = tile;
    const uint32_t place = __float_as_uint(leaders[h].best) & kPlaces, slot = kept.at(lane / 4 + 8 * h, lane % 4);
#pragma unroll
    for (int32_t g = 0; g < kGroups; ++g) {
      const int32_t at = g * 8 + h * 2;
      if (place != static_cast<uint32_t>(g)) continue;
      store_shared8(slot, make_uint2(__float_as_uint(sums[at]), __float_as_uint(sums[at + 1])));
      store_shared8(slot + 8, make_uint2(__float_as_uint(sums[at + 4]), __float_as_uint(sums[at + 5])));
    }
  }
}

// The first codeword of the best group: the others are 1, 8 and 9 further on.
__device__ __forceinline__ int32_t group_of(const Leader& leader, int32_t lane) {
  return leader.tile * kSearchWide + static_cast<int32_t>(__float_as_uint(leader.best) & kPlaces) * 16 + 2 * (lane % 4);
}

// Of a margin what the row does not change.
struct Reach {
  float radius, half_square, absolute;

  Reach() = default;
  __device__ __forceinline__ Reach(const SearchParams& p, int64_t space) {
    radius = p.radius[space];
    half_square = p.inner ? 0.0f : 0.5f * radius * radius;
    // Where units or sums lose what is below the normal numbers: each product, each sum, and with subnormal terms their product
    // with a whole row or codeword.
    absolute = (static_cast<float>(p.width) * 8 + 256) * 0x1p-126f;
  }
  // At least |x|.
  __device__ __forceinline__ static float length(float square) { return sqrtf(square + 0x1p-126f) * (1 + 0x1p-10f); }
  // How far below the best score a candidate may lie; infinite where a score might overflow.
  __device__ __forceinline__ float margin(const SearchParams& p, float length) const {
    const float reach = length + radius;
    if (!(reach < kMostReach)) return __uint_as_float(0x7f800000u);
    const float e = p.form.relative * (length * radius + half_square) + absolute * (1 + reach);
    const float exact = p.inner ? p.curve * length * radius : p.curve * reach * reach;
    return (2 * e + exact) * (1 + 0x1p-10f) + 0x1p-126f;
  }
};

// Ends a tile of rows: writes ids, and lists the rows that have more than one candidate. first: number of the warp's first row,
// many: of the rows there are, squares: of the thread's two rows. Behind it other scores may be kept.
__device__ __forceinline__ void choose(const SearchParams& p, const Reach& reach, int64_t space, int64_t first, int64_t many,
                                       const float (&squares)[2], const Leader (&leaders)[2], const KeptScores& kept,
                                       int32_t lane) {
  // Lanes of even numbers go on with the first row and the others with the second: each gets a neighbour's part of its row.
  const int32_t which = lane % 2;
  const Leader own = which != 0 ? leaders[1] : leaders[0], other = which != 0 ? leaders[0] : leaders[1];
  float best = own.best, second = own.second;
  int32_t group = group_of(own, lane);
  const auto join = [&](float best2, float second2, int32_t group2) {
    second = fmaxf(fmaxf(second, second2), fminf(best, best2));
    if (best2 > best || (best2 == best && group2 < group)) {
      best = best2;
      group = group2;
    }
  };
  join(__shfl_xor_sync(0xffffffffu, other.best, 1), __shfl_xor_sync(0xffffffffu, other.second, 1),
       __shfl_xor_sync(0xffffffffu, group_of(other, lane), 1));
  join(__shfl_xor_sync(0xffffffffu, best, 2), __shfl_xor_sync(0xffffffffu, second, 2), __shfl_xor_sync(0xffffffffu, group, 2));
  __syncwarp();  // what other lanes kept is there
  const int64_t row = first + lane / 4 + 8 * which;
  if (lane % 4 < 2 && row < many) {
    const uint4 bits = load_shared16(kept.at(lane / 4 + 8 * which, group / 2 % 4));
    const float scores[4] = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z), __uint_as_float(bits.w)};
    int32_t found = group;
    best = scores[0];
#pragma unroll
    for (int32_t i = 1; i < 4; ++i) {
      second = fmaxf(second, fminf(best, scores[i]));
      if (scores[i] > best) {
        best = scores[i];
        found = group + i % 2 + i / 2 * 8;
      }
    }
    const float margin = reach.margin(p, Reach::length(which != 0 ? squares[1] : squares[0]));
    p.ids[space * p.stride + row] = found < p.codewords_each ? static_cast<uint32_t>(found) : 0u;
    if (p.codewords_each > 1 && !(best - second > margin)) {
      const uint32_t at = atomicAdd(p.listed + space, 1u);
      float limit = best - margin;
      limit = limit - fabsf(limit) * 0x1p-20f - 0x1p-140f;
      p.list[space * p.most_rows + at] = static_cast<uint32_t>(row);
      p.limits[space * p.most_rows + at] = limit == limit ? limit : -__uint_as_float(0x7f800000u);
    }
  }
  __syncwarp();
}

}  // namespace mr::cuda
