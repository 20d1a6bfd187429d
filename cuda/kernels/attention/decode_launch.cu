// The launch of decode attention and its workspace. The kernels are in decode_kernel.cuh.
#include "kernels/attention/decode_plan.cuh"
#include "kernels/attention/mma.cuh"

namespace mr::cuda {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

bool attention_supports(int32_t head_dim, int32_t heads, int32_t kv_heads) {
  return pad_head_dim(head_dim) != 0 && heads >= 1 && kv_heads >= 1 && heads % kv_heads == 0;
}

int32_t decode_attention_capacity(int32_t rows, int32_t positions) {
  const int64_t chunks = (static_cast<int64_t>(positions) + kAttentionChunk - 1) / kAttentionChunk;
  const int64_t groups = (chunks + kChunksAGroup - 1) / kChunksAGroup;
  // Up to this many units, every chunk is a unit. A unit's part is a float for every dim of every query head, so these
  // are 32 MiB for 32 heads of 128 dims. More chunks than these make more than 128 groups.
  constexpr int64_t kSingle = 2048;
  return static_cast<int32_t>(std::max(rows * groups, std::min(rows * chunks, kSingle)));
}

int64_t decode_attention_bytes(int32_t rows, int32_t capacity, int32_t heads, int32_t head_dim) {
  const int64_t parts = static_cast<int64_t>(capacity) * heads;
  return aligned(parts * pad_head_dim(head_dim) * 4) + aligned(parts * 8) + aligned(parts * 4) +
         aligned(static_cast<int64_t>(rows) * heads * 4);
}

cudaError_t launch_decode_attention(const DecodeAttentionArgs& args, const Stream& on) {
  const AttentionArgs& c = args.common;
  if (!attention_supports(c.layout.head_dim, c.heads, c.layout.kv_heads) || args.count < 0 || args.count > kMaxDecodeRows ||
      args.plan.capacity < 1 || args.sm_count < 1 || !(c.scale > 0) || c.cap < 0 || c.window < 0 ||
      c.layout.padded_dim != pad_head_dim(c.layout.head_dim) ||
      (c.layout.block_size != 16 && c.layout.block_size != 32))
    return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  decode::Params p;
  p.args = args;
  const ScoreRule rule(c.scale, c.cap);
  p.scale_log2 = rule.scale_log2;
  p.cap_scale = rule.cap_scale;
  p.group = c.heads / c.layout.kv_heads;
  p.tile_heads = p.tiles = 0;  // set by run_together
  const int64_t parts = static_cast<int64_t>(args.plan.capacity) * c.heads;
  uint8_t* workspace = static_cast<uint8_t*>(args.workspace);
  p.out = reinterpret_cast<float*>(workspace);
  workspace += aligned(parts * c.layout.padded_dim * 4);
  p.stat = reinterpret_cast<float2*>(workspace);
  workspace += aligned(parts * 8);
  p.group_done = reinterpret_cast<int32_t*>(workspace);
  workspace += aligned(parts * 4);
  p.row_done = reinterpret_cast<int32_t*>(workspace);
  return with_act(c.layout.act, [&](auto element) {
    typedef decltype(element) T;
    return c.layout.kv == Kv::kF8 ? decode::launch_cache<T, true>(p, on) : decode::launch_cache<T, false>(p, on);
  });
}

}  // namespace mr::cuda
