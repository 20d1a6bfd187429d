// Decode attention: every row for itself; the query heads of one kv head share the keys they read (GQA).
//
// Work      A unit is `span` chunks of kAttentionChunk keys of one row. Blocks walk over the items (unit, kv head, tile of
//           up to 8 query heads); how many blocks there are decides nothing else.
// Products  Keys are the 16 rows of a fragment and query heads its 8 columns: scores^T = keys * queries^T, and out^T +=
//           values^T * weights^T, whose weights are transposed in registers.
// Chunk     Warp w takes the keys [16 (w + kWarps s), +16) of the chunk, s ascending, and keeps its own softmax; the four
//           warps are merged in ascending order.
// Merge     Chunks of one group (kChunksAGroup) are merged in ascending order, then groups are. The last block to finish
//           a unit of a row and kv head merges them all. Where a unit is a whole group the same merge runs in registers.
// Memory    A warp has room of its own for 16 keys and 16 values. The next keys are asked for as soon as the scores are
//           computed, the next values as soon as the last are weighed, also across the borders of chunks and items: loads
//           never wait for a merge. Keys beyond the row's position come as zeros, so that what lies there has no influence.
// 8 bits    Elements come as they are; each lane widens what it has asked for into the activation type, exactly, keys and
//           then values in one room. A score is (product * key's scale) * the scores' scale; a weight times the value's scale
//           is rounded to the activation type; sums are of weights without it.
// Plan, positions, tables and block ids are written by kernels before the last one of the stream (see launch.h), so they
// are read before the dependency wait. A padding row (slot -1) has no units; its output is zeroed.
// Test bound: 2^-7 (f16: 2^-10) of the values' size against the double reference.
#include <algorithm>

#include "kernels/attention_decode_load.cuh"
#include "kernels/attention_decode_merge.cuh"

namespace mr::cuda {
namespace {

using namespace decode;

// Floats of a head in the merge's memory: the four heads that a warp writes at once lie in different banks.
template <int kDim>
constexpr int kMergedRow = kDim + 4;
template <int kDim>
constexpr int kBlocksAnSm = kDim <= 128 ? 4 : 2;

// scores (16 keys x 8 heads) for the 16 keys that begin at `keys` in shared memory.
template <class T, int kDim>
__device__ __forceinline__ void score_keys(const uint32_t (&q)[kDim / 16][2], uint32_t keys, int lane, float (&scores)[4]) {
  float odd[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4; ++i) scores[i] = 0;
  const uint32_t address = keys + lane % 16 * kSharedRow<kDim> + lane / 16 * 16;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t a[4];
    load_matrices(a, address + k * 32);
    mma16816<T>(k % 2 == 0 ? scores : odd, a, q[k][0], q[k][1]);  // two chains: half the latency
  }
  for (int i = 0; i < 4; ++i) scores[i] += odd[i];
}

// out (kDim x 8 heads) += values^T (kDim x 16) * weights (16 keys x 8 heads).
template <class T, int kDim>
__device__ __forceinline__ void weigh_values(uint32_t w0, uint32_t w1, uint32_t values, int lane, float (&out)[kDim / 16][4]) {
  const uint32_t address = values + (lane / 16 * 8 + lane % 8) * kSharedRow<kDim> + lane / 8 % 2 * 16;
#pragma unroll
  for (int m = 0; m < kDim / 16; ++m) {
    uint32_t a[4];
    load_matrices_transposed(a, address + m * 32);
    mma16816<T>(out[m], a, w0, w1);
  }
}

__device__ __forceinline__ float column_max(float x) {  // over the lanes of equal t
  for (int lane = 4; lane < 32; lane *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}
__device__ __forceinline__ float column_sum(float x) {
  for (int lane = 4; lane < 32; lane *= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

template <class T, int kDim, bool kF8>
__global__ void __launch_bounds__(kThreads, kBlocksAnSm<kDim>) decode_attention(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ float2 stats[kWarps][kTileHeads], shares[kTileHeads], totals[kTileHeads];
  __shared__ int32_t first[kMaxDecodeRows + 1];
  __shared__ bool last;
  const DecodeAttentionArgs& a = p.args;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (int32_t i = threadIdx.x; i <= a.count; i += kThreads) first[i] = a.plan.first[i];
  const int32_t span = *a.plan.span, columns = a.common.layout.kv_heads * p.tiles;
  __syncthreads();
  const Plan plan{p, first, span, columns, first[a.count] * columns};
  // Where loads go, and where the activation type is: the same, or behind keys and values in 8 bits and their scales.
  constexpr int kLoaded = kF8 ? kF8Bytes<kDim> : kSideBytes<kDim>;
  const uint32_t keys = shared_address(memory) + warp * kWarpBytes<kDim, kF8>, values = keys + kLoaded;
  const uint32_t scales = values + kLoaded;
  const uint32_t wide_keys = kF8 ? scales + 2 * kScaleBytes : keys, wide_values = kF8 ? wide_keys : values;
  // (kWarps, tile_heads, kMergedRow) of a chunk, and (tile_heads, kMergedRow) of the chunks so far.
  float* const merged = reinterpret_cast<float*>(memory + kRoomBytes<kDim, kF8>);
  const int warp_merged = p.tile_heads * kMergedRow<kDim>;
  float* const sums = merged + kWarps * warp_merged;
  Loader<T, kDim, kF8> loader(plan, blockIdx.x);
  Item item = loader.item;
  grid_wait();
  grid_trigger();
  const int32_t width = a.common.heads * a.common.layout.head_dim;
  for (int32_t r = blockIdx.x; r < a.count; r += gridDim.x)
    if (first[r + 1] == first[r])
      for (int32_t i = threadIdx.x; i < width; i += kThreads)
        store_act(a.common.out_act, a.common.out, r * a.common.out_stride + i, 0.0f);
  if (static_cast<int32_t>(blockIdx.x) >= plan.items) return;

  loader.keys(keys, scales, warp, lane);
  loader.values(values, lane);
  uint32_t q[kDim / 16][2];
  load_queries<T, kDim>(plan, item, q, lane);
  for (int32_t index = blockIdx.x; index < plan.items; index += gridDim.x) {
    Part total{0, 0};  // of head threadIdx.x, in the first kTileHeads threads
    for (int32_t chunk = item.chunk0; chunk < item.chunk1; ++chunk) {
      float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};  // of heads 2t and 2t + 1; sums of this lane's keys
      float out[kDim / 16][4];
#pragma unroll
      for (int m = 0; m < kDim / 16; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][i] = 0;
#pragma unroll 1
      for (int s = 0; s < kSteps; ++s) {
        const int32_t key = chunk * kAttentionChunk + 16 * (warp + kWarps * s);
        const bool some = key <= item.position;
        uint32_t weights[2] = {0, 0};
        copies_wait<1>();  // all but the last group, which is of values
        if constexpr (kF8)
          if (some) widen_side<T, kDim>(keys, wide_keys, lane);
        __syncwarp();
        float scores[4];
        [[maybe_unused]] float key_scale[2], value_scale[2];  // of keys g and g + 8
        if (some) {
          score_keys<T, kDim>(q, wide_keys, lane, scores);
          if constexpr (kF8)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              key_scale[r] = load_shared_float(scales + (g + 8 * r) * 4) * WideF8<T>::kFactor;
              value_scale[r] = load_shared_float(scales + kScaleBytes + (g + 8 * r) * 4) * WideF8<T>::kFactor;
            }
        }
        __syncwarp();
        loader.keys(keys, scales, warp, lane);
        if (some) {
          if constexpr (kF8)
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[i] *= key_scale[i / 2];
#pragma unroll
          for (int i = 0; i < 4; ++i)  // rows g, g + 8; columns 2t, 2t + 1
            scores[i] = key + g + 8 * (i / 2) <= item.position ? scores[i] * p.scale_log2 : -INFINITY;
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float greatest = fmaxf(top[c], column_max(fmaxf(scores[c], scores[c + 2])));
            const float decay = exp2_approx(top[c] - greatest);
            scores[c] = exp2_approx(scores[c] - greatest);
            scores[c + 2] = exp2_approx(scores[c + 2] - greatest);
            sum[c] = fmaf(sum[c], decay, scores[c] + scores[c + 2]);
            top[c] = greatest;
#pragma unroll
            for (int m = 0; m < kDim / 16; ++m) {
              out[m][c] *= decay;
              out[m][c + 2] *= decay;
            }
          }
          if constexpr (kF8)
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[i] *= value_scale[i / 2];
          weights[0] = transpose(ActOps<T>::pack(scores[0], scores[1]));
          weights[1] = transpose(ActOps<T>::pack(scores[2], scores[3]));
        }
        copies_wait<1>();  // all but the last group, which is of keys
        if constexpr (kF8)
          if (some) widen_side<T, kDim>(values, wide_values, lane);
        __syncwarp();
        if (some) weigh_values<T, kDim>(weights[0], weights[1], wide_values, lane, out);
        __syncwarp();
        loader.values(values, lane);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        sum[c] = column_sum(sum[c]);
        if (g == 0) stats[warp][2 * t + c] = make_float2(top[c], sum[c]);
      }
      __syncthreads();  // the stats are there; nobody reads the merge's memory any more
      const bool fresh = chunk == item.chunk0;
      if (threadIdx.x < kTileHeads) {
        const int h = threadIdx.x;
        Part all{stats[0][h].x, 0};
        for (int w = 1; w < kWarps; ++w) all.top = fmaxf(all.top, stats[w][h].x);
        for (int w = 0; w < kWarps; ++w) all.sum = fmaf(stats[w][h].y, exp2_approx(stats[w][h].x - all.top), all.sum);
        if (fresh) total = all;
        else shares[h] = merge(total, all);
        totals[h] = make_float2(total.top, total.sum);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int h = 2 * t + c;
        float greatest = stats[0][h].x;
        for (int w = 1; w < kWarps; ++w) greatest = fmaxf(greatest, stats[w][h].x);
        const float share = exp2_approx(top[c] - greatest);
        float* const own = merged + warp * warp_merged + h * kMergedRow<kDim> + g;
        if (h < item.heads)
#pragma unroll
          for (int m = 0; m < kDim / 16; ++m) {
            own[16 * m] = out[m][c] * share;
            own[16 * m + 8] = out[m][c + 2] * share;
          }
      }
      __syncthreads();
      // A thread owns the elements (head, dim) threadIdx.x, threadIdx.x + kThreads, ... of the tile.
#pragma unroll 1
      for (int e = threadIdx.x; e < item.heads * kDim; e += kThreads) {
        const int at = e / kDim * kMergedRow<kDim> + e % kDim;
        float x = merged[at];
        for (int w = 1; w < kWarps; ++w) x += merged[w * warp_merged + at];
        sums[at] = fresh ? x : merge_values(sums[at], x, shares[e / kDim]);
      }
    }
    const int32_t units = first[item.row + 1] - first[item.row];
    const int64_t at = static_cast<int64_t>(item.unit) * a.common.heads + item.head0;
#pragma unroll 1
    for (int e = threadIdx.x; e < item.heads * kDim; e += kThreads) {
      const float x = sums[e / kDim * kMergedRow<kDim> + e % kDim];
      if (units == 1) finish<kDim>(plan, item, e, x, totals[e / kDim].y);
      else __stcg(p.out + at * kDim + e, x);
    }
    if (units > 1) {
      if (static_cast<int32_t>(threadIdx.x) < item.heads) __stcg(p.stat + at + threadIdx.x, make_float2(total.top, total.sum));
      __syncthreads();
      if (threadIdx.x == 0) {
        int32_t* const done = p.done + item.row * columns + item.column;
        last = count_done(done) == units - 1;
        if (last) *done = 0;
      }
      __syncthreads();
      if (last) merge_units<kDim>(plan, item, units);
    }
    if (index + static_cast<int32_t>(gridDim.x) < plan.items) {
      item = Item(plan, index + gridDim.x);
      load_queries<T, kDim>(plan, item, q, lane);
    }
  }
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

template <class T, int kDim, bool kF8>
cudaError_t run(Params p, const Stream& on) {
  int most = 0, an_sm = 0;
  cudaError_t error = shared_limit(&most);
  if (error == cudaSuccess) error = shared_an_sm(&an_sm);
  if (error != cudaSuccess) return error;
  // Fewer heads a tile where a block may not have the memory: heads never meet, so no bits change.
  const auto bytes_of = [](int32_t heads) { return kRoomBytes<kDim, kF8> + (kWarps + 1) * heads * kMergedRow<kDim> * 4; };
  int32_t most_heads = kTileHeads;
  while (most_heads > 1 && bytes_of(most_heads) > most) --most_heads;
  p.tile_heads = std::min(p.group, most_heads);
  p.tiles = (p.group + p.tile_heads - 1) / p.tile_heads;
  const int bytes = bytes_of(p.tile_heads);
  // What the largest tile may have: the limit belongs to the kernel, and runners of models with other groups launch it from
  // other threads.
  error = reserve_shared(decode_attention<T, kDim, kF8>, bytes_of(most_heads));
  if (error != cudaSuccess) return error;
  const DecodeAttentionArgs& a = p.args;
  const int64_t items = static_cast<int64_t>(a.plan.capacity) * a.common.layout.kv_heads * p.tiles;
  // As many blocks as run at once: a block's items are spread over the whole launch.
  constexpr int kOwnShared = 4096;  // static, and what the system takes of each block
  const int resident = std::max(1, std::min(kBlocksAnSm<kDim>, an_sm / (bytes + kOwnShared)));
  const int64_t blocks = std::min<int64_t>(items, static_cast<int64_t>(a.sm_count) * resident);
  return launch(on, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), static_cast<size_t>(bytes),
                decode_attention<T, kDim, kF8>, p);
}

}  // namespace

bool attention_supports(int32_t head_dim, int32_t heads, int32_t kv_heads) {
  return pad_head_dim(head_dim) != 0 && heads >= 1 && kv_heads >= 1 && heads % kv_heads == 0;
}

int32_t decode_attention_capacity(int32_t rows, int32_t positions) {
  const int64_t chunks = (static_cast<int64_t>(positions) + kAttentionChunk - 1) / kAttentionChunk;
  const int64_t groups = (chunks + kChunksAGroup - 1) / kChunksAGroup;
  constexpr int64_t kSingle = 2048;  // units up to which chunks are divided one by one
  return static_cast<int32_t>(std::max(rows * groups, std::min(rows * chunks, kSingle)));
}

int64_t decode_attention_bytes(int32_t rows, int32_t capacity, int32_t heads, int32_t head_dim) {
  const int64_t parts = static_cast<int64_t>(capacity) * heads;
  return aligned(parts * pad_head_dim(head_dim) * 4) + aligned(parts * 8) + aligned(static_cast<int64_t>(rows) * heads * 4);
}

cudaError_t launch_decode_attention(const DecodeAttentionArgs& args, const Stream& on) {
  const AttentionArgs& c = args.common;
  if (!attention_supports(c.layout.head_dim, c.heads, c.layout.kv_heads) || args.count < 0 || args.count > kMaxDecodeRows ||
      args.plan.capacity < 1 || args.sm_count < 1 || !(c.scale > 0) || c.layout.padded_dim != pad_head_dim(c.layout.head_dim) ||
      (c.layout.block_size != 16 && c.layout.block_size != 32))
    return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  Params p;
  p.args = args;
  p.scale_log2 = c.scale * 1.44269504f;
  p.group = c.heads / c.layout.kv_heads;
  p.tile_heads = p.tiles = 0;  // set by run
  const int64_t parts = static_cast<int64_t>(args.plan.capacity) * c.heads;
  uint8_t* const workspace = static_cast<uint8_t*>(args.workspace);
  p.out = reinterpret_cast<float*>(workspace);
  p.stat = reinterpret_cast<float2*>(workspace + aligned(parts * c.layout.padded_dim * 4));
  p.done = reinterpret_cast<int32_t*>(workspace + aligned(parts * c.layout.padded_dim * 4) + aligned(parts * 8));
  return with_act(c.layout.act, [&](auto element) {
    return with_head_dim(c.layout.padded_dim, [&](auto dim) {
      typedef decltype(element) T;
      constexpr int kDim = decltype(dim)::value;
      return c.layout.kv == Kv::kF8 ? run<T, kDim, true>(p, on) : run<T, kDim, false>(p, on);
    });
  });
}

}  // namespace mr::cuda
