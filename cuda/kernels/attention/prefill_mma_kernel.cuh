// Prefill attention: tiles of query rows of one segment against its keys, with a running softmax (FlashAttention).
//
// On compute capability 9.0, heads of 33 to 256 dims use attention/prefill_wgmma_kernel.cuh, which has other tiles of keys but
// the same pieces and merges. This is the kernel of all other cases. A build for 9.0 alone does not have it for those heads.
//
// Tile      One block computes up to kBlocks * 64 packed rows, token by token, each with the query heads (up to 16) of
//           one kv head, so that the heads share the loaded keys. A warp owns kBlocks groups of 16 rows and never
//           exchanges values with another warp.
// Keys      are cut into pieces at absolute positions (prefill_piece_of). Each piece starts a new softmax. Its keys are
//           loaded in tiles of kKeys absolute positions, kAhead tiles ahead. A row's softmax advances tile by tile; a
//           tile that the row does not see leaves it unchanged, and a piece that it does not see is skipped for it.
// Halves    Above 256 dims a block weighs one half of the values' dims (kHalves in attention/prefill_params.cuh). Both halves
//           have the same scores, so which block computes one changes no bit.
// Merge     A row's result is its pieces merged in ascending order, always two by merge(). A block with a whole tile
//           merges each piece into the rows' results so far, which stay in the workspace (L2). Blocks of a split tile
//           store their pieces there, and merge_pieces merges them with the same functions. So neither the chunking of
//           a prompt, nor the tiles of a chunk, nor the blocks of a tile change any bit.
// Memory    kBlocks * 64 queries, kAhead + 1 times kKeys keys and values. kBlocks is 2 if a block may have that much
//           and there is work for all SMs, otherwise 1; kAhead is 1, or 3 if an SM has at most one block. Above 256 dims
//           both are 1, because more fits no device or few, and up to 32 dims, because only test models have such heads. Neither
//           changes bits. The block ids of a tile are loaded
//           kAhead tiles earlier still, so that no load waits for another.
// 8 bits    Keys and values are loaded as they are into kAhead buffers, and each thread widens what it has loaded
//           exactly to the layout's type, so only one tile of that type is needed. A score is (product * key's scale) *
//           the scores' scale. A weight times the value's scale is rounded to the layout's type; the softmax sums
//           weights without that scale. Weights of keys that a row does not see are 0 whatever their scale.
// Test bound: that of decode attention.
#pragma once

#include "kernels/attention/prefill_mma.h"
#include "kernels/attention/prefill_piece.cuh"
#include "kernels/attention/prefill_tile.cuh"
#include "kernels/attention/prefill_wgmma.h"

namespace mr::cuda::prefill {

constexpr bool kAlwaysWgmma = MR_HOPPER == 2;  // where the device has it, which is then every device

template <int kDim>
constexpr int kMostBlocks = kDim > 32 && kDim <= 128 ? 2 : 1;
template <int kDim>
constexpr int kMostAhead = kDim > 32 && kHalves<kDim> == 1 ? 3 : 1;

template <class T, int kDim, int kBlocks, int kAhead, bool kF8>
__global__ void __launch_bounds__(kThreads) prefill_attention(const __grid_constant__ Params p) {
  uint8_t* const memory = dynamic_memory();
  const AttentionArgs& c = p.args.common;
  constexpr int kRows = kBlocks * 64, kScoreTiles = kKeys<kDim> / 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  grid_wait();
  grid_trigger();
  const PrefillItem item = p.args.items[blockIdx.x];
  const int32_t kv_head = blockIdx.y / p.tiles, head_tile = static_cast<int32_t>(blockIdx.y) % p.tiles;
  BlockRows<kBlocks> rows;
  rows.row0 = item.row;
  rows.first_position = item.position;
  rows.packed0 = blockIdx.z / kHalves<kDim> * kRows;
  rows.packed = item.count * p.tile_heads;  // row i: token i / tile_heads
  rows.head0 = kv_head * p.group + head_tile * p.tile_heads;
  rows.heads = min(p.tile_heads, p.group - head_tile * p.tile_heads);
  rows.place = item.place;
  rows.half = blockIdx.z % kHalves<kDim>;
  if (rows.packed0 >= rows.packed) return;
  const int32_t packed0 = rows.packed0, packed = rows.packed, head0 = rows.head0, heads = rows.heads;
  const bool alone = item.piece >= 0;
  const int32_t last_token = min(packed, packed0 + kRows) - 1;
  const int32_t last_seen = rows.first_position + last_token / p.tile_heads;
  const int32_t shortest = rows.first_position + packed0 / p.tile_heads;
  const int32_t low = first_seen(shortest, c.window), low_of_last = first_seen(last_seen, c.window);
  const int32_t first_piece = alone ? item.piece : prefill_piece_of(low);
  int32_t piece = first_piece, piece_end = prefill_piece_begin(piece + 1);
  const int32_t longest = alone ? min(last_seen, piece_end - 1) : last_seen;
  if (prefill_piece_begin(piece) > longest) return;  // no row of the block is behind the piece's first key
  // Tiles below all windows are skipped. If that is all of a piece, its Part stays empty.
  const int32_t first_key = max(prefill_piece_begin(piece), low / kKeys<kDim> * kKeys<kDim>);
  const int32_t* const table = c.rows.block_ids + c.rows.table[item.row];

  const uint32_t queries = shared_address(memory), stages = queries + kRows * kSharedRow<kDim>;
  for (int i = threadIdx.x; i < kRows * (kDim / 8); i += kThreads) {
    const int32_t r = i / (kDim / 8), piece = i % (kDim / 8), token = (packed0 + r) / p.tile_heads;
    const int32_t head = (packed0 + r) % p.tile_heads;
    const bool valid = packed0 + r < packed && head < heads;
    const int64_t at = valid ? (item.row + token) * c.q_stride + static_cast<int64_t>(head0 + head) * kDim + piece * 8 : 0;
    copy_valid(queries + r * kSharedRow<kDim> + piece * 16, static_cast<const T*>(c.q) + at, valid);
  }
  // Stages for 16 bits: kAhead + 1 tiles. For 8 bits: the wide tile, then kAhead tiles of 8 bits, then kAhead + 1 of
  // scales.
  constexpr int kStages = kAhead + 1;
  [[maybe_unused]] const uint32_t raws = stages + kTileBytes<kDim>;
  [[maybe_unused]] const uint32_t all_scales = raws + kAhead * kF8TileBytes<kDim>;
  const auto fetch_tile = [&](int32_t j) {  // tile j of the block, and the ids of the tile kAhead after it
    const int32_t key = first_key + j * kKeys<kDim>;
    if (key <= longest) {
      const uint32_t ids = ids_of<kDim>(queries, j % kStages);
      if constexpr (kF8)
        fetch_f8<kDim>(c, ids, kv_head, rows.half, key, longest, raws + j % kAhead * kF8TileBytes<kDim>,
                       all_scales + j % kStages * 2 * kScaleSide<kDim>);
      else
        fetch<T, kDim>(c, ids, kv_head, rows.half, key, longest, stages + j % kStages * kTileBytes<kDim>);
    }
    const int32_t later = key + kAhead * kKeys<kDim>;
    if (later <= longest) fetch_ids<kDim>(c, table, later, longest, ids_of<kDim>(queries, (j + kAhead) % kStages));
    copies_commit();
  };
  for (int32_t j = 0; j < kAhead; ++j) fetch_ids<kDim>(c, table, first_key + j * kKeys<kDim>, longest, ids_of<kDim>(queries, j));
  copies_commit();
  copies_wait<0>();
  __syncthreads();  // the first ids have arrived
  for (int32_t j = 0; j < kAhead; ++j) {
    if (j > 0) __syncthreads();  // every warp has read the ids of tile j - 1, which those of tile j + kAhead replace
    fetch_tile(j);
  }

  float out[kBlocks][kValueDims<kDim> / 8][4] = {};
  RowSoftmax softmax[kBlocks][2];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) softmax[b][0] = softmax[b][1] = RowSoftmax{-INFINITY, 0.0f};
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
    for (int r = 0; r < 2; ++r)
      rows.position[b][r] = rows.first_position + (packed0 + (warp * kBlocks + b) * 16 + g + 8 * r) / p.tile_heads;
  int32_t key = first_key, j = 0;
#pragma unroll 1
  for (;;) {  // pieces
    const int32_t end = min(piece_end, longest + 1);
#pragma unroll 1
    for (; key < end; key += kKeys<kDim>, ++j) {
      const int32_t next = key + kKeys<kDim>;
      const uint32_t stage = kF8 ? stages : stages + j % kStages * kTileBytes<kDim>;
      [[maybe_unused]] const uint32_t scales = all_scales + j % kStages * 2 * kScaleSide<kDim>;
      copies_wait<kAhead - 1>();
      __syncthreads();  // the tile has arrived, and every warp is done with the one before
      if constexpr (kF8) {
        widen_tile<T, kDim>(rows.half, raws + j % kAhead * kF8TileBytes<kDim>, stage);
        __syncthreads();  // the tile is widened
      }
      fetch_tile(j + kAhead);
      float scores[kBlocks][kScoreTiles][4] = {};
      const uint32_t q_row = queries + (warp * kBlocks * 16 + lane % 16) * kSharedRow<kDim> + lane / 16 * 16;
      const uint32_t k_row = stage + (lane / 16 * 8 + lane % 8) * kSharedRow<kDim> + lane / 8 % 2 * 16;
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        uint32_t q[kBlocks][4];
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) load_matrices(q[b], q_row + b * 16 * kSharedRow<kDim> + k * 32);
#pragma unroll
        for (int n = 0; n < kScoreTiles / 2; ++n) {
          uint32_t keys[4];
          load_matrices(keys, k_row + n * 16 * kSharedRow<kDim> + k * 32);
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) {
            mma16816<T>(scores[b][2 * n], q[b], keys[0], keys[1]);
            mma16816<T>(scores[b][2 * n + 1], q[b], keys[2], keys[3]);
          }
        }
      }
      const bool masks = next - 1 > shortest || key < low_of_last;  // some row does not see the whole tile
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        if constexpr (kF8) multiply_scales<T>(scores[b], scales, t);
        if (p.cap_scale != 0) cap_scores(scores[b], p.cap_scale);
        if (masks) mask(scores[b], key, t, rows.position[b], c.window, -INFINITY);
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        weigh_scores(scores[b], p.scale_log2, softmax[b], out[b]);
        if constexpr (kF8) {
          multiply_scales<T>(scores[b], scales + kScaleSide<kDim>, t);
          if (masks) mask(scores[b], key, t, rows.position[b], c.window, 0.0f);
        }
      }
      constexpr int kValueRow = kSharedRow<kValueDims<kDim>>;
      const uint32_t v_row = stage + kKeys<kDim> * kSharedRow<kDim> + lane % 16 * kValueRow + lane / 16 * 16;
#pragma unroll
      for (int n = 0; n < kScoreTiles / 2; ++n) {
        uint32_t weights[kBlocks][4];
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) pack_weights<T>(scores[b][2 * n], scores[b][2 * n + 1], weights[b]);
#pragma unroll
        for (int d = 0; d < kValueDims<kDim> / 16; ++d) {
          uint32_t values[4];
          load_matrices_transposed(values, v_row + n * 16 * kValueRow + d * 32);
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) {
            mma16816<T>(out[b][2 * d], weights[b], values[0], values[1]);
            mma16816<T>(out[b][2 * d + 1], weights[b], values[2], values[3]);
          }
        }
      }
    }
    end_piece<T, kDim, kBlocks>(p, rows, piece, alone || piece == first_piece, alone, softmax, out);
    if (key > longest) return;
    piece_end = prefill_piece_begin(++piece + 1);
  }
}

template <class T, int kDim, int kBlocks, int kAhead, bool kF8>
cudaError_t run(const Params& p, const Stream& on) {
  constexpr int kBytes = kSharedBytes<kDim, kBlocks, kAhead, kF8>;
  const cudaError_t error = reserve_shared(prefill_attention<T, kDim, kBlocks, kAhead, kF8>, kBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(p.args.item_count), static_cast<unsigned>(p.columns()),
                  kTileRows / (64 * kBlocks) * kHalves<kDim>);
  return launch(on, grid, dim3(kThreads), kBytes, prefill_attention<T, kDim, kBlocks, kAhead, kF8>, p);
}

// Uses as many rows a block as its memory allows while every SM has a block; otherwise loads as many tiles ahead as
// fit, if every SM has at most one block.
template <class T, int kDim, bool kF8>
cudaError_t run_blocks(const Params& p, int most, const Stream& on) {
  const int64_t tiles = static_cast<int64_t>(p.args.item_count) * p.columns();
  if constexpr (kMostBlocks<kDim> == 2)
    if (kSharedBytes<kDim, 2, 1, kF8> <= most && tiles >= p.args.sm_count) return run<T, kDim, 2, 1, kF8>(p, on);
  if constexpr (kMostAhead<kDim> == 3)
    if (kSharedBytes<kDim, 1, 3, kF8> <= most && 2 * tiles <= p.args.sm_count) return run<T, kDim, 1, 3, kF8>(p, on);
  return run<T, kDim, 1, 1, kF8>(p, on);
}

template <class T, bool kF8>
cudaError_t launch_mma(const Params& p, int most, const Stream& on) {
  return with_head_dim(p.args.common.layout.padded_dim, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    if constexpr (kAlwaysWgmma && wgmma_width(kDim) != 0) return cudaErrorNotSupported;
    else return run_blocks<T, kDim, kF8>(p, most, on);
  });
}

}  // namespace mr::cuda::prefill
