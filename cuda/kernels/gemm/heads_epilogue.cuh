// heads_epilogue: the epilogue of queries, keys and values (Epilogue::kHeads).
//
// Two neighbouring rows are rotated together. GEMV kernels have them in neighbouring lanes (HeadsRow): half a warp stores
// the 16 rows of a panel for one token. Skinny kernels have them in lanes that exchange them (HeadsPairs). Destination and rotation are
// looked up ahead of the sums, so that nothing waits once these are there.
#pragma once

#include "kernels/act.cuh"
#include "kernels/gemm/gemv.h"

namespace mr::cuda {

// Returns where a token's keys and values begin, in elements from the layer's first; -1: the token is padding. Its inputs
// were written before the kernel ahead of the GEMM began (launch.h, 4).
__device__ __forceinline__ int64_t heads_place(const GemmHeads& heads, int32_t token) {
  if (heads.rows.slot[token] < 0) return -1;
  const int32_t position = heads.rows.position[token], size = heads.layout.block_size;
  const int64_t block = heads.rows.block_ids[heads.rows.table[token] + position / size];
  return block * heads.layout.block_elements() + int64_t{position % size} * heads.layout.padded_dim;
}

// HeadsRow is the row that a thread stores.
struct HeadsRow {
  int64_t place = -1;      // of its token, as heads_place returns it; -1 too if there is no token
  uint16_t* to = nullptr;  // null: nothing is stored
  float cosine = 1, sine = 0;
  bool rotates = false;

  __device__ __forceinline__ void find(const GemmHeads& heads, int32_t token) { place = heads_place(heads, token); }

  // Selects a row of a target for the token that find() looked up.
  __device__ __forceinline__ void aim(const GemmHeads& heads, const KernelTarget& target, int32_t row, int32_t token) {
    const int32_t dim = heads.layout.head_dim, head = row / dim, d = row % dim;
    rotates = target.role < 2 && d < heads.rope_dims;
    if (rotates) {
      const float* const of_token = heads.rope_table + int64_t{token} * heads.rope_dims;
      cosine = of_token[d / 2];
      sine = of_token[heads.rope_dims / 2 + d / 2];
    }
    to = static_cast<uint16_t*>(target.out);
    if (target.role == 0) to += token * target.out_stride + row;
    else if (place >= 0) to += place + head * heads.layout.head_elements() + d;
    else to = nullptr;
  }

  // Called by the 16 threads of a token's rows, each with the y of its row.
  __device__ __forceinline__ void finish(Act act, int32_t row, int32_t lane, float y) const {
    if (place < 0) y = 0;
    const float other = __shfl_xor_sync(0xffffu << (lane & 16), y, 1);
    if (rotates) y = row % 2 == 0 ? y * cosine - other * sine : other * sine + y * cosine;
    if (to != nullptr) *to = act_bits(act, act == Act::kF16 ? within_f16(y) : y);
  }
};

// HeadsPairs are two pairs of neighbouring rows of one head, of any token: row and row + 1, and the two 8 rows further. row is
// even.
struct HeadsPairs {
  // Token has the position and the rotations of a token.
  struct Token {
    int64_t place;  // as heads_place returns it
    float cosine[2], sine[2];
  };

  const GemmHeads& heads;
  uint16_t* first;   // the first row of the first token's query, or of block 0's first key or value
  int64_t stride;    // elements from a token's query to the next
  int32_t pair;      // the first pair's index in its head
  int32_t rotating;  // pairs of the head that are rotated
  bool query;

  __device__ __forceinline__ HeadsPairs(const GemmHeads& heads, const KernelTarget& target, int32_t row)
      : heads(heads), stride(target.out_stride), rotating(target.role < 2 ? heads.rope_dims / 2 : 0), query(target.role == 0) {
    const int32_t dim = heads.layout.head_dim, head = row / dim, d = row % dim;
    pair = d / 2;
    first = static_cast<uint16_t*>(target.out) + (query ? row : head * heads.layout.head_elements() + d);
  }

  __device__ __forceinline__ bool rotates(int32_t i) const { return pair + i * 4 < rotating; }

  __device__ __forceinline__ void load(Token& out, int32_t token) const {
    const float* const cosines = heads.rope_table + int64_t{token} * heads.rope_dims + pair;
    out.place = heads_place(heads, token);
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      out.cosine[i] = rotates(i) ? cosines[i * 4] : 1;
      out.sine[i] = rotates(i) ? cosines[rotating + i * 4] : 0;
    }
  }

  // y: of the first pair's rows, then of the second's.
  __device__ __forceinline__ void store(const Token& from, int32_t token, const float (&y)[4]) const {
    const bool padding = from.place < 0;
    if (padding && !query) return;
    uint16_t* const to = first + (query ? token * stride : from.place);
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      float even = padding ? 0 : y[i * 2], odd = padding ? 0 : y[i * 2 + 1];
      if (rotates(i)) {
        const float x = even * from.cosine[i] - odd * from.sine[i];
        odd = even * from.sine[i] + odd * from.cosine[i];
        even = x;
      }
      *reinterpret_cast<uint32_t*>(to + i * 8) = act_bits(heads.layout.act, even, odd);
    }
  }
};

}  // namespace mr::cuda
