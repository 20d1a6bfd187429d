// Prefill attention over a latent (attention/latent.h): tiles of rows of one segment against its keys.
//
// Tile      One block computes up to 64 packed rows, token by token, each with the same up to 32 heads, so that tokens and heads share
//           the loaded keys. Four groups of 16 rows have two warps each (attention/latent_tile.cuh).
// Keys      are cut into pieces at absolute positions (prefill_piece_of), each with a softmax of its own, and loaded in tiles of 32.
// Merge     As in prefill attention: a block with a whole tile merges each piece into the rows' results so far, which stay in the workspace
//           (L2); blocks of a split tile store their pieces there, and merge_latent_pieces merges them with the same functions.
// Memory    64 queries, two tiles of keys and 64 rows of weights: 152 KB.
// Test bound: that of decode attention.
#include <algorithm>

#include "kernels/attention/latent_tile.cuh"
#include "kernels/attention/prefill_params.cuh"

namespace mr::cuda {
namespace {

constexpr int kTileRows = 64, kMostTileHeads = 32, kMergeThreads = 128;

static_assert(latent::Prompt<__half, 64>::kRows == kTileRows);

// Tiles of the heads, and heads of a tile: all of them up to 32.
int32_t tiles_of(int32_t heads) { return (heads + kMostTileHeads - 1) / kMostTileHeads; }
int32_t heads_a_tile(int32_t heads) { return (heads + tiles_of(heads) - 1) / tiles_of(heads); }

struct Params {
  PrefillAttentionArgs args;
  float scale_log2;     // see ScoreRule
  int32_t tile_heads;
  // Workspace: partial results by slot and head.
  float* values;  // (capacity, heads, value dims): sum of weighted values
  float2* parts;  // (capacity, heads): top and sum of a Part
};

// A packed row of a block: its token, counted from the tile's first, and its head of all.
struct PackedRow {
  int32_t token, head;
  bool valid;
  __device__ __forceinline__ PackedRow(const Params& p, const PrefillItem& item, int row) : token(row / p.tile_heads) {
    const int32_t head0 = static_cast<int32_t>(blockIdx.y) * p.tile_heads, of_tile = row - token * p.tile_heads;
    head = head0 + of_tile;
    valid = token < item.count && head < p.args.common.heads;
  }
  // Returns where its partial results are in the workspace.
  __device__ __forceinline__ int64_t place(const Params& p, const PrefillItem& item) const {
    return static_cast<int64_t>(item.place + token) * p.args.common.heads + head;
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads) prefill_latent(const __grid_constant__ Params p) {
  const AttentionArgs& c = p.args.common;
  grid_wait();
  grid_trigger();
  const PrefillItem item = p.args.items[blockIdx.x];
  const bool alone = item.piece >= 0;
  const int32_t first_piece = alone ? item.piece : 0, last_seen = item.position + item.count - 1;
  const int32_t last_key = alone ? min(last_seen, prefill_piece_begin(item.piece + 1) - 1) : last_seen;
  latent::Block<S> block(c, dynamic_memory(), p.scale_log2);
  block.fetch_queries([&](int row) {
    const PackedRow at(p, item, row);
    return at.valid ? (item.row + at.token) * c.q_stride + static_cast<int64_t>(at.head) * S::kDim : int64_t{-1};
  });
  const PackedRow rows[2] = {{p, item, block.row(0)}, {p, item, block.row(1)}};
#pragma unroll
  for (int r = 0; r < 2; ++r) block.position[r] = item.position + rows[r].token;
  Part total[2] = {{0, 0}, {0, 0}};
  block.walk(c.rows.block_ids + c.rows.table[item.row], prefill_piece_begin(first_piece), last_key, item.position,
             [](int32_t key) { return prefill_piece_of(key + latent::kKeys) != prefill_piece_of(key); },
             [&](int32_t key) {
    const int32_t piece = prefill_piece_of(key);
    Part parts[2];
    block.parts(parts);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!rows[r].valid || block.position[r] < prefill_piece_begin(piece)) continue;  // the row has no key of the piece
      const bool ends = !alone && block.position[r] < prefill_piece_begin(piece + 1);
      const int64_t place = ends && piece == first_piece ? 0 : rows[r].place(p, item);
      float2* const pairs = reinterpret_cast<float2*>(p.values + place * S::kValue + block.dim(0));
      if (piece == first_piece) {
        total[r] = parts[r];
      } else {
        const float2 shares = merge(total[r], parts[r]);
        latent::merge_before<S>(block.out, pairs, r, shares);
      }
      if (ends) {
        block.write(prefill::output_of(c, item.row + rows[r].token, rows[r].head), r, 1.0f / total[r].sum);
      } else {
#pragma unroll
        for (int n = 0; n < S::kOwnDims / 8; ++n) __stcg(pairs + 4 * n, make_float2(block.out[n][2 * r], block.out[n][2 * r + 1]));
        if (alone && block.sharer == 0 && block.t == 0) __stcg(p.parts + place, make_float2(total[r].top, total[r].sum));
      }
    }
  });
}

// Merges the pieces of a row of a split tile; a thread owns four neighbouring dims of one head.
template <int kValue>
__global__ void __launch_bounds__(kMergeThreads) merge_latent_pieces(const __grid_constant__ Params p) {
  constexpr int kQuads = kValue / 4;
  const AttentionArgs& c = p.args.common;
  grid_wait();
  grid_trigger();
  const PrefillMerge m = p.args.merges[blockIdx.x];
  const int32_t i = static_cast<int32_t>(blockIdx.y) * kMergeThreads + static_cast<int32_t>(threadIdx.x);
  const int32_t head = i / kQuads, quad = i % kQuads;
  if (head >= c.heads) return;
  const int32_t pieces = prefill_piece_of(c.rows.position[m.row]) + 1;
  Part total{0, 0};
  float4 x = make_float4(0, 0, 0, 0);
#pragma unroll 4
  for (int32_t piece = 0; piece < pieces; ++piece) {
    const int64_t at = (m.place + static_cast<int64_t>(piece) * m.stride) * c.heads + head;
    const float2 part = __ldcg(p.parts + at);
    const float4 values = __ldcg(reinterpret_cast<const float4*>(p.values + at * kValue) + quad);
    const Part next{part.x, part.y};
    if (piece == 0) {
      total = next;
      x = values;
      continue;
    }
    const float2 shares = merge(total, next);
    x = make_float4(merge_values(x.x, values.x, shares), merge_values(x.y, values.y, shares), merge_values(x.z, values.z, shares),
                    merge_values(x.w, values.w, shares));
  }
  uint16_t* const to = prefill::output_of(c, m.row, head);
  const float share = 1.0f / total.sum;
  if (4 * quad >= c.layout.head_dim) return;
  const uint32_t low = act_bits(c.out_act, x.x * share, x.y * share), high = act_bits(c.out_act, x.z * share, x.w * share);
  *reinterpret_cast<uint2*>(to + 4 * quad) = make_uint2(low, high);
}

template <class T, int kDim>
cudaError_t run(const Params& p, const Stream& on) {
  typedef latent::Prompt<T, kDim> S;
  cudaError_t error = reserve_shared(prefill_latent<S>, S::kBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(p.args.item_count), static_cast<unsigned>(tiles_of(p.args.common.heads)));
  error = launch(on, grid, dim3(S::kThreads), S::kBytes, prefill_latent<S>, p);
  if (error != cudaSuccess || p.args.merge_count == 0) return error;
  const int64_t quads = static_cast<int64_t>(p.args.common.heads) * (S::kValue / 4);
  const dim3 merges(static_cast<unsigned>(p.args.merge_count), static_cast<unsigned>((quads + kMergeThreads - 1) / kMergeThreads));
  return launch(on, merges, dim3(kMergeThreads), 0, merge_latent_pieces<S::kValue>, p);
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int64_t value_bytes(int32_t capacity, int32_t heads, int32_t padded_dim) {
  return aligned(static_cast<int64_t>(capacity) * heads * latent_value_dims(padded_dim) * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

int32_t latent_shared_bytes(int32_t padded_dim) {
  const auto most = [](auto prompt, auto decode) {
    return std::max(decltype(prompt)::kBytes, decltype(decode)::kBytes + latent::kOwnShared);
  };
  return padded_dim == kMostLatentRow ? most(latent::Prompt<__half, kMostLatentRow>{}, latent::ManyHeads<__half, kMostLatentRow>{})
                                      : most(latent::Prompt<__half, 64>{}, latent::ManyHeads<__half, 64>{});
}

int32_t prefill_latent_tile_rows(int32_t heads) { return kTileRows / heads_a_tile(heads); }

int32_t prefill_latent_columns(int32_t heads) { return tiles_of(heads); }

int64_t prefill_latent_bytes(int32_t capacity, int32_t heads, int32_t padded_dim) {
  return value_bytes(capacity, heads, padded_dim) +
         aligned(static_cast<int64_t>(capacity) * heads * static_cast<int64_t>(sizeof(float2)));
}

cudaError_t launch_prefill_latent(const PrefillAttentionArgs& args, const Stream& on) {
  const AttentionArgs& c = args.common;
  if (!latent_args_valid(c) || args.item_count < 0 || args.merge_count < 0 || args.capacity < 0 || args.sm_count < 1)
    return cudaErrorInvalidValue;
  if (args.item_count == 0) return cudaSuccess;
  Params p;
  p.args = args;
  p.scale_log2 = ScoreRule(c.scale, 0).scale_log2;
  p.tile_heads = heads_a_tile(c.heads);
  p.values = static_cast<float*>(args.workspace);
  p.parts = reinterpret_cast<float2*>(static_cast<uint8_t*>(args.workspace) + value_bytes(args.capacity, c.heads, c.layout.padded_dim));
  return with_act(c.layout.act, [&](auto element) {
    typedef decltype(element) T;
    return c.layout.padded_dim == kMostLatentRow ? run<T, kMostLatentRow>(p, on) : run<T, 64>(p, on);
  });
}

}  // namespace mr::cuda
