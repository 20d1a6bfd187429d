// attention/decode_plan: the shape of a block of decode attention, and which items it computes; see
// attention/decode_kernel.cuh.
#pragma once

#include "kernels/attention/attention.h"

namespace mr::cuda::decode {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kSteps = kAttentionChunk / (16 * kWarps);  // of one warp in one chunk

constexpr int kTileHeads = 8;
// If the longest row has this many units, one block computes them, even if other blocks stay idle: a second chunk costs
// one memory latency, a merge costs three.
constexpr int32_t kUndivided = 2;

struct Params {
  DecodeAttentionArgs args;
  float scale_log2, cap_scale;  // see ScoreRule
  int32_t group, tile_heads, tiles;  // query heads a kv head, a tile; tiles a kv head
  // Workspace: partial results by unit and query head, and counters by kv head and tile.
  float* out;           // (capacity, heads, padded_dim): sum of weighted values
  float2* stat;         // (capacity, heads): greatest score (log2), sum of weights
  int32_t* group_done;  // (capacity, kv_heads * tiles): units of the group that begins with this one
  int32_t* row_done;    // (rows, kv_heads * tiles): groups of the row
};

// Launches for caches of T, or of 8 bits that are widened to T. Each has a source of its own, because nvcc compiles sources in
// parallel and all 68 kernels take more than two minutes.
template <class T, bool kF8>
cudaError_t launch_cache(const Params& p, const Stream& on);

// Division is how a launch is divided, and which units this block has. It is in shared memory, like everything that
// changes with items and not with steps. Units are numbered by row, then column, then unit of the row; block b has
// `share` of them from b * share on.
struct Division {
  int32_t first[kMaxDecodeRows + 1];  // of a row's units, from the plan
  int2 rows[kMaxDecodeRows];          // position, first entry of the block table
  int32_t span, group_units;          // chunks a unit, units a group
  int32_t columns;                    // kv heads and tiles
  int32_t share, begin, end;          // begin >= end: the block has none
};

struct Plan {
  const Params& p;
  Division& d;

  // Reads the plan, which the step's first kernels have written, before the wait: from L2, where their writes are. All threads must call
  // it.
  __device__ __forceinline__ void read() const {
    const DecodeAttentionArgs& a = p.args;
    const int32_t span = threadIdx.x == 0 ? __ldcg(a.plan.span) : 0;
    bool longer = false, as_long = false;
    for (int32_t i = threadIdx.x; i < a.count; i += kThreads) {
      const int32_t begin = __ldcg(a.plan.first + i), end = __ldcg(a.plan.first + i + 1);
      d.rows[i] = make_int2(a.common.rows.position[i], a.common.rows.table[i]);
      d.first[i] = begin;
      if (i == a.count - 1) d.first[a.count] = end;
      longer |= end - begin > kUndivided;
      as_long |= end - begin == kUndivided;
    }
    longer = __syncthreads_or(longer) != 0;
    as_long = __syncthreads_or(as_long) != 0;
    if (threadIdx.x == 0) {
      d.span = span;
      d.group_units = kChunksAGroup / span;
      d.columns = a.common.layout.kv_heads * p.tiles;
      const int32_t units = d.first[a.count] * d.columns, blocks = static_cast<int32_t>(gridDim.x);
      d.share = max((units + blocks - 1) / blocks, as_long && !longer ? kUndivided : 1);
      d.begin = static_cast<int32_t>(blockIdx.x) * d.share;
      d.end = min(units, d.begin + d.share);
    }
    __syncthreads();
  }
};

// Item is consecutive units of one group, of one kv head and one tile of query heads. If it begins its group, the block
// merges the units as it goes, because up to there the order of merges is its own; otherwise each unit leaves a part of
// its own.
struct Item {
  int32_t index;                  // of its first unit among all
  int32_t row, position, low, column;  // low: the first key that the row sees
  int32_t unit, count, units;     // units [unit, unit + count) of the row's
  int32_t kv_head, head0, heads;  // query heads [head0, head0 + heads)
  int32_t chunk0, chunk1;         // chunks of the row
  bool begins;                    // whether it begins its group

  Item() = default;
  // The first item of a block that has one.
  __device__ __forceinline__ explicit Item(const Plan& plan) : index(plan.d.begin), row(0) {
    const Division& d = plan.d;
    for (int32_t step = kMaxDecodeRows; step > 0; step /= 2)
      if (row + step < plan.p.args.count && d.first[row + step] * d.columns <= index) row += step;
    units = d.first[row + 1] - d.first[row];
    const int32_t of_row = index - d.first[row] * d.columns;
    column = of_row / units;
    unit = of_row - column * units;
    settle(plan);
  }

  __device__ __forceinline__ bool last(const Plan& plan) const { return index + count >= plan.d.end; }

  // Returns the block's next item, which must exist.
  __device__ __forceinline__ Item next(const Plan& plan) const {
    const Division& d = plan.d;
    Item i = *this;
    i.index += i.count;
    i.unit += i.count;
    if (i.unit == i.units) {
      i.unit = 0;
      if (++i.column == d.columns) {
        i.column = 0;
        do ++i.row;
        while (d.first[i.row + 1] == d.first[i.row]);  // padding
        i.units = d.first[i.row + 1] - d.first[i.row];
      }
    }
    i.settle(plan);
    return i;
  }

 private:
  __device__ __forceinline__ void settle(const Plan& plan) {
    const Division& d = plan.d;
    const int32_t within = unit % d.group_units;
    begins = within == 0;
    count = min(d.group_units - within, min(units - unit, d.end - index));
    position = d.rows[row].x;
    low = first_seen(position, plan.p.args.common.window);
    kv_head = column / plan.p.tiles;
    const int32_t tile = column - kv_head * plan.p.tiles;
    head0 = kv_head * plan.p.group + tile * plan.p.tile_heads;
    heads = min(plan.p.tile_heads, plan.p.group - tile * plan.p.tile_heads);
    const int32_t first = low / kAttentionChunk;
    chunk0 = first + unit * d.span;
    chunk1 = min(position / kAttentionChunk + 1, first + (unit + count) * d.span);
  }
};

}  // namespace mr::cuda::decode
