// attention: causal attention of query rows over the paged key-value cache.
//
// A row at position p sees the keys 0 .. p of its block table. Bits of a row depend on its query, its position and the
// keys and values alone: keys are partitioned at absolute positions, and rows of one tile never meet.
#pragma once

#include <cstdint>

#include "kernels/kv.h"
#include "kernels/launch.h"
#include "kernels/prefill_plan.h"
#include "kernels/rows.h"
#include "kernels/types.h"

namespace mr::cuda {

// Keys of one partial result of decode attention. Longer ones pay at large batches, and leave small ones without work.
constexpr int32_t kAttentionChunk = MR_FREE_SPLITS ? 1024 : 256;
constexpr int32_t kChunksAGroup = 16;     // partial results merged in order before groups are

// Whether attention runs heads of these shapes: head_dim 1 .. 256; heads a multiple of kv_heads. Kernels are compiled for
// the widths of pad_head_dim; a head between two lies in the wider one's place, zeros behind it, which add nothing to any
// score. Its scale and its output are of its own width. A width below 32 takes a cache of 32.
bool attention_supports(int32_t head_dim, int32_t heads, int32_t kv_heads);

struct AttentionArgs {
  Rows rows;
  KvLayout layout;
  int32_t heads;
  float scale;               // scores are multiplied by it; > 0
  const void* q;             // (rows, heads * padded_dim) of the layout's type, zeros from head_dim on in each head
  int64_t q_stride;          // elements from row to row, a multiple of 8
  void* out;                 // (rows, heads * head_dim) of out_act; zeros for padding rows
  int64_t out_stride;        // elements from row to row, even
  Act out_act;               // of out
  const void *keys, *values; // block 0 of the layer
};

// Decode: every row for itself, its keys in chunks of kAttentionChunk. The launch depends on the number of rows alone. The
// plan and the arrays of rows are written by kernels before the one that is launched just before this (see launch.h).
struct DecodeAttentionArgs {
  AttentionArgs common;
  int32_t count;        // rows 0 .. count-1
  DecodePlan plan;      // from launch_begin with decode_rows == count
  void* workspace;      // decode_attention_bytes(...) bytes, 256-byte aligned, zeroed once; free again after the kernel
  int32_t sm_count;
  // Rows of the step, of both classes and padding too, 0 if not known. What the kernel just before this one writes of a row's
  // sequence are then no more positions than these, up to the row's own: the keys below are asked for before the dependency wait.
  int32_t step_rows = 0;
};
cudaError_t launch_decode_attention(const DecodeAttentionArgs& args, const Stream& on);

// Units that a runner's workspace must hold: rows = largest number of decode rows, positions = longest history.
int32_t decode_attention_capacity(int32_t rows, int32_t positions);
int64_t decode_attention_bytes(int32_t rows, int32_t capacity, int32_t heads, int32_t head_dim);

// Prefill: consecutive rows of one segment together, as prefill_plan.h divides them.
int32_t prefill_tile_rows(int32_t head_dim, int32_t heads, int32_t kv_heads);
int32_t prefill_columns(int32_t heads, int32_t kv_heads);  // PrefillWork::columns

struct PrefillAttentionArgs {
  AttentionArgs common;
  const PrefillItem* items;    // device memory
  int32_t item_count;
  const PrefillMerge* merges;  // device memory
  int32_t merge_count;
  void* workspace;             // prefill_attention_bytes(...) bytes, 256-byte aligned; free again after the kernels
  int32_t capacity;            // places of the workspace, as the plan was given
  int32_t sm_count;
};
// One group of a plan.
cudaError_t launch_prefill_attention(const PrefillAttentionArgs& args, const Stream& on);

// Bytes of a workspace of `capacity` places: a place holds a row's partial result, all heads of it.
int64_t prefill_attention_bytes(int32_t capacity, int32_t heads, int32_t head_dim);

}  // namespace mr::cuda
