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

template <int32_t kPieces>
struct NarrowPass {
  const SearchParams& p;
  const NarrowCodewords& s;
  int32_t lane;

  __device__ __forceinline__ const uint8_t* row_at(int64_t row, int32_t space) const {
    const int64_t there = row < p.count ? row : p.count - 1;
    return static_cast<const uint8_t*>(p.rows) + (there * p.row_stride + space * p.width) * 2;
  }

  // The best and the second of all groups of this lane's two rows and its quarter of the columns.
  __device__ __forceinline__ void compare(const uint32_t (&rows)[kPieces][2], Leader (&leaders)[2]) const {
    const uint32_t one = lane % 4 == 0 ? 0x3f803f80u : lane % 4 == 1 ? 0x00003f80u : 0u, ones[2] = {one, one};  // in three columns
    const uint32_t own = piece_offset(lane, 0);
    int32_t group = 0;
#pragma unroll 1
    for (uint32_t tile = s.tiles + own, end = tile + static_cast<uint32_t>(p.tiles) * s.kTile; tile < end; tile += s.kTile) {
#pragma unroll
      for (int32_t g = 0; g < kSearchWide / 32; ++g, ++group) {
        uint32_t added[4], columns[kPieces][4];
        load_matrices(added, tile + static_cast<uint32_t>(g * 32 * 32));
#pragma unroll
        for (int32_t i = 0; i < kPieces; ++i)
          load_matrices(columns[i], (tile + kCodewordBlock + static_cast<uint32_t>(g * 32 * 32)) ^ static_cast<uint32_t>(i * 16));
        float sums[4][4] = {};
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) mma1688<__nv_bfloat16>(sums[j], ones, added[j]);
#pragma unroll
        for (int32_t i = 0; i < kPieces; ++i)
#pragma unroll
          for (int32_t j = 0; j < 4; ++j) mma1688<__half>(sums[j], rows[i], columns[i][j]);
#pragma unroll
        for (int32_t h = 0; h < 2; ++h) {
          float most[4];
#pragma unroll
          for (int32_t j = 0; j < 4; ++j) most[j] = fmaxf(sums[j][2 * h], sums[j][2 * h + 1]);
          const float score = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
          Leader& leader = leaders[h];
          leader.second = fmaxf(leader.second, fminf(leader.best, score));
          if (score > leader.best) leader.group = group;
          leader.best = fmaxf(leader.best, score);
        }
      }
    }
  }

  // The scores of four of the best group's codewords: the first and the third pair of eight from `begin` on, or the others.
  __device__ __forceinline__ void rescore(const float (&x)[kPieces][8], int32_t begin, float (&scores)[4]) const {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t c = begin + i / 2 * 8 + i % 2;
      const uint32_t at = s.tiles + static_cast<uint32_t>(c / kSearchWide) * s.kTile + kCodewordBlock;
      float score = __uint_as_float(load_shared4(s.added + static_cast<uint32_t>(c * 4)));
#pragma unroll
      for (int32_t piece = 0; piece < kPieces; ++piece) {
        float v[8];
        half_floats(load_shared16(at + piece_offset(c % kSearchWide, piece)), v);
#pragma unroll
        for (int32_t j = 0; j < 8; ++j) score = __fmaf_rn(x[piece][j], v[j], score);
      }
      scores[i] = score;
    }
  }

  __device__ __forceinline__ void run(const Reach& reach, int32_t space, int64_t first) const {
    // Lanes of even numbers go on with the first of their two rows and the others with the second; two have a half of a group each.
    const int32_t which = lane % 2, half = lane / 2 % 2;
    const int64_t row = first + lane / 4 + 8 * which;
    uint32_t rows[kPieces][2];
    uint4 pieces[kPieces];
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int32_t h = 0; h < 2; ++h)
        rows[i][h] = reinterpret_cast<const uint32_t*>(row_at(first + lane / 4 + 8 * h, space))[i * 4 + lane % 4];
      pieces[i] = reinterpret_cast<const uint4*>(row_at(row, space))[i];
    }
    Leader leaders[2];
    compare(rows, leaders);

    const Leader own = which != 0 ? leaders[1] : leaders[0], other = which != 0 ? leaders[0] : leaders[1];
    Found found{own.best, own.second, own.group * 32 + 2 * (lane % 4)};
    found.join_lane(Found{other.best, other.second, other.group * 32 + 2 * (lane % 4)}, 1);
    found.join_lane(found, 2);
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
    if (half == 0 && row < p.count) write_found(p, reach, space, row, found, square);
  }
};

template <int32_t kPieces>
__global__ void __launch_bounds__(kNarrowThreads, kNarrowBlocks) search_narrow(const __grid_constant__ SearchParams p) {
  if (p.state->moved != p.moved) return;
  const NarrowCodewords s(launch_memory(), p.tiles);
  const NarrowPass<kPieces> pass{p, s, static_cast<int32_t>(threadIdx.x) % 32};
  Reach reach{};
  int32_t held = -1;
  for (WorkOfAll work(p, kNarrowRows); work.next();) {
    if (work.space != held) {
      held = work.space;
      s.load(p, held);
      reach = Reach(p, held);
    }
    pass.run(reach, work.space, work.first() + static_cast<int32_t>(threadIdx.x) / 32 * 16);
  }
}

}  // namespace mr::cuda
