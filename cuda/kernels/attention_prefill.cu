// Prefill attention: tiles of query rows of one segment against its keys, with a running softmax (flash attention).
//
// Tile      One block takes up to kBlocks * 64 packed rows, token by token, each with the query heads (up to 16) of one kv
//           head, so that the heads share what is read. A warp owns kBlocks groups of 16 rows and never exchanges with
//           another warp.
// Keys      come in tiles of kKeys absolute positions, from 0 up to the last row's position, two tiles ahead. A row's
//           softmax advances tile by tile; a tile that it does not see leaves it exactly as it was. So neither the
//           cutting of a prompt into chunks nor of chunks into tiles has any influence.
// Memory    kBlocks * 64 queries, 2 x kKeys keys and values. kBlocks is 2 where a block may have that much, else 1: it
//           changes no bits.
// Test bound: as decode attention's.
#include "kernels/attention.h"
#include "kernels/attention_mma.cuh"

namespace mr::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kTileRows = 128;  // packed rows of one PrefillTile

template <int kDim>
constexpr int kKeys = kDim <= 128 ? 64 : 32;
template <int kDim>
constexpr int kMostBlocks = kDim <= 128 ? 2 : 1;
template <int kDim, int kBlocks>
constexpr int kSharedBytes = (kBlocks * 64 + 4 * kKeys<kDim>) * kSharedRow<kDim>;

struct Params {
  PrefillAttentionArgs args;
  float scale_log2;
  int32_t group, tile_heads, tiles;  // query heads a kv head, a tile; tiles a kv head
};

template <class T, int kDim>
__device__ __forceinline__ void fetch(const AttentionArgs& c, const int32_t* table, int32_t kv_head, int32_t key,
                                      int32_t longest, uint32_t stage) {
  constexpr int kPieces = kDim / 8;  // of 16 bytes, a row
  const KvLayout& l = c.layout;
  const int32_t shift = l.block_size == 16 ? 4 : 5;
#pragma unroll 4
  for (int i = threadIdx.x; i < kKeys<kDim> * kPieces; i += kThreads) {
    const int32_t r = i / kPieces, piece = i % kPieces, position = key + r;
    const bool valid = position <= longest;
    const int64_t block = valid ? table[position >> shift] : 0;
    const int64_t at = block * l.block_elements() + kv_head * l.head_elements() +
                       static_cast<int64_t>(position & (l.block_size - 1)) * kDim + piece * 8;
    const uint32_t to = stage + r * kSharedRow<kDim> + piece * 16;
    copy_async(to, static_cast<const T*>(c.keys) + at, valid);
    copy_async(to + kKeys<kDim> * kSharedRow<kDim>, static_cast<const T*>(c.values) + at, valid);
  }
}

template <class T, int kDim, int kBlocks>
__global__ void __launch_bounds__(kThreads) prefill_attention(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) uint8_t memory[];
  const AttentionArgs& c = p.args.common;
  constexpr int kRows = kBlocks * 64, kScoreTiles = kKeys<kDim> / 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  grid_wait();
  grid_trigger();
  const PrefillTile tile = p.args.tiles[blockIdx.x];
  const int32_t kv_head = blockIdx.y / p.tiles, head0 = kv_head * p.group + blockIdx.y % p.tiles * p.tile_heads;
  const int32_t heads = min(p.tile_heads, p.group - static_cast<int32_t>(blockIdx.y) % p.tiles * p.tile_heads);
  const int32_t packed0 = blockIdx.z * kRows, packed = tile.count * p.tile_heads;  // row i: token i / tile_heads
  if (packed0 >= packed) return;
  const int32_t first_position = c.rows.position[tile.row];
  const int32_t* const table = c.rows.block_ids + c.rows.table[tile.row];
  const int32_t last_token = min(packed, packed0 + kRows) - 1;
  const int32_t longest = first_position + last_token / p.tile_heads;
  const int32_t shortest = first_position + packed0 / p.tile_heads;

  const uint32_t queries = shared_address(memory), stages = queries + kRows * kSharedRow<kDim>;
  constexpr uint32_t kStageBytes = 2 * kKeys<kDim> * kSharedRow<kDim>;
  for (int i = threadIdx.x; i < kRows * (kDim / 8); i += kThreads) {
    const int32_t r = i / (kDim / 8), piece = i % (kDim / 8), token = (packed0 + r) / p.tile_heads;
    const int32_t head = (packed0 + r) % p.tile_heads;
    const bool valid = packed0 + r < packed && head < heads;
    const int64_t at = valid ? (tile.row + token) * c.q_stride + static_cast<int64_t>(head0 + head) * kDim + piece * 8 : 0;
    copy_async(queries + r * kSharedRow<kDim> + piece * 16, static_cast<const T*>(c.q) + at, valid);
  }
  fetch<T, kDim>(c, table, kv_head, 0, longest, stages);
  copy_commit();

  float out[kBlocks][kDim / 8][4] = {};
  RowSoftmax softmax[kBlocks][2];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) softmax[b][0] = softmax[b][1] = RowSoftmax{-INFINITY, 0.0f};
  int32_t position[kBlocks][2];  // of rows g and g + 8
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
    for (int r = 0; r < 2; ++r)
      position[b][r] = first_position + (packed0 + (warp * kBlocks + b) * 16 + g + 8 * r) / p.tile_heads;
  const int32_t key_tiles = longest / kKeys<kDim> + 1;
  for (int32_t j = 0; j < key_tiles; ++j) {
    const uint32_t stage = stages + j % 2 * kStageBytes;
    const int32_t key = j * kKeys<kDim>;
    copy_wait<0>();
    __syncthreads();  // the tile is there, and every warp is done with the one before
    if (j + 1 < key_tiles) fetch<T, kDim>(c, table, kv_head, key + kKeys<kDim>, longest, stages + (j + 1) % 2 * kStageBytes);
    copy_commit();
    float scores[kBlocks][kScoreTiles][4] = {};
    const uint32_t q_row = queries + (warp * kBlocks * 16 + lane % 16) * kSharedRow<kDim> + lane / 16 * 16;
    const uint32_t k_row = stage + (lane / 16 * 8 + lane % 8) * kSharedRow<kDim> + lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      uint32_t q[kBlocks][4];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) load_matrices(q_row + b * 16 * kSharedRow<kDim> + k * 32, q[b]);
#pragma unroll
      for (int n = 0; n < kScoreTiles / 2; ++n) {
        uint32_t keys[4];
        load_matrices(k_row + n * 16 * kSharedRow<kDim> + k * 32, keys);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          multiply_add(scores[b][2 * n], q[b], keys[0], keys[1], T{});
          multiply_add(scores[b][2 * n + 1], q[b], keys[2], keys[3], T{});
        }
      }
    }
    if (key + kKeys<kDim> - 1 > shortest) {  // some row does not see the whole tile
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (key + 8 * n + 2 * t + i % 2 > position[b][i / 2]) scores[b][n][i] = -INFINITY;
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) weigh_scores(scores[b], p.scale_log2, softmax[b], out[b]);
    const uint32_t v_row = stage + (kKeys<kDim> + lane % 16) * kSharedRow<kDim> + lane / 16 * 16;
#pragma unroll
    for (int n = 0; n < kScoreTiles / 2; ++n) {
      uint32_t weights[kBlocks][4];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) pack_weights<T>(scores[b][2 * n], scores[b][2 * n + 1], weights[b]);
#pragma unroll
      for (int d = 0; d < kDim / 16; ++d) {
        uint32_t values[4];
        load_matrices_transposed(v_row + n * 16 * kSharedRow<kDim> + d * 32, values);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          multiply_add(out[b][2 * d], weights[b], values[0], values[1], T{});
          multiply_add(out[b][2 * d + 1], weights[b], values[2], values[3], T{});
        }
      }
    }
  }
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(softmax[b][r].sum);
      const int32_t i = packed0 + (warp * kBlocks + b) * 16 + g + 8 * r, head = i % p.tile_heads;
      if (i >= packed || head >= heads) continue;
      const int32_t dim = c.layout.head_dim;
      T* const to = static_cast<T*>(c.out) + (tile.row + i / p.tile_heads) * c.out_stride + static_cast<int64_t>(head0 + head) * dim;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const int d = 8 * n + 2 * t;
        const float x = out[b][n][2 * r] / sum, y = out[b][n][2 * r + 1] / sum;
        if (dim % 2 == 0) {
          if (d < dim) *reinterpret_cast<uint32_t*>(to + d) = ActOps<T>::pack(x, y);
        } else {
          if (d < dim) to[d] = ActOps<T>::from(x);
          if (d + 1 < dim) to[d + 1] = ActOps<T>::from(y);
        }
      }
    }
}

template <class T, int kDim, int kBlocks>
cudaError_t run(const Params& p, const Stream& on) {
  constexpr int kBytes = kSharedBytes<kDim, kBlocks>;
  const cudaError_t error = reserve_shared(prefill_attention<T, kDim, kBlocks>, kBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(p.args.tile_count),
                  static_cast<unsigned>(p.args.common.layout.kv_heads * p.tiles), kTileRows / (64 * kBlocks));
  return launch(on, grid, dim3(kThreads), kBytes, prefill_attention<T, kDim, kBlocks>, p);
}

// Query heads of one kv head that one tile takes: all of them up to 16.
int32_t heads_a_tile(int32_t group) { return group < 16 ? group : 16; }

}  // namespace

int32_t prefill_tile_rows(int32_t, int32_t heads, int32_t kv_heads) {
  return kTileRows / heads_a_tile(heads / kv_heads);
}

cudaError_t launch_prefill_attention(const PrefillAttentionArgs& args, const Stream& on) {
  const AttentionArgs& c = args.common;
  if (!attention_supports(c.layout.head_dim, c.heads, c.layout.kv_heads) || args.tile_count < 0 || !(c.scale > 0) ||
      c.layout.padded_dim != pad_head_dim(c.layout.head_dim) || (c.layout.block_size != 16 && c.layout.block_size != 32))
    return cudaErrorInvalidValue;
  if (args.tile_count == 0) return cudaSuccess;
  int most = 0;
  const cudaError_t error = shared_limit(&most);
  if (error != cudaSuccess) return error;
  Params p;
  p.args = args;
  p.scale_log2 = c.scale * 1.44269504f;
  p.group = c.heads / c.layout.kv_heads;
  p.tile_heads = heads_a_tile(p.group);
  p.tiles = (p.group + p.tile_heads - 1) / p.tile_heads;
  return with_act(c.layout.act, [&](auto element) {
    return with_head_dim(c.layout.padded_dim, [&](auto dim) {
      typedef decltype(element) T;
      constexpr int kDim = decltype(dim)::value;
      if constexpr (kMostBlocks<kDim> == 2)
        if (kSharedBytes<kDim, 2> <= most) return run<T, kDim, 2>(p, on);
      return run<T, kDim, 1>(p, on);
    });
  });
}

}  // namespace mr::cuda
