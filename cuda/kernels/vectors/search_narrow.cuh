// search_narrow: the fast pass over f16 rows of 8 or 16 columns and few codewords, as product codebooks have them.
//
// A product is done after one or two steps, so that comparing is all that a score costs. A warp has 16 rows and multiplies them by mma
// with 32 codewords at a time: 16 sums are in its registers at once and not 64, which leaves room for 32 warps a multiprocessor. Only
// the best of each group of eight codewords is compared; which of the best group it is, is found by computing these eight again.
#pragma once

#include "kernels/vectors/search_choose.cuh"
#include "kernels/vectors/search_element.cuh"
#include "kernels/vectors/search_mma.cuh"
#include "kernels/vectors/search_pass.h"

namespace mr::cuda {

// A subspace's codewords in shared memory: tiles of a block of what is added to scores and a block of columns, and behind them the
// former as floats.
struct NarrowCodewords {
  static constexpr uint32_t kTile = 2 * kCodewordBlock;
  uint32_t tiles, added;

  __device__ __forceinline__ NarrowCodewords(const uint8_t* memory, int64_t many)
      : tiles((shared_address(memory) + 127) & ~127u), added(tiles + static_cast<uint32_t>(many) * kTile) {}

  // By all threads of the block.
  __device__ __forceinline__ void load(const SearchParams& p, int32_t space) const {
    __syncthreads();
    const uint4* const from = reinterpret_cast<const uint4*>(image_of(p, space, 0));
    const uint32_t thread = threadIdx.x, bytes = static_cast<uint32_t>(p.tiles) * kTile;
    for (uint32_t i = thread; i < bytes / 16; i += kNarrowThreads) store_shared16(tiles + i * 16, from[i]);
    __syncthreads();
    for (uint32_t c = thread; c < static_cast<uint32_t>(p.tiles) * kSearchWide; c += kNarrowThreads) {
      const uint4 terms = load_shared16(tiles + c / kSearchWide * kTile + piece_offset(static_cast<int32_t>(c % kSearchWide), 0));
      const float sum = bf16_float(terms.x & 0xffffu) + bf16_float(terms.x >> 16) + bf16_float(terms.y & 0xffffu);
      store_shared4(added + c * 4, __float_as_uint(sum));
    }
    __syncthreads();
  }
};

// Eight f16 of a piece as floats.
__device__ __forceinline__ void half_floats(const uint4& piece, float (&v)[8]) {
  const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) v[i] = f16_float(static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16)));
}

// The bits of a float, by which floats from 0 on are ordered as integers are: three of these are compared by one instruction.
__device__ __forceinline__ int32_t ordered(float v) { return __float_as_int(v); }
__device__ __forceinline__ float ordered_float(int32_t v) { return __uint_as_float(static_cast<uint32_t>(v)); }

// Half of the largest |c|^2: then what is added for a codeword's length lowers no score below 0. Scores below kLeastOrdered are
// compared as floats.
__device__ __forceinline__ float raised_by(float radius) { return radius < kMostReach ? 0.5f * radius * radius : 0.0f; }
constexpr float kLeastOrdered = 0x1p-100f;

constexpr int32_t kNarrowGroups = static_cast<int32_t>(kNarrowTiles) * kSearchWide / 32;
constexpr int32_t kNarrowPlaces = kNarrowGroups - 1;  // the lowest bits of a score, which hold its group's number
constexpr float kPackError = 0x1p-19f;         // what they were, of a score
static_assert((kNarrowGroups & kNarrowPlaces) == 0, "whole bits");

template <int32_t kPieces>
struct NarrowPass {
  const SearchParams& p;
  const NarrowCodewords& s;
  int32_t lane;
  float raised;  // what is added to every score, so that few rows have none above 0

  // The best and the second best of the groups of this lane's two rows and its quarter of the columns. Where `floats` is false, what
  // is not above 0 counts as 0, with a group's number in its lowest bits as all have.
  template <bool floats>
  __device__ __forceinline__ void compare(const uint32_t (&rows)[kPieces][2], float (&best)[2], float (&second)[2]) const {
    const uint32_t one = lane % 4 == 0 ? 0x3f803f80u : lane % 4 == 1 ? 0x00003f80u : 0u, ones[2] = {one, one};  // in three columns
    const uint32_t begin = s.tiles + piece_offset(lane, 0), end = begin + static_cast<uint32_t>(p.tiles) * s.kTile;
    int32_t most[2] = {}, next[2] = {};
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) best[h] = second[h] = floats ? kNoScore : 0;
    int32_t group = 0;
#pragma unroll 1
    for (uint32_t tile = begin; tile < end; tile += s.kTile) {
#pragma unroll
      for (int32_t g = 0; g < kSearchWide / 32; ++g, ++group) {
        uint32_t added[4], columns[kPieces][4];
        load_matrices(added, tile + static_cast<uint32_t>(g * 32 * 32));
#pragma unroll
        for (int32_t i = 0; i < kPieces; ++i)
          load_matrices(columns[i], (tile + kCodewordBlock + static_cast<uint32_t>(g * 32 * 32)) ^ static_cast<uint32_t>(i * 16));
        float sums[4][4];
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) {
          mma1688<__nv_bfloat16>(sums[j], ones, added[j], raised);
#pragma unroll
          for (int32_t i = 0; i < kPieces; ++i) mma1688<__half>(sums[j], rows[i], columns[i][j]);
        }
#pragma unroll
        for (int32_t h = 0; h < 2; ++h) {
          const auto score = [&](int32_t i) { return sums[i / 2][2 * h + i % 2]; };
          if constexpr (floats) {
            float top = score(0);
#pragma unroll
            for (int32_t i = 1; i < 8; ++i) top = fmaxf(top, score(i));
            const float placed = ordered_float((ordered(top) & ~kNarrowPlaces) | group);
            second[h] = fmaxf(second[h], fminf(best[h], placed));
            best[h] = fmaxf(best[h], placed);
          } else {
            int32_t top = max_of(ordered(score(0)), ordered(score(1)), ordered(score(2)));
            top = max_of(top, ordered(score(3)), ordered(score(4)));
            top = max_of(top, ordered(score(5)), ordered(score(6)));
            top = max_of(top, ordered(score(7)));
            const int32_t placed = (top & ~kNarrowPlaces) | group;
            next[h] = max_of(next[h], min_of(most[h], placed));
            most[h] = max_of(most[h], placed);
          }
        }
      }
    }
    if constexpr (!floats) {
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        best[h] = ordered_float(most[h]);
        second[h] = ordered_float(next[h]);
      }
    }
  }

  // The scores of four of a group's codewords, `begin` and 1, 8 and 9 further on, in float32.
  __device__ __forceinline__ void rescore(const float (&x)[kPieces][8], int32_t begin, float (&scores)[4]) const {
    const uint32_t at = s.tiles + kCodewordBlock + static_cast<uint32_t>(begin / kSearchWide) * s.kTile;
    const uint32_t pieces = at + piece_offset(begin % kSearchWide, 0), added = s.added + static_cast<uint32_t>(begin * 4);
    load_pair(added, scores[0], scores[1]);
    load_pair(added + 32, scores[2], scores[3]);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      scores[i] = __fadd_rn(scores[i], raised);
#pragma unroll
      for (int32_t piece = 0; piece < kPieces; ++piece) {
        float v[8];
        half_floats(load_shared16((pieces + static_cast<uint32_t>(i / 2 * 8 + i % 2) * 32) ^ static_cast<uint32_t>(piece * 16)), v);
#pragma unroll
        for (int32_t j = 0; j < 8; ++j) scores[i] = __fmaf_rn(x[piece][j], v[j], scores[i]);
      }
    }
  }

  // Of 16 rows from `first` on, `many` (1 .. 16) are there. from: where the first of them lies.
  __device__ __forceinline__ void run(const Reach& reach, int32_t space, int64_t first, int32_t many, const uint8_t* from) const {
    // Lanes of even numbers go on with the first of their two rows and the others with the second; two have a half of a group each.
    const int32_t which = lane % 2, half = lane / 2 % 2, own = lane / 4 + 8 * which, step = static_cast<int32_t>(p.row_stride) * 2;
    const auto row_at = [&](int32_t r) { return from + (r < many ? r : many - 1) * step; };
    uint32_t rows[kPieces][2];
    uint4 pieces[kPieces];
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) rows[i][h] = reinterpret_cast<const uint32_t*>(row_at(lane / 4 + 8 * h))[i * 4 + lane % 4];
      pieces[i] = reinterpret_cast<const uint4*>(row_at(own))[i];
    }
    float best[2], second[2];
    compare<false>(rows, best, second);
    const auto joined = [&] {
      const auto in = [&](int32_t h) { return Found{best[h], second[h], (ordered(best[h]) & kNarrowPlaces) * 32 + 2 * (lane % 4)}; };
      Found all = which != 0 ? in(1) : in(0);
      all.join_lane(which != 0 ? in(0) : in(1), 1);
      all.join_lane(all, 2);
      return all;
    };
    Found found = joined();
    if (__any_sync(0xffffffffu, !(found.best >= kLeastOrdered))) {
      compare<true>(rows, best, second);
      found = joined();
    }
    float x[kPieces][8], square = 0, scores[4];
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) {
      half_floats(pieces[i], x[i]);
#pragma unroll
      for (int32_t j = 0; j < 8; ++j) square = __fmaf_rn(x[i][j], x[i][j], square);
    }
    const int32_t begin = found.codeword + half * 16;
    rescore(x, begin, scores);
    found.best = scores[0];
    found.codeword = begin;
#pragma unroll
    for (int32_t i = 1; i < 4; ++i) found.join(scores[i], begin + i / 2 * 8 + i % 2);
    found.join_lane(found, 2);
    if (half == 0 && own < many) write_found(p, reach, space, first + own, found, square, raised);
  }
};

template <int32_t kPieces>
__global__ void __launch_bounds__(kNarrowThreads, kNarrowBlocks) search_narrow(const __grid_constant__ SearchParams p) {
  if (p.state->moved != p.moved) return;
  const NarrowCodewords s(launch_memory(), p.tiles);
  NarrowPass<kPieces> pass{p, s, static_cast<int32_t>(threadIdx.x) % 32, 0};
  Reach reach{};
  const uint8_t* rows = nullptr;
  int32_t held = -1;
  for (WorkOfAll work(p, kNarrowRows); work.next();) {
    if (work.space != held) {
      held = work.space;
      s.load(p, held);
      pass.raised = raised_by(p.radius[held]);
      reach = Reach(p, held, pass.raised, kPackError);
      rows = static_cast<const uint8_t*>(p.rows) + held * p.width * 2;
    }
    const int64_t first = work.first() + static_cast<int32_t>(threadIdx.x) / 32 * 16, left = p.count - first;
    if (left > 0) pass.run(reach, held, first, left < 16 ? static_cast<int32_t>(left) : 16, rows + first * p.row_stride * 2);
  }
}

}  // namespace mr::cuda
