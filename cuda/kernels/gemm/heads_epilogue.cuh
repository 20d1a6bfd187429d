// heads_epilogue: the epilogue of queries, keys and values for few tokens (Epilogue::kHeads).
//
// Half a warp stores the 16 rows of a panel for one token, so neighbouring lanes hold the two dims that are rotated
// together. Destination and rotation are looked up one tile ahead, so that nothing waits once the sums are there.
#pragma once

#include "kernels/act.cuh"
#include "kernels/gemm/gemv.h"

namespace mr::cuda {

// HeadsEpilogue is the row that a thread stores.
struct HeadsEpilogue {
  int64_t place = -1;      // of its token: elements from the layer's first key or value; -1: padding, or there is no token
  uint16_t* to = nullptr;  // null: nothing is stored
  float cosine = 1, sine = 0;
  bool rotates = false;

  // Finds a token's position in the cache. Its inputs were written before the kernel ahead of the GEMM began (launch.h,
  // 4).
  __device__ __forceinline__ void find(const GemmHeads& heads, int32_t token) {
    place = -1;
    if (heads.rows.slot[token] < 0) return;
    const int32_t position = heads.rows.position[token], size = heads.layout.block_size;
    const int64_t block = heads.rows.block_ids[heads.rows.table[token] + position / size];
    place = block * heads.layout.block_elements() + int64_t{position % size} * heads.layout.padded_dim;
  }

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

}  // namespace mr::cuda
