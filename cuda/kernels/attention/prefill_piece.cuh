// attention/prefill_piece: writes the result of one piece of a row's keys to the output or the workspace.
#pragma once

#include "kernels/attention/mma.cuh"
#include "kernels/attention/prefill_params.cuh"

namespace mr::cuda::prefill {

// BlockRows are the rows of one block.
template <int kBlocks>
struct BlockRows {
  int32_t row0, first_position;    // of the tile
  int32_t packed0, packed;         // packed rows of the tile: the block's first, all
  int32_t head0, heads;            // query heads [head0, head0 + heads)
  int32_t place;                   // workspace slot of the tile's first row, in this item
  int32_t half;                    // of the values' dims
  int32_t position[kBlocks][2];    // of rows g and g + 8 of the thread's groups
};

// Ends a piece: writes to the output if a row's keys end here, otherwise to the workspace. first: the block has no piece
// before it. alone: the block has this piece of its tile and no other. Resets out and softmax to their state before the first key. All loads of some rows
// are issued before the first is used: as many as fit the registers that held the scores.
template <class T, int kDim, int kBlocks>
__device__ __forceinline__ void end_piece(const Params& p, const BlockRows<kBlocks>& rows, int32_t piece, bool first, bool alone,
                                          RowSoftmax (&softmax)[kBlocks][2], float (&out)[kBlocks][kValueDims<kDim> / 8][4]) {
  constexpr int kOut = kValueDims<kDim>;
  const AttentionArgs& c = p.args.common;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  Part parts[kBlocks][2];
  int64_t at[kBlocks][2];  // of each row's half in the workspace
  bool sees[kBlocks][2];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      parts[b][r] = Part{softmax[b][r].top, quad_sum(softmax[b][r].sum)};
      softmax[b][r] = RowSoftmax{-INFINITY, 0.0f};
      const int32_t position = rows.position[b][r], token = position - rows.first_position;
      const int32_t i = rows.packed0 + (warp * kBlocks + b) * 16 + g + 8 * r, head = i - token * p.tile_heads;
      sees[b][r] = i < rows.packed && head < rows.heads && position >= prefill_piece_begin(piece);
      at[b][r] = sees[b][r] ? (static_cast<int64_t>(rows.place + token) * c.heads + rows.head0 + head) * kHalves<kDim> + rows.half : 0;
    }
  if (!first) {
    float2 shares[kBlocks][2];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) shares[b][r] = __ldcg(p.parts + at[b][r]);
    __syncwarp();  // all lanes of a row have read its part before one of them overwrites it
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Part total{shares[b][r].x, shares[b][r].y};
        shares[b][r] = merge(total, parts[b][r]);
        parts[b][r] = total;
      }
    constexpr int kTogether = kDim <= 128 ? 2 : 1;  // rows
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int r0 = 0; r0 < 2; r0 += kTogether) {
        float4 before[kTogether][kOut / 16];
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
#pragma unroll
          for (int n = 0; n < kOut / 16; ++n)
            before[r][n] = __ldcg(reinterpret_cast<const float4*>(p.values + at[b][r0 + r] * kOut) + 4 * n + t);
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
#pragma unroll
          for (int n = 0; n < kOut / 16; ++n) {
            const int e = 2 * (r0 + r);
            const float2 share = shares[b][r0 + r];
            out[b][2 * n][e] = merge_values(before[r][n].x, out[b][2 * n][e], share);
            out[b][2 * n][e + 1] = merge_values(before[r][n].y, out[b][2 * n][e + 1], share);
            out[b][2 * n + 1][e] = merge_values(before[r][n].z, out[b][2 * n + 1][e], share);
            out[b][2 * n + 1][e + 1] = merge_values(before[r][n].w, out[b][2 * n + 1][e + 1], share);
          }
      }
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t position = rows.position[b][r], token = position - rows.first_position;
      Part part = parts[b][r];
      if (sees[b][r] && !alone && position < prefill_piece_begin(piece + 1)) {
        const int32_t i = rows.packed0 + (warp * kBlocks + b) * 16 + g + 8 * r, head = i - token * p.tile_heads;
        uint16_t* const to = output_of(c, rows.row0 + token, rows.head0 + head) + rows.half * kOut;
        const float of_values = add_sink(part, c.sinks, rows.head0 + head), share = of_values / part.sum;
#pragma unroll
        for (int n = 0; n < kOut / 8; ++n)
          store_pair(c.out_act, to, 8 * n + 2 * t, c.layout.head_dim - rows.half * kOut, out[b][n][2 * r] * share,
                     out[b][n][2 * r + 1] * share);
      } else if (sees[b][r]) {
        float4* const values = reinterpret_cast<float4*>(p.values + at[b][r] * kOut) + t;
#pragma unroll
        for (int n = 0; n < kOut / 8; n += 2)
          __stcg(values + 2 * n, make_float4(out[b][n][2 * r], out[b][n][2 * r + 1], out[b][n + 1][2 * r],
                                             out[b][n + 1][2 * r + 1]));
        if (t == 0) __stcg(p.parts + at[b][r], make_float2(part.top, part.sum));
      }
#pragma unroll
      for (int n = 0; n < kOut / 8; ++n) out[b][n][2 * r] = out[b][n][2 * r + 1] = 0;
    }
}

}  // namespace mr::cuda::prefill
