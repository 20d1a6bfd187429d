// The launch of prefill attention: which kernels compute the items, and the merges of their pieces.
#include <algorithm>

#include "kernels/attention/prefill_merge.cuh"
#include "kernels/attention/prefill_mma.h"
#include "kernels/attention/prefill_tile.cuh"
#include "kernels/attention/prefill_wgmma.h"

namespace mr::cuda {
namespace {

using namespace prefill;

cudaError_t run_mma(const Params& p, const Stream& on) {
  int most = 0;
  const cudaError_t error = shared_limit(&most);
  if (error != cudaSuccess) return error;
  return with_act(p.args.common.layout.act, [&](auto element) {
    typedef decltype(element) T;
    return p.args.common.layout.kv == Kv::kF8 ? launch_mma<T, true>(p, most, on) : launch_mma<T, false>(p, most, on);
  });
}

cudaError_t run_merges(const Params& p, const Stream& on) {
  const int64_t quads = static_cast<int64_t>(p.args.common.heads) * (p.args.common.layout.padded_dim / 4);
  const dim3 grid(static_cast<unsigned>(p.args.merge_count), static_cast<unsigned>((quads + kMergeThreads - 1) / kMergeThreads));
  return launch(on, grid, dim3(kMergeThreads), 0, merge_pieces, p);
}

// Query heads of one kv head in one tile: all of them up to 16.
int32_t heads_a_tile(int32_t group) { return group < 16 ? group : 16; }
int32_t tiles_a_group(int32_t group) { return (group + heads_a_tile(group) - 1) / heads_a_tile(group); }

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }
// For the wider of the kernels that compute such heads.
int64_t value_bytes(int32_t capacity, int32_t heads, int32_t padded_dim) {
  const int32_t dims = std::max(padded_dim, wgmma_width(padded_dim));
  return aligned(static_cast<int64_t>(capacity) * heads * dims * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

int32_t prefill_tile_rows(int32_t, int32_t heads, int32_t kv_heads) {
  return kTileRows / heads_a_tile(heads / kv_heads);
}

int32_t prefill_columns(int32_t heads, int32_t kv_heads) { return kv_heads * tiles_a_group(heads / kv_heads); }

int64_t prefill_attention_bytes(int32_t capacity, int32_t heads, int32_t head_dim) {
  const int32_t padded_dim = pad_head_dim(head_dim);
  return value_bytes(capacity, heads, padded_dim) +
         aligned(static_cast<int64_t>(capacity) * heads * halves_of(padded_dim) * static_cast<int64_t>(sizeof(float2)));
}

cudaError_t prefill_wide_blocks(const KvLayout& layout, int64_t most, int32_t* blocks) {
  constexpr int64_t kMostBytes = int64_t{512} << 20;
  bool wgmma = false;
  const cudaError_t error = wgmma_supports(layout, &wgmma);
  *blocks = wgmma && layout.kv == Kv::kF8 ? static_cast<int32_t>(std::min(most, kMostBytes / (2 * WidePlanes::plane_bytes(layout)))) : 0;
  return error;
}

int64_t prefill_wide_bytes(const KvLayout& layout, int32_t blocks) {
  return blocks * 2 * WidePlanes::plane_bytes(layout);
}

int32_t attention_shared_bytes(int32_t head_dim) {
  int32_t bytes = 0;
  (void)with_head_dim(pad_head_dim(head_dim), [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    bytes = std::max(kSharedBytes<kDim, 1, 1, false>, kSharedBytes<kDim, 1, 1, true>);
    return cudaSuccess;
  });
  return bytes;
}

cudaError_t launch_prefill_attention(const PrefillAttentionArgs& args, const Stream& on) {
  const AttentionArgs& c = args.common;
  if (!attention_supports(c.layout.head_dim, c.heads, c.layout.kv_heads) || args.item_count < 0 || args.merge_count < 0 ||
      args.capacity < 0 || args.sm_count < 1 || !(c.scale > 0) || c.cap < 0 || c.window < 0 ||
      c.layout.padded_dim != pad_head_dim(c.layout.head_dim) ||
      (c.layout.block_size != 16 && c.layout.block_size != 32))
    return cudaErrorInvalidValue;
  if (args.item_count == 0) return cudaSuccess;
  Params p;
  p.args = args;
  const ScoreRule rule(c.scale, c.cap);
  p.scale_log2 = rule.scale_log2;
  p.cap_scale = rule.cap_scale;
  p.group = c.heads / c.layout.kv_heads;
  p.tile_heads = heads_a_tile(p.group);
  p.tiles = tiles_a_group(p.group);
  p.tile_share = (1 << 16) / p.tile_heads + 1;
  bool wgmma = false;
  cudaError_t error = wgmma_supports(c.layout, &wgmma);
  if (error != cudaSuccess) return error;
  p.slot_dims = wgmma ? wgmma_width(c.layout.padded_dim) : c.layout.padded_dim;
  p.values = static_cast<float*>(args.workspace);
  p.parts = reinterpret_cast<float2*>(static_cast<uint8_t*>(args.workspace) +
                                      value_bytes(args.capacity, c.heads, c.layout.padded_dim));
  error = wgmma ? launch_wgmma(p, on) : run_mma(p, on);
  if (error != cudaSuccess || args.merge_count == 0) return error;
  return run_merges(p, on);
}

}  // namespace mr::cuda
