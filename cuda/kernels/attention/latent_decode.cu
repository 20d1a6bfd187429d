// Decode attention over a latent (attention/latent.h): every row by itself, up to 32 of its heads together.
//
// Work      As in decode attention: a unit is `span` chunks of kAttentionChunk keys of a row, for one tile of heads. Blocks take equal
//           shares of all units, and the number of blocks changes no bit.
// Tile      16 heads are one group of rows, whose four warps share its keys and dims. More than 16 heads are two groups of two warps each,
//           so that a key is read for 32 heads. Heads past the tile's are zeros.
// Chunk     Tiles of 32 keys, with a softmax for each chunk. A block walks over the chunks of an item without a pause.
// Merge     A chunk whose item begins its group is merged into the chunks before it. Their sums lie in the workspace, in L2, because
//           registers hold the sums of one chunk alone; a chunk of 256 keys reads 295 KB, and this adds 64 KB for 16 heads. Other parts
//           are merged by attention/decode_merge.cuh.
// Memory    16 heads: 93 KB, two blocks an SM, one tile ahead. 32 heads: 149 KB, two tiles ahead.
// The plan, positions and tables are read before the dependency wait, as in decode_kernel.cuh. Its test bound holds here too.
#include <algorithm>

#include "kernels/attention/decode_merge.cuh"
#include "kernels/attention/latent_tile.cuh"

namespace mr::cuda {
namespace {

using namespace decode;

constexpr int kAhead = 4;  // parts that a merge loads at once

// The sums of a chunk, and where this thread's elements of a row lie: pairs of dims, 8 apart.
template <class S>
struct Chunk {
  const Plan& plan;
  const Item& item;
  const latent::Block<S>& block;

  __device__ __forceinline__ float2* pairs_at(int32_t place, int r) const {
    return reinterpret_cast<float2*>(quad_at<S::kValue>(plan, item, place, 0)) + (block.row(r) * S::kValue + block.dim(0)) / 2;
  }

  __device__ __forceinline__ void keep(int32_t place, int r) const {
    float2* const to = pairs_at(place, r);
#pragma unroll
    for (int n = 0; n < S::kOwnDims / 8; ++n) __stcg(to + 4 * n, make_float2(block.out[n][2 * r], block.out[n][2 * r + 1]));
  }

  // Writes the result of a row, with the bits of finish() in decode_merge.cuh.
  __device__ __forceinline__ void write(int r, float sum) const {
    const AttentionArgs& a = plan.p.args.common;
    uint16_t* const out = static_cast<uint16_t*>(a.out) + item.row * a.out_stride +
                          static_cast<int64_t>(item.head0 + block.row(r)) * a.layout.head_dim;
    block.write(out, r, 1.0f / sum);
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kTiles == 1 ? 2 : 1) decode_latent(const __grid_constant__ Params p) {
  static_assert(S::kThreads == kThreads, "a plan is read, and parts are merged, by this many threads");
  __shared__ Division division;
  __shared__ Item item;
  __shared__ float2 totals[S::kRows];
  __shared__ bool last;
  const AttentionArgs& c = p.args.common;
  const Plan plan{p, division};
  plan.read();
  grid_wait();
  grid_trigger();
  clear_padding(p.args, division.first);
  if (division.begin >= division.end) return;
  if (threadIdx.x == 0) item = Item(plan);
  latent::Block<S> block(c, dynamic_memory(), p.scale_log2);
  for (;;) {
    __syncthreads();  // the item is written, and every warp is done with the one before
    const int32_t* const table = c.rows.block_ids + division.rows[item.row].y;
    const int64_t queries = item.row * c.q_stride + static_cast<int64_t>(item.head0) * S::kDim;
    block.fetch_queries([&](int row) { return row < item.heads ? queries + row * S::kDim : int64_t{-1}; });
    block.position[0] = block.position[1] = item.position;
    const int32_t last_key = min(item.position, item.chunk1 * kAttentionChunk - 1);
    const bool whole = item.count == item.units;
    Part total[2] = {{0, 0}, {0, 0}};
    block.walk(table, item.chunk0 * kAttentionChunk, last_key, item.position,
               [](int32_t key) { return (key + latent::kKeys) % kAttentionChunk == 0; },
               [&](int32_t key) {
      const int32_t chunk = key / kAttentionChunk, place = division.first[item.row] + item.unit + (item.begins ? 0 : chunk - item.chunk0);
      const bool fresh = !item.begins || chunk == item.chunk0, ends = key + latent::kKeys > last_key;
      const Chunk<S> sums{plan, item, block};
      Part parts[2];
      block.parts(parts);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = block.row(r);
        if (row >= item.heads) continue;
        if (fresh) {
          total[r] = parts[r];
        } else {
          const float2 shares = merge(total[r], parts[r]);
          latent::merge_before<S>(block.out, sums.pairs_at(place, r), r, shares);
        }
        if (whole && ends) {
          sums.write(r, total[r].sum);
          continue;
        }
        sums.keep(place, r);
        if ((!item.begins || ends) && block.sharer == 0 && block.t == 0)
          __stcg(stat_at(plan, item, place, row), make_float2(total[r].top, total[r].sum));
      }
    });
    if (!whole) deliver<S::kValue, kAhead, false>(plan, item, totals, last);
    if (item.last(plan)) return;
    __syncthreads();  // every thread has read the item
    if (threadIdx.x == 0) item = item.next(plan);
  }
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

template <class S>
cudaError_t run(Params p, const Stream& on) {
  using latent::kOwnShared;
  static_assert(S::kBytes + kOwnShared <= (S::kTiles == 1 ? 99 : 163) * 1024);
  int an_sm = 0;
  cudaError_t error = shared_an_sm(&an_sm);
  if (error == cudaSuccess) error = reserve_shared(decode_latent<S>, S::kBytes);
  if (error != cudaSuccess) return error;
  p.tiles = (p.group + S::kRows - 1) / S::kRows;
  p.tile_heads = (p.group + p.tiles - 1) / p.tiles;
  const int resident = std::max(1, std::min(S::kTiles == 1 ? 2 : 1, an_sm / (S::kBytes + kOwnShared)));
  const int64_t items = static_cast<int64_t>(p.args.plan.capacity) * p.tiles;
  const int64_t blocks = std::min<int64_t>(items, static_cast<int64_t>(p.args.sm_count) * resident);
  return launch(on, dim3(static_cast<unsigned>(blocks)), dim3(S::kThreads), S::kBytes, decode_latent<S>, p);
}

template <class T, int kDim>
cudaError_t run_heads(const Params& p, const Stream& on) {
  return p.group <= 16 ? run<latent::FewHeads<T, kDim>>(p, on) : run<latent::ManyHeads<T, kDim>>(p, on);
}

}  // namespace

int64_t decode_latent_bytes(int32_t rows, int32_t capacity, int32_t heads, int32_t padded_dim) {
  const int64_t parts = static_cast<int64_t>(capacity) * heads;
  return aligned(parts * latent_value_dims(padded_dim) * 4) + aligned(parts * 8) + aligned(parts * 4) +
         aligned(static_cast<int64_t>(rows) * heads * 4);
}

cudaError_t launch_decode_latent(const DecodeAttentionArgs& args, const Stream& on) {
  const AttentionArgs& c = args.common;
  if (!latent_args_valid(c) || args.count < 0 || args.count > kMaxDecodeRows || args.plan.capacity < 1 || args.sm_count < 1)
    return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  Params p;
  p.args = args;
  p.scale_log2 = ScoreRule(c.scale, 0).scale_log2;
  p.cap_scale = 0;
  p.group = c.heads;
  p.tile_heads = p.tiles = 0;  // set by run
  const int64_t parts = static_cast<int64_t>(args.plan.capacity) * c.heads;
  uint8_t* workspace = static_cast<uint8_t*>(args.workspace);
  p.out = reinterpret_cast<float*>(workspace);
  workspace += aligned(parts * latent_value_dims(c.layout.padded_dim) * 4);
  p.stat = reinterpret_cast<float2*>(workspace);
  workspace += aligned(parts * 8);
  p.group_done = reinterpret_cast<int32_t*>(workspace);
  workspace += aligned(parts * 4);
  p.row_done = reinterpret_cast<int32_t*>(workspace);
  return with_act(c.layout.act, [&](auto element) {
    typedef decltype(element) T;
    return c.layout.padded_dim == kMostLatentRow ? run_heads<T, kMostLatentRow>(p, on) : run_heads<T, 64>(p, on);
  });
}

}  // namespace mr::cuda
