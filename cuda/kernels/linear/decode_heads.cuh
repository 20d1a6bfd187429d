// decode_heads: how a product of few tokens ends rows that are heads of queries, keys and values (ProductEnd::kHeads).
//
// Of a panel, whose 16 rows of a token are ended by half a warp, neighbours hold the two dims that are rotated together. Where a row goes,
// and its rotation, are looked up a tile ahead, so that nothing is waited for when the sums are there.
#pragma once

#include "kernels/act.cuh"
#include "kernels/linear/decode.h"

namespace mr::cuda {

// What a thread knows of the row that it ends.
struct DecodeHeads {
  int64_t place = -1;      // of its token: elements from the first key of a layer, or value; -1: of padding, or there is no token
  uint16_t* to = nullptr;  // null: nowhere
  float cosine = 1, sine = 0;
  bool turns = false;

  // Finds a token's place. What it reads was there before the kernel ahead of the product (launch.h, 4).
  __device__ __forceinline__ void find(const ProductHeads& heads, int32_t token) {
    place = -1;
    if (heads.rows.slot[token] < 0) return;
    const int32_t position = heads.rows.position[token], size = heads.layout.block_size;
    const int64_t block = heads.rows.block_ids[heads.rows.table[token] + position / size];
    place = block * heads.layout.block_elements() + int64_t{position % size} * heads.layout.padded_dim;
  }

  // Turns to a row of a target, of the token whose place was found.
  __device__ __forceinline__ void aim(const ProductHeads& heads, const DecodeTarget& target, int32_t row, int32_t token) {
    const int32_t dim = heads.layout.head_dim, head = row / dim, d = row % dim;
    turns = target.part < 2 && d < heads.rope_dims;
    if (turns) {
      const float* const of_token = heads.turns + int64_t{token} * heads.rope_dims;
      cosine = of_token[d / 2];
      sine = of_token[heads.rope_dims / 2 + d / 2];
    }
    to = static_cast<uint16_t*>(target.out);
    if (target.part == 0) to += token * target.out_stride + row;
    else if (place >= 0) to += place + head * heads.layout.head_elements() + d;
    else to = nullptr;
  }

  // By the 16 threads of a token's rows, y in the row's.
  __device__ __forceinline__ void end(Act act, int32_t row, int32_t lane, float y) const {
    if (place < 0) y = 0;
    const float other = __shfl_xor_sync(0xffffu << (lane & 16), y, 1);
    if (turns) y = row % 2 == 0 ? y * cosine - other * sine : other * sine + y * cosine;
    if (to != nullptr) *to = act_bits(act, act == Act::kF16 ? within_f16(y) : y);
  }
};

}  // namespace mr::cuda
