// attention_decode_plan: how decode attention is divided: the shape of a block, and which item is whose; see attention_decode.cu.
#pragma once

#include "kernels/attention.h"

namespace mr::cuda::decode {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kSteps = kAttentionChunk / (16 * kWarps);  // of one warp in one chunk

constexpr int kTileHeads = 8;

struct Params {
  DecodeAttentionArgs args;
  float scale_log2;
  int32_t group, tile_heads, tiles;  // query heads a kv head, a tile; tiles a kv head
  // Workspace: partial results by unit and query head, and finished units by row, kv head and tile.
  float* out;    // (capacity, heads, padded_dim): sum of weighted values
  float2* stat;  // (capacity, heads): greatest score (log2), sum of weights
  int32_t* done; // (rows, kv_heads * tiles)
};

// What the blocks of a launch share: the plan, read once into shared memory.
struct Plan {
  const Params& p;
  const int32_t* first;  // (count + 1)
  int32_t span, columns, items;
};

// One item: a unit of one row, one kv head and one tile of query heads.
struct Item {
  int32_t row, position, column, unit;
  int32_t kv_head, head0, heads;    // query heads [head0, head0 + heads)
  int32_t chunk0, chunk1;           // chunks of the row
  const int32_t* table;             // the row's block ids

  __device__ __forceinline__ Item(const Plan& plan, int32_t index) {
    const DecodeAttentionArgs& a = plan.p.args;
    unit = index / plan.columns;
    column = index - unit * plan.columns;
    row = 0;
    for (int32_t step = 256; step > 0; step /= 2)
      if (row + step < a.count && plan.first[row + step] <= unit) row += step;
    kv_head = column / plan.p.tiles;
    const int32_t tile = column - kv_head * plan.p.tiles;
    head0 = kv_head * plan.p.group + tile * plan.p.tile_heads;
    heads = min(plan.p.tile_heads, plan.p.group - tile * plan.p.tile_heads);
    position = a.common.rows.position[row];
    table = a.common.rows.block_ids + a.common.rows.table[row];
    chunk0 = (unit - plan.first[row]) * plan.span;
    chunk1 = min(position / kAttentionChunk + 1, chunk0 + plan.span);
  }
};

}  // namespace mr::cuda::decode
