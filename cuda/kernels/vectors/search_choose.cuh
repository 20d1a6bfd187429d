// search_choose: from the scores of tiles to the best and the second best of each row, and whether they say which codeword it is.
//
// A thread has two rows of its warp's tile, lane / 4 and 8 further on, and of each a quarter of the columns. What it compares are
// scores whose lowest bits hold where in the tile they are: a column (fine), or four columns of which the best counts.
#pragma once

#include "kernels/vectors/search_tile.cuh"

namespace mr::cuda {

struct Leader {
  float best = kNoScore, second = kNoScore;
  int32_t tile = 0;  // of the best
};

__device__ __forceinline__ float with_place(float score, uint32_t place, uint32_t mask) {
  return __uint_as_float((__float_as_uint(score) & mask) | place);
}

template <bool fine>
constexpr uint32_t kPlaceMask = fine ? 31u : 7u;

// Goes on with a tile's scores.
template <bool fine>
__device__ __forceinline__ void take_scores(const float (&sums)[kSearchSums], int32_t tile, Leader (&leaders)[2]) {
  const uint32_t mask = ~kPlaceMask<fine>;
  const float before[2] = {leaders[0].best, leaders[1].best};
#pragma unroll
  for (int32_t i = 0; i < (fine ? 32 : 8); ++i) {
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      float score;
      if constexpr (fine) {
        score = sums[i / 2 * 4 + h * 2 + i % 2];
      } else {
        const int32_t at = i * 8 + h * 2;
        score = fmaxf(fmaxf(sums[at], sums[at + 1]), fmaxf(sums[at + 4], sums[at + 5]));
      }
      const float v = with_place(score, static_cast<uint32_t>(i), mask);
      leaders[h].second = fmaxf(leaders[h].second, fminf(leaders[h].best, v));
      leaders[h].best = fmaxf(leaders[h].best, v);
    }
  }
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    if (leaders[h].best != before[h]) leaders[h].tile = tile;
  }
}

// The codeword of the best, or the first of its four: the others are 1, 8 and 9 further on.
template <bool fine>
__device__ __forceinline__ int32_t codeword_of(const Leader& leader, int32_t lane) {
  const int32_t i = static_cast<int32_t>(__float_as_uint(leader.best) & kPlaceMask<fine>);
  const int32_t column = (fine ? i / 2 * 8 + i % 2 : i * 16) + 2 * (lane % 4);
  return leader.tile * kSearchWide + column;
}

// Of a margin what the row does not change.
struct Reach {
  float radius, half_square, absolute;

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

// Whether the float32 sums of one lane's codeword beside those of the three others of its quad say which has the least Q. Gives
// the lane within the quad, or -1.
__device__ __forceinline__ int32_t decide_quad(const SearchParams& p, float value, float slack, int32_t lane) {
  // value: the squared distance, or with inner products what it is less than their largest; smaller is nearer.
  float best = value, second = __uint_as_float(0x7f800000u);
  int32_t who = lane % 4;
#pragma unroll
  for (int32_t across = 1; across < 4; across *= 2) {
    const float best2 = __shfl_xor_sync(0xffffffffu, best, across), second2 = __shfl_xor_sync(0xffffffffu, second, across);
    const int32_t who2 = __shfl_xor_sync(0xffffffffu, who, across);
    second = fminf(fminf(second, second2), fmaxf(best, best2));
    if (best2 < best || (best2 == best && who2 < who)) {
      best = best2;
      who = who2;
    }
  }
  // No number on either side decides nothing.
  const float limit = p.inner ? best + slack : best * (1 + 4 * p.narrow) + 0x1p-100f;
  return second > limit && best < __uint_as_float(0x7f800000u) ? who : -1;
}

// |x - c|^2, or -x.c, in float32, of two rows and a codeword each.
__device__ __forceinline__ void narrow_scores(const SearchParams& p, int64_t space, const int64_t (&numbers)[2], const int64_t (&ids)[2],
                                              float (&values)[2]) {
  const bool vector = p.width % 8 == 0;
  const int64_t rows[2] = {numbers[0] * p.row_stride + space * p.width, numbers[1] * p.row_stride + space * p.width};
  const float* const codewords[2] = {p.codewords + (space * p.codewords_each + ids[0]) * p.width,
                                     p.codewords + (space * p.codewords_each + ids[1]) * p.width};
  values[0] = values[1] = 0;
#pragma unroll 1
  for (int64_t j = 0; j < p.width; j += 8) {
    const int32_t columns = static_cast<int32_t>(p.width - j < 8 ? p.width - j : 8);
    Piece piece[2];
    float c[2][8];
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      piece[h] = load_piece(p.rows, p.row_type, rows[h] + j, columns, p.vector_rows != 0);
      load_floats(codewords[h] + j, columns, vector, c[h]);
    }
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      float x[8];
      piece_floats(piece[h], p.row_type, x);
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        if (p.inner) {
          values[h] = fmaf(-x[i], c[h][i], values[h]);
        } else {
          const float t = x[i] - c[h][i];
          values[h] = fmaf(t, t, values[h]);
        }
      }
    }
  }
}

// Ends a tile of rows: writes ids, and lists the rows that have more than one candidate. first: number of the warp's first row,
// many: of the rows there are, squares: of the thread's two rows. narrow(rows, codewords, values) gives float32 scores of two rows
// and a codeword each, all by their numbers.
template <bool fine, class Narrow>
__device__ __forceinline__ void choose(const SearchParams& p, const Reach& reach, int64_t space, int64_t first, int64_t many,
                                       const float (&squares)[2], Leader (&leaders)[2], const Narrow& narrow, int32_t lane) {
  int32_t id[2], who[2] = {0, 0};
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    Leader& l = leaders[h];
    id[h] = codeword_of<fine>(l, lane);
#pragma unroll
    for (int32_t across = 1; across < 4; across *= 2) {
      const float best2 = __shfl_xor_sync(0xffffffffu, l.best, across), second2 = __shfl_xor_sync(0xffffffffu, l.second, across);
      const int32_t id2 = __shfl_xor_sync(0xffffffffu, id[h], across);
      l.second = fmaxf(fmaxf(l.second, second2), fminf(l.best, best2));
      if (best2 > l.best || (best2 == l.best && id2 < id[h])) {
        l.best = best2;
        id[h] = id2;
      }
    }
  }
  if constexpr (!fine) {
    // Each lane of the quad has one of the four codewords.
    const int32_t mine = (lane & 1) + (lane & 2) * 4;
    int64_t rows[2], codewords[2];
    bool there[2];
    float values[2];
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      const int64_t row = first + lane / 4 + 8 * h;
      there[h] = id[h] + mine < p.codewords_each;
      rows[h] = row < many ? row : many - 1;
      codewords[h] = there[h] ? id[h] + mine : 0;
    }
    narrow(rows, codewords, values);
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      const float slack = 2.0625f * p.narrow * Reach::length(squares[h]) * reach.radius + 0x1p-100f;
      who[h] = decide_quad(p, there[h] ? values[h] : __uint_as_float(0x7f800000u), slack, lane);
    }
  }
  // All four lanes of a quad know both rows: the first two end one each.
  const bool second = lane % 2 != 0;
  const int64_t row = first + lane / 4 + (second ? 8 : 0);
  if (lane % 4 > 1 || row >= many) return;
  const float best = second ? leaders[1].best : leaders[0].best, next = second ? leaders[1].second : leaders[0].second;
  const float margin = reach.margin(p, Reach::length(second ? squares[1] : squares[0]));
  const int32_t chosen = second ? who[1] : who[0];
  int32_t found = second ? id[1] : id[0];
  if (chosen > 0) found += (chosen & 1) + (chosen & 2) * 4;
  const bool sure = p.codewords_each == 1 || (best - next > margin && chosen >= 0);
  p.ids[space * p.stride + row] = found < p.codewords_each && p.codewords_each > 1 ? static_cast<uint32_t>(found) : 0u;
  if (sure) return;
  const uint32_t at = atomicAdd(p.listed + space, 1u);
  float limit = best - margin;
  limit = limit - fabsf(limit) * 0x1p-20f - 0x1p-140f;
  p.list[space * p.most_rows + at] = static_cast<uint32_t>(row);
  p.limits[space * p.most_rows + at] = limit == limit ? limit : -__uint_as_float(0x7f800000u);
}

}  // namespace mr::cuda
