// search_choose: from the scores of tiles to the best and the second best of each row, and whether they determine the
// codeword.
//
// A thread has two rows of its warp's tile, lane / 4 and 8 further, and of each a quarter of the columns. It compares
// groups of `kEach` columns, 4 or 8, by the best of each. The scores of a row's best group stay in shared memory until
// the last tile, because registers cannot be indexed by a variable.
#pragma once

#include "kernels/vectors/search_tile.cuh"

namespace mr::cuda {

struct Leader {
  float best = kNoScore, second = kNoScore;
  int32_t group = 0;  // index of the best group, counted from the first tile's
};

// KeptScores is where a warp keeps the scores of each lane's best group of each of its two rows: pair by pair, with the
// pairs of all lanes side by side. For each row and half of a group the lanes of a row are permuted differently, so
// that threads that read four scores of one lane at once read from different banks.
template <int32_t kEach>
struct KeptScores {
  static constexpr uint32_t kHalf = kEach / 4, kPair = 32 * 8;  // pairs of a half, bytes of a pair
  uint32_t warp;
  __device__ __forceinline__ KeptScores(const SearchShared& s, int32_t number)
      : warp(s.kept + static_cast<uint32_t>(number) * 4 * kHalf * kPair) {}
  // Returns the address of the first pair of a half of the scores of a lane's row `which`.
  __device__ __forceinline__ uint32_t at(int32_t which, int32_t half, int32_t lane) const {
    const int32_t part = which * 2 + half;
    return warp + static_cast<uint32_t>(part) * kHalf * kPair + static_cast<uint32_t>((lane ^ part) * 8);
  }
};

// Updates the best with a tile's scores.
template <int32_t kEach>
__device__ __forceinline__ void take_scores(const float (&sums)[kSearchSums], int32_t tile, Leader (&leaders)[2],
                                            const KeptScores<kEach>& kept, int32_t lane) {
  constexpr int32_t kGroups = kSearchSums / 2 / kEach;  // of a tile, of a thread's row
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    const auto score = [&](int32_t g, int32_t i) { return sums[(g * kEach / 2 + i / 2) * 4 + h * 2 + i % 2]; };
    float most[kGroups], top[kGroups / 2], under[kGroups / 2];
#pragma unroll
    for (int32_t g = 0; g < kGroups; ++g) {
      float half[kEach / 2];
#pragma unroll
      for (int32_t i = 0; i < kEach / 2; ++i) half[i] = fmaxf(score(g, 2 * i), score(g, 2 * i + 1));
      most[g] = fmaxf(half[0], half[1]);
      if constexpr (kEach == 8) most[g] = fmaxf(most[g], fmaxf(half[2], half[3]));
    }
    // The largest and the second largest of them, pairs first.
#pragma unroll
    for (int32_t i = 0; i < kGroups / 2; ++i) {
      top[i] = fmaxf(most[2 * i], most[2 * i + 1]);
      under[i] = fminf(most[2 * i], most[2 * i + 1]);
    }
#pragma unroll
    for (int32_t n = kGroups / 4; n > 0; n /= 2) {
#pragma unroll
      for (int32_t i = 0; i < n; ++i) {
        under[i] = fmaxf(fminf(top[2 * i], top[2 * i + 1]), fmaxf(under[2 * i], under[2 * i + 1]));
        top[i] = fmaxf(top[2 * i], top[2 * i + 1]);
      }
    }
    Leader& leader = leaders[h];
    const bool leads = top[0] > leader.best;
    leader.second = fmaxf(fmaxf(leader.second, under[0]), fminf(leader.best, top[0]));
    if (!leads) continue;
    leader.best = top[0];
    const uint32_t halves[2] = {kept.at(h, 0, lane), kept.at(h, 1, lane)};
#pragma unroll
    for (int32_t g = 0; g < kGroups; ++g) {  // if two are equal either will do: the row is listed
      if (most[g] != top[0]) continue;
      leader.group = tile * kGroups + g;
#pragma unroll
      for (int32_t i = 0; i < kEach / 2; ++i)
        store_pair(halves[i / kept.kHalf] + static_cast<uint32_t>(i) % kept.kHalf * kept.kPair, score(g, 2 * i), score(g, 2 * i + 1));
    }
  }
}

// Reach is how far below a row's best score a candidate may lie: a square polynomial of |x|. The slack of each sum
// covers the rounding of these float32.
struct Reach {
  float square, linear, constant;
  float longest;  // rows at least this long might overflow a score

  Reach() = default;
  __device__ __forceinline__ Reach(const SearchParams& p, int64_t space) {
    const float radius = p.radius[space];
    // What the tensor cores or sums lose below the normal numbers: each product, each sum, and subnormal terms times a
    // whole row or codeword.
    const float absolute = (static_cast<float>(p.width) * 8 + 256) * 0x1p-126f;
    const float slack = 1 + 0x1p-10f, relative = p.form.relative;
    // Twice the error e of a score, and the range of Q of candidates: curve (|x| + R)^2, for inner products curve |x|
    // R.
    square = p.inner ? 0.0f : p.curve * slack;
    linear = ((p.inner ? 1.0f : 2.0f) * p.curve * radius + 2 * (relative * radius + absolute)) * slack;
    const float squares = p.inner ? 0.0f : p.curve * radius * radius + relative * radius * radius;
    constant = (squares + 2 * absolute * (1 + radius)) * slack + 0x1p-125f;
    longest = kMostReach - radius;
  }
  // Returns at least |x|.
  __device__ __forceinline__ static float length(float square) { return near_root(square + 0x1p-126f) * (1 + 0x1p-10f); }
  __device__ __forceinline__ float margin(float length) const {
    return length < longest ? (square * length + linear) * length + constant : __uint_as_float(0x7f800000u);
  }
};

// Found is the result of a row so far: its best score, the second, and the codeword of the best, or the first one of
// its group. If two are equal either will do, because the row is listed.
struct Found {
  float best, second;
  int32_t codeword;

  __device__ __forceinline__ void join(const Found& other) {
    second = fmaxf(fmaxf(second, other.second), fminf(best, other.best));
    if (other.best > best) codeword = other.codeword;
    best = fmaxf(best, other.best);
  }
  __device__ __forceinline__ void join(float score, int32_t of) {
    second = fmaxf(second, fminf(best, score));
    if (score > best) codeword = of;
    best = fmaxf(best, score);
  }
  // Merges what lane `across` has.
  __device__ __forceinline__ void join_lane(const Found& given, int32_t across) {
    join({__shfl_xor_sync(0xffffffffu, given.best, across), __shfl_xor_sync(0xffffffffu, given.second, across),
          __shfl_xor_sync(0xffffffffu, given.codeword, across)});
  }
};

// Writes the id of a row of |x|^2 = square, and lists the row if it has more than one candidate.
__device__ __forceinline__ void write_found(const SearchParams& p, const Reach& reach, int64_t space, int64_t row, const Found& found,
                                            float square) {
  const float margin = reach.margin(Reach::length(square));
  const int32_t each = static_cast<int32_t>(p.codewords_each);
  p.ids[space * p.stride + row] = found.codeword < each ? static_cast<uint32_t>(found.codeword) : 0u;
  if (each == 1 || found.best - found.second > margin) return;
  const uint32_t place = atomicAdd(p.listed + space, 1u);
  float limit = found.best - margin;
  limit = limit - fabsf(limit) * 0x1p-20f - 0x1p-140f;
  p.list[space * p.most_rows + place] = static_cast<uint32_t>(row);
  p.limits[space * p.most_rows + place] = limit == limit ? limit : -__uint_as_float(0x7f800000u);
}

// Ends a tile of rows: writes ids, and lists the rows that have more than one candidate. first: number of the warp's
// first row; many: rows that exist; squares: of the thread's two rows. Afterwards the kept scores may be overwritten.
template <int32_t kEach>
__device__ __forceinline__ void choose(const SearchParams& p, const Reach& reach, int64_t space, int64_t first, int64_t many,
                                       const float (&squares)[2], const Leader (&leaders)[2], const KeptScores<kEach>& kept, int32_t lane) {
  // Even lanes continue with the first row and odd lanes with the second: each receives its neighbour's part of that
  // row.
  const int32_t which = lane % 2, half = lane / 2 % 2;
  const Leader own = which != 0 ? leaders[1] : leaders[0], other = which != 0 ? leaders[0] : leaders[1];
  const auto found_by = [&](const Leader& l) { return Found{l.best, l.second, l.group * 4 * kEach + 2 * (lane % 4)}; };
  Found found = found_by(own);
  found.join_lane(found_by(other), 1);
  found.join_lane(found, 2);
  __syncwarp();  // other lanes' scores are visible
  // Two lanes have half of the group's scores each: codewords 0, 1, 8, 9, ... from its first one on.
  const uint32_t at = kept.at(which, half, lane / 4 * 4 + (found.codeword >> 1 & 3));
  const int32_t begin = found.codeword + half * 2 * kEach;
  float scores[kEach / 2];
#pragma unroll
  for (int32_t i = 0; i < kEach / 4; ++i) load_pair(at + static_cast<uint32_t>(i) * kept.kPair, scores[2 * i], scores[2 * i + 1]);
  found.best = scores[0];
  found.codeword = begin;
#pragma unroll
  for (int32_t i = 1; i < kEach / 2; ++i) found.join(scores[i], begin + i / 2 * 8 + i % 2);
  found.join_lane(found, 2);
  const int64_t row = first + lane / 4 + 8 * which;
  if (half == 0 && row < many) write_found(p, reach, space, row, found, which != 0 ? squares[1] : squares[0]);
  __syncwarp();
}

}  // namespace mr::cuda
