// search_rows: loads a warpgroup's rows into shared memory as blocks of 16-bit terms.
#pragma once

#include "kernels/vectors/search_element.cuh"
#include "kernels/vectors/search_mma.cuh"

namespace mr::cuda {

// SearchRows is the rows of one warpgroup: `many` of them, 0 .. 64, row r at element offset(r).
template <class Offset>
struct SearchRows {
  const SearchParams& p;
  const float* center;  // of the subspace, or null
  Offset offset;
  int32_t many;
  uint32_t blocks;      // shared address: (row_terms, chunk_steps) blocks
  float* squares;       // shared, (64): |x minus center|^2

  // Loads steps [first, first + steps) of all rows with the warpgroup's 128 threads; `at_once` rows of a thread are in
  // flight together. add: to the squares of earlier steps. Rows past the last are zeros.
  template <class E, int32_t at_once>
  __device__ __forceinline__ void load(int32_t first, int32_t steps, bool add) const {
    const int32_t thread = static_cast<int32_t>(threadIdx.x) % 128, pieces = 2 * steps;
    const int32_t shift = pieces >= 8 ? 3 : pieces >= 4 ? 2 : 1, across = 1 << shift;  // threads of a row
    const int32_t own = thread & (across - 1), down = 128 >> shift;
#pragma unroll 1
    for (int32_t r0 = thread >> shift; r0 < kSearchRows; r0 += at_once * down) {
      float sum[at_once] = {};
#pragma unroll 1
      for (int32_t c = own; c < pieces; c += across) {
        const int64_t column = int64_t{first} * 16 + c * 8;
        const int32_t columns = static_cast<int32_t>(p.width - column < 0 ? 0 : p.width - column < 8 ? p.width - column : 8);
        Piece piece[at_once];
#pragma unroll
        for (int32_t i = 0; i < at_once; ++i) {
          const int32_t r = r0 + i * down;
          piece[i] = Piece{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
          if (columns > 0 && r < many) {
            piece[i] = load_piece(p.rows, std::is_same_v<E, __half> ? int32_t{MR_VECTOR_F16} : p.row_type, offset(r) + column, columns,
                                  p.vector_rows != 0);
          }
        }
#pragma unroll
        for (int32_t i = 0; i < at_once; ++i) {
          const int32_t r = r0 + i * down;
          if (r >= kSearchRows) continue;
          const uint32_t to = blocks + static_cast<uint32_t>(c / 2 * kRowBlock) + piece_offset(r, c % 2);
          put<E>(piece[i], to, column, columns, r < many, sum[i]);
        }
      }
#pragma unroll
      for (int32_t i = 0; i < at_once; ++i) {
        for (int32_t lanes = across / 2; lanes > 0; lanes /= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], lanes);
        const int32_t r = r0 + i * down;
        if (own == 0 && r < kSearchRows) squares[r] = (add ? squares[r] : 0.0f) + sum[i];
      }
    }
  }

 private:
  template <class E>
  __device__ __forceinline__ void put(const Piece& piece, uint32_t to, int64_t column, int32_t columns, bool there, float& sum) const {
    float v[8];
    if constexpr (std::is_same_v<E, __half>) {
      piece_floats(piece, MR_VECTOR_F16, v);
      store_shared16(to, piece.low);
    } else {
      piece_floats(piece, p.row_type, v);
      if (center != nullptr && there && columns > 0) {
        float m[8];
        load_floats(center + column, columns, p.width % 8 == 0, m);
#pragma unroll
        for (int32_t j = 0; j < 8; ++j) v[j] = v[j] - m[j];
      }
    }
#pragma unroll
    for (int32_t j = 0; j < 8; ++j) sum = fmaf(v[j], v[j], sum);
    if constexpr (!std::is_same_v<E, __half>) {
      store_shared16(to, take_term(v));
      if (p.form.row_terms == 2) store_shared16(to + static_cast<uint32_t>(p.form.chunk_steps * kRowBlock), take_term(v));
    }
  }
};

}  // namespace mr::cuda
