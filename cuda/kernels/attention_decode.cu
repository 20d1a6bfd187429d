// Decode attention: every row for itself; the query heads of one kv head share the keys they read (GQA).
//
// Work      A unit is `span` chunks of kAttentionChunk keys of one row. Blocks walk over the items (unit, kv head, tile of
//           up to 16 query heads); how many blocks there are decides nothing else.
// Chunk     Warp w takes the keys [16 (w + kWarps s), +16) of the chunk, s ascending, and keeps its own softmax; the four
//           warps are merged in ascending order.
// Merge     Chunks of one group (kChunksAGroup) are merged in ascending order, then groups are. The last block to finish
//           a unit of a row and kv head merges them all. Where a unit is a whole group the same merge runs in registers.
// Memory    Keys and values are copied asynchronously into memory that belongs to one warp; keys beyond the row's position
//           come as zeros, so that what lies there has no influence.
// A padding row (slot -1) has no units; its output is zeroed by the blocks of the first rows' walk.
// Test bound: 2^-8 (f16: 2^-10) of the largest value's size against the double reference.
#include <algorithm>

#include "kernels/attention.h"
#include "kernels/attention_mma.cuh"

namespace mr::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kSteps = kAttentionChunk / (16 * kWarps);  // of one warp in one chunk
constexpr int kBlocksAnSm = 3;

template <int kDim>
constexpr int kStages = kDim <= 128 ? 2 : 1;
template <int kDim>
constexpr int kStageBytes = 2 * 16 * kSharedRow<kDim>;  // keys and values of 16 positions

struct Params {
  DecodeAttentionArgs args;
  float scale_log2;
  int32_t group, tile_heads, tiles;  // query heads a kv head, a tile; tiles a kv head
  // Workspace: partial results by unit and query head, and finished units by row, kv head and tile.
  float* out;    // (capacity, heads, padded_dim): sum of weighted values
  float2* stat;  // (capacity, heads): greatest score (log2), sum of weights
  int32_t* done; // (rows, kv_heads * tiles)
};

// Softmax of part of a row's keys, one query head: merged with the one behind it.
struct Part {
  float top, sum;
};
__device__ __forceinline__ void merge(Part& into, const Part& next, float* into_share, float* next_share) {
  const float top = fmaxf(into.top, next.top);
  *into_share = exp2_approx(into.top - top);
  *next_share = exp2_approx(next.top - top);
  into.sum = fmaf(next.sum, *next_share, into.sum * *into_share);
  into.top = top;
}

// Elements (head, dim) of a tile that a thread owns in merges.
template <int kDim>
constexpr int kOwned = 16 * kDim / kThreads;

template <class T, int kDim>
struct Item {
  const Params& p;
  int32_t row, position, head0, heads, kv_head, counter;  // heads: query heads [head0, head0 + heads)
  int32_t unit, chunk0, chunk1;                           // unit of the step; chunks [chunk0, chunk1)
  int32_t units, first_unit;                              // of the row

  // Copies the 16 positions from `key` on into a stage.
  __device__ __forceinline__ void fetch(uint32_t stage, int32_t key, int lane) const {
    const DecodeAttentionArgs& a = p.args;
    const KvLayout& l = a.common.layout;
    if (key > position) return;
    const int64_t block = a.common.rows.block_ids[a.common.rows.table[row] + key / l.block_size];
    const int64_t at = block * l.block_elements() + kv_head * l.head_elements() +
                       static_cast<int64_t>(key % l.block_size) * kDim;
    const T* const keys = static_cast<const T*>(a.common.keys) + at;
    const T* const values = static_cast<const T*>(a.common.values) + at;
    constexpr int kPieces = kDim / 8;  // of 16 bytes, a row
#pragma unroll
    for (int i = lane; i < 16 * kPieces; i += 32) {
      const int32_t r = i / kPieces, c = i % kPieces;
      const bool valid = key + r <= position;
      const uint32_t to = stage + r * kSharedRow<kDim> + c * 16;
      copy_async(to, keys + i * 8, valid);
      copy_async(to + 16 * kSharedRow<kDim>, values + i * 8, valid);
    }
  }

  // The query heads as A fragments; rows beyond the tile's heads are zero.
  __device__ __forceinline__ void load_queries(uint32_t (&q)[kDim / 16][4], int lane) const {
    const T* const base = static_cast<const T*>(p.args.common.q) + row * p.args.common.q_stride + static_cast<int64_t>(head0) * kDim;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = g + 8 * (i % 2), c = 16 * k + 2 * t + 8 * (i / 2);
        q[k][i] = r < heads ? *reinterpret_cast<const uint32_t*>(base + r * kDim + c) : 0u;
      }
  }

  // This warp's keys of one chunk. The stages are filled for step 0 (and 1 where there are two); `last` is synchronised.
  __device__ __forceinline__ void warp_chunk(int32_t base, uint32_t memory, const uint32_t (&q)[kDim / 16][4], int warp,
                                             int lane, RowSoftmax (&row_softmax)[2], float (&out)[kDim / 8][4]) const {
    const int t = lane % 4;
    for (int r = 0; r < 2; ++r) row_softmax[r] = RowSoftmax{};
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] = 0;
#pragma unroll
    for (int s = 0; s < kStages<kDim>; ++s) {
      fetch(memory + s * kStageBytes<kDim>, base + 16 * (warp + kWarps * s), lane);
      copy_commit();
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint32_t stage = memory + s % kStages<kDim> * kStageBytes<kDim>;
      const int32_t key = base + 16 * (warp + kWarps * s);
      copy_wait<kStages<kDim> - 1>();
      __syncwarp();
      if (key <= position) {
        float scores[2][4];
        score_keys<T, kDim>(q, stage, lane, scores);
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            scores[j][i] = key + 8 * j + 2 * t + i % 2 <= position ? scores[j][i] * p.scale_log2 : -INFINITY;
        weigh_scores(scores, row_softmax, out);
        uint32_t weights[4];
        pack_weights<T>(scores[0], scores[1], weights);
        weigh_values<T, kDim>(weights, stage + 16 * kSharedRow<kDim>, lane, out);
      }
      __syncwarp();
      if (s + kStages<kDim> < kSteps) fetch(stage, base + 16 * (warp + kWarps * (s + kStages<kDim>)), lane);
      copy_commit();
    }
    for (int r = 0; r < 2; ++r) row_softmax[r].sum = quad_sum(row_softmax[r].sum);
  }

  // Merges the warps of one chunk through shared memory; thread i gets elements i, i + kThreads, ... of the tile, and
  // part[h] the softmax of head h. `memory` is the block's whole shared memory.
  __device__ __forceinline__ void merge_warps(float* memory, float2 (*stats)[16], int warp, int lane,
                                              const RowSoftmax (&row_softmax)[2], const float (&out)[kDim / 8][4],
                                              float (&element)[kOwned<kDim>], Part* part) const {
    const int g = lane / 4, t = lane % 4;
    if (t == 0)
      for (int r = 0; r < 2; ++r) stats[warp][g + 8 * r] = make_float2(row_softmax[r].top, row_softmax[r].sum);
    __syncthreads();
    float share[2];
    for (int r = 0; r < 2; ++r) {
      float top = stats[0][g + 8 * r].x;
      for (int w = 1; w < kWarps; ++w) top = fmaxf(top, stats[w][g + 8 * r].x);
      share[r] = exp2_approx(row_softmax[r].top - top);
    }
    float* const own = memory + warp * 16 * kDim;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (g + 8 * r < heads)
          *reinterpret_cast<float2*>(own + (g + 8 * r) * kDim + 8 * n + 2 * t) =
              make_float2(out[n][2 * r] * share[r], out[n][2 * r + 1] * share[r]);
    if (threadIdx.x < 16) {
      const int h = threadIdx.x;
      Part all{stats[0][h].x, 0};
      for (int w = 1; w < kWarps; ++w) all.top = fmaxf(all.top, stats[w][h].x);
      for (int w = 0; w < kWarps; ++w) all.sum = fmaf(stats[w][h].y, exp2_approx(stats[w][h].x - all.top), all.sum);
      part[h] = all;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwned<kDim>; ++i) {
      const int e = threadIdx.x + i * kThreads;
      if (e >= heads * kDim) break;
      element[i] = memory[e];
      for (int w = 1; w < kWarps; ++w) element[i] += memory[w * 16 * kDim + e];
    }
  }

  // out of the row: what was merged, divided by the sum of weights.
  __device__ __forceinline__ void finish(int e, float x, float sum) const {
    const int32_t dim = p.args.common.layout.head_dim, d = e % kDim;
    T* const out = static_cast<T*>(p.args.common.out) + row * p.args.common.out_stride;
    if (d < dim) out[static_cast<int64_t>(head0 + e / kDim) * dim + d] = ActOps<T>::from(x / sum);
  }

  // All units of the row in order: groups of chunks, then the groups.
  __device__ __forceinline__ void merge_units(int32_t span) const {
    const int32_t all_heads = p.args.common.heads, group_units = kChunksAGroup / span;
    for (int e = threadIdx.x; e < heads * kDim; e += kThreads) {
      const int64_t head = head0 + e / kDim, d = e % kDim;
      const auto part_of = [&](int32_t u) {
        const float2 stat = __ldcg(p.stat + static_cast<int64_t>(first_unit + u) * all_heads + head);
        return Part{stat.x, stat.y};
      };
      const auto value_of = [&](int32_t u) {
        return __ldcg(p.out + (static_cast<int64_t>(first_unit + u) * all_heads + head) * kDim + d);
      };
      Part total{0, 0};
      float x = 0;
      for (int32_t begin = 0; begin < units; begin += group_units) {
        const int32_t end = min(units, begin + group_units);
        Part part = part_of(begin);
        float y = value_of(begin), into_share, next_share;
#pragma unroll 4
        for (int32_t u = begin + 1; u < end; ++u) {
          const float next = value_of(u);
          merge(part, part_of(u), &into_share, &next_share);
          y = fmaf(next, next_share, y * into_share);
        }
        if (begin == 0) {
          total = part;
          x = y;
        } else {
          merge(total, part, &into_share, &next_share);
          x = fmaf(y, next_share, x * into_share);
        }
      }
      finish(e, x, total.sum);
    }
  }
};

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, kDim <= 128 ? kBlocksAnSm : 1) decode_attention(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ float2 stats[kWarps][16];
  __shared__ Part part[16], total[16];
  __shared__ int32_t first[kMaxDecodeRows + 1];
  __shared__ bool last;
  const DecodeAttentionArgs& a = p.args;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  grid_wait();
  grid_trigger();
  for (int32_t i = threadIdx.x; i <= a.count; i += kThreads) first[i] = a.plan.first[i];
  const int32_t span = *a.plan.span;
  const uint32_t own = shared_address(memory) + warp * kStages<kDim> * kStageBytes<kDim>;
  __syncthreads();
  const int32_t width = a.common.heads * a.common.layout.head_dim;
  for (int32_t r = blockIdx.x; r < a.count; r += gridDim.x)
    if (first[r + 1] == first[r])
      for (int32_t i = threadIdx.x; i < width; i += kThreads)
        static_cast<T*>(a.common.out)[r * a.common.out_stride + i] = ActOps<T>::from(0.0f);

  const int32_t columns = a.common.layout.kv_heads * p.tiles;
  for (int32_t i = blockIdx.x; i < first[a.count] * columns; i += gridDim.x) {
    const int32_t unit = i / columns, column = i % columns;
    int32_t row = 0;
    for (int32_t step = 256; step > 0; step /= 2)
      if (row + step < a.count && first[row + step] <= unit) row += step;
    const int32_t tile = column % p.tiles, kv_head = column / p.tiles;
    const int32_t position = a.common.rows.position[row], chunks = position / kAttentionChunk + 1;
    const int32_t chunk0 = (unit - first[row]) * span, units = first[row + 1] - first[row];
    const Item<T, kDim> item{p, row, position, kv_head * p.group + tile * p.tile_heads,
                             min(p.tile_heads, p.group - tile * p.tile_heads), kv_head, row * columns + column,
                             unit, chunk0, min(chunks, chunk0 + span), units, first[row]};
    uint32_t q[kDim / 16][4];
    item.load_queries(q, lane);
    float element[kOwned<kDim>];
    for (int32_t chunk = item.chunk0; chunk < item.chunk1; ++chunk) {
      float mine[kOwned<kDim>];
      {
        RowSoftmax row_softmax[2];
        float out[kDim / 8][4];
        item.warp_chunk(chunk * kAttentionChunk, own, q, warp, lane, row_softmax, out);
        __syncthreads();  // every warp is done with its keys and values: the memory is used for the merge
        item.merge_warps(reinterpret_cast<float*>(memory), stats, warp, lane, row_softmax, out, mine, part);
      }
      const bool fresh = chunk == item.chunk0;
#pragma unroll
      for (int k = 0; k < kOwned<kDim>; ++k) {
        const int e = threadIdx.x + k * kThreads;
        if (e >= item.heads * kDim) break;
        float into_share = 0, next_share = 1;
        if (!fresh) {
          Part into = total[e / kDim];
          merge(into, part[e / kDim], &into_share, &next_share);
        }
        element[k] = fresh ? mine[k] : fmaf(mine[k], next_share, element[k] * into_share);
      }
      __syncthreads();  // total is read; the merge's memory is free again
      if (threadIdx.x < 16) {
        Part into = part[threadIdx.x];
        float into_share, next_share;
        if (!fresh) {
          into = total[threadIdx.x];
          merge(into, part[threadIdx.x], &into_share, &next_share);
        }
        total[threadIdx.x] = into;
      }
      __syncthreads();
    }
    if (units == 1) {
      for (int k = 0; k < kOwned<kDim>; ++k) {
        const int e = threadIdx.x + k * kThreads;
        if (e >= item.heads * kDim) break;
        item.finish(e, element[k], total[e / kDim].sum);
      }
      __syncthreads();
      continue;
    }
    const int64_t at = static_cast<int64_t>(unit) * a.common.heads + item.head0;
    for (int k = 0; k < kOwned<kDim>; ++k) {
      const int e = threadIdx.x + k * kThreads;
      if (e >= item.heads * kDim) break;
      __stcg(p.out + at * kDim + e, element[k]);
    }
    if (threadIdx.x < item.heads) __stcg(p.stat + at + threadIdx.x, make_float2(total[threadIdx.x].top, total[threadIdx.x].sum));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      last = atomicAdd(p.done + item.counter, 1) == units - 1;
      if (last) p.done[item.counter] = 0;
      __threadfence();
    }
    __syncthreads();
    if (last) item.merge_units(span);
    __syncthreads();
  }
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

template <class T, int kDim>
cudaError_t run(const Params& p, const Stream& on) {
  constexpr int kStaged = kWarps * kStages<kDim> * kStageBytes<kDim>, kMerged = kWarps * 16 * kDim * 4;
  constexpr int kBytes = kStaged > kMerged ? kStaged : kMerged;
  const cudaError_t error = cudaFuncSetAttribute(decode_attention<T, kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const DecodeAttentionArgs& a = p.args;
  const int64_t items = static_cast<int64_t>(a.plan.capacity) * a.common.layout.kv_heads * p.tiles;
  const int64_t blocks = std::min<int64_t>(items, static_cast<int64_t>(a.sm_count) * kBlocksAnSm);
  return launch(on, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), kBytes, decode_attention<T, kDim>, p);
}

}  // namespace

bool attention_supports(int32_t head_dim, int32_t heads, int32_t kv_heads) {
  return pad_head_dim(head_dim) != 0 && heads >= 1 && kv_heads >= 1 && heads % kv_heads == 0;
}

int32_t decode_attention_capacity(int32_t rows, int32_t positions) {
  const int64_t chunks = (static_cast<int64_t>(positions) + kAttentionChunk - 1) / kAttentionChunk;
  const int64_t groups = (chunks + kChunksAGroup - 1) / kChunksAGroup;
  constexpr int64_t kSingle = 4096;  // units up to which chunks are divided one by one
  return static_cast<int32_t>(std::max(rows * groups, std::min(rows * chunks, kSingle)));
}

int64_t decode_attention_bytes(int32_t rows, int32_t capacity, int32_t heads, int32_t head_dim) {
  const int64_t parts = static_cast<int64_t>(capacity) * heads;
  return aligned(parts * pad_head_dim(head_dim) * 4) + aligned(parts * 8) + aligned(static_cast<int64_t>(rows) * heads * 4);
}

cudaError_t launch_decode_attention(const DecodeAttentionArgs& args, const Stream& on) {
  const AttentionArgs& c = args.common;
  if (!attention_supports(c.layout.head_dim, c.heads, c.layout.kv_heads) || args.count < 0 || args.count > kMaxDecodeRows ||
      args.plan.capacity < 1 || args.sm_count < 1 || c.layout.padded_dim != pad_head_dim(c.layout.head_dim) || c.layout.block_size % 16 != 0)
    return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  Params p;
  p.args = args;
  p.scale_log2 = c.scale * 1.44269504f;
  p.group = c.heads / c.layout.kv_heads;
  p.tile_heads = heads_a_tile(p.group);
  p.tiles = (p.group + p.tile_heads - 1) / p.tile_heads;
  const int64_t parts = static_cast<int64_t>(args.plan.capacity) * c.heads;
  uint8_t* const workspace = static_cast<uint8_t*>(args.workspace);
  p.out = reinterpret_cast<float*>(workspace);
  p.stat = reinterpret_cast<float2*>(workspace + aligned(parts * c.layout.padded_dim * 4));
  p.done = reinterpret_cast<int32_t*>(workspace + aligned(parts * c.layout.padded_dim * 4) + aligned(parts * 8));
  return with_act(c.layout.act, [&](auto element) {
    return with_head_dim(c.layout.padded_dim, [&](auto dim) { return run<decltype(element), decltype(dim)::value>(p, on); });
  });
}

}  // namespace mr::cuda
