// attention: causal attention of query rows over the paged key-value cache.
//
// The cache is paged as in PagedAttention (Kwon et al., 2023): the block table of a sequence maps its positions to KV
// blocks of 16 or 32 tokens. A row at position p sees the keys 0 .. p, or the last `window` of them. No kernel stores a
// score matrix: like
// FlashAttention (Dao et al., 2022) they walk over tiles of keys with a running softmax, a Part, that is the greatest
// score so far and the sum of weights relative to it. Two Parts of neighbouring keys are merged by merge() of
// merge.cuh, and by nothing else.
//
//   file                       rows                       how
//   decode_kernel.cuh          decode, row by row         mma; keys split between blocks as in Flash-Decoding (Dao et al., 2023)
//   prefill_mma_kernel.cuh     prompts, tiles of rows     mma, cp.async; every device, width and cache type
//   prefill_wgmma_kernel.cuh   prompts, tiles of rows     wgmma, TMA, two consumer warpgroups as in FlashAttention-3 (2024)
//   prefill_widen.cuh          before prompts by wgmma    widens the blocks of an 8-bit cache that they see, if that is faster
//
// One row of decode attention, and one tile of prefill attention:
//
//   keys   [ chunk 0 | chunk 1 | ... chunk 15 ][ chunk 16 ...        keys   [ piece 0 | piece 1 |   piece 2   | ...
//              |         |            |             |                            |         |          |
//            Part      Part         Part          Part                         softmax   softmax    softmax    tile by tile,
//              \---------+-----...----/             |                            |         |          |        from scratch
//                    group 0, in order           group 1, ...                    +-- merge in order --+--> output of the row
//                        \-----------+--------------/
//                          merge in order --> output of the row
//
// Row bits must not depend on the batch, the chunking of the prompt or the number of SMs. Therefore keys are cut at
// absolute positions (chunks of kAttentionChunk for decode, pieces of prefill_plan.h for prefill), partial results are
// merged in ascending order, and rows of one tile never exchange values. Which block computes what is free, and is
// chosen for speed. Chunks and pieces below a window are skipped; those that it cuts are masked.
#pragma once

#include <cstdint>

#include "kernels/attention/prefill_plan.h"
#include "kernels/kv.h"
#include "kernels/launch.h"
#include "kernels/rows.h"
#include "kernels/types.h"

namespace mr::cuda {

// Keys of one partial result of decode attention. A larger chunk pays at large batches, but leaves small ones without
// work.
constexpr int32_t kAttentionChunk = MR_FREE_SPLITS ? 1024 : 256;
constexpr int32_t kChunksAGroup = 16;     // partial results that are merged before groups are

// Returns whether attention supports heads of these shapes: head_dim 1 .. 512; heads a multiple of kv_heads. Kernels
// are compiled for the widths of pad_head_dim. A head of another width is stored in the next wider one, padded with
// zeros, which add nothing to any score. Its scale and its output have its own width. A width below 32 needs a cache of
// width 32.
bool attention_supports(int32_t head_dim, int32_t heads, int32_t kv_heads);

// Returns the bytes of shared memory that the device must allow a block, for heads of a width that attention supports and
// caches of every type: what prefill attention needs at least. Decode attention needs less.
int32_t attention_shared_bytes(int32_t head_dim);

// First key that a row at `position` sees.
MR_BOTH_SIDES constexpr int32_t first_seen(int32_t position, int32_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

struct AttentionArgs {
  Rows rows;
  KvLayout layout;
  int32_t heads;
  float scale;               // scores are multiplied by it; > 0
  const void* q;             // (rows, heads * padded_dim) of the layout's type, each head padded with zeros
  int64_t q_stride;          // elements from row to row, a multiple of 8
  void* out;                 // (rows, heads * head_dim) of out_act; zeros for padding rows
  int64_t out_stride;        // elements from row to row, even
  Act out_act;               // of out
  const void *keys, *values; // block 0 of the layer
  float cap = 0;             // > 0: a score, scaled, becomes cap * tanh(score / cap)
  int32_t window = 0;        // > 0: a row at position p sees the keys max(0, p - window + 1) .. p
  const float* sinks = nullptr;  // (heads), or null: a score more of each row, after the scale and the cap, whose value is 0
};

// DecodeAttentionArgs: every row is computed by itself, its keys in chunks of kAttentionChunk. The launch depends only
// on the number of rows, so it can be replayed by a CUDA graph. Plan and row arrays must be written by kernels before
// the one that is launched just before this one (see launch.h).
struct DecodeAttentionArgs {
  AttentionArgs common;
  int32_t count;        // rows 0 .. count-1
  DecodePlan plan;      // from launch_begin with decode_rows == count
  void* workspace;      // decode_attention_bytes(...) bytes, 256-byte aligned, zeroed once; reusable after the kernel
  int32_t sm_count;
  // Rows of the step, of both classes and with padding; 0 if not known. The kernel just before this one then writes at
  // most this many positions of a row's sequence, up to the row's own, so the keys below them are loaded before the
  // dependency wait.
  int32_t step_rows = 0;
};
cudaError_t launch_decode_attention(const DecodeAttentionArgs& args, const Stream& on);

// Units that a runner's workspace must hold: rows is the largest number of decode rows, positions the longest history.
int32_t decode_attention_capacity(int32_t rows, int32_t positions);
int64_t decode_attention_bytes(int32_t rows, int32_t capacity, int32_t heads, int32_t head_dim);

// Prefill: consecutive rows of one segment are computed together, as prefill_plan.h divides them.
int32_t prefill_tile_rows(int32_t head_dim, int32_t heads, int32_t kv_heads);
int32_t prefill_columns(int32_t heads, int32_t kv_heads);  // PrefillWork::columns

// WideCache is scratch for KV blocks of an 8-bit cache that are widened ahead (prefill_widen.cuh). Its size depends on `blocks`.
struct WideCache {
  void* memory = nullptr;  // prefill_wide_bytes(...) bytes, 256-byte aligned; if null, attention reads the cache as it is
  int32_t blocks = 0;
};

struct PrefillAttentionArgs {
  AttentionArgs common;
  const PrefillItem* items;    // device memory
  int32_t item_count;
  const PrefillMerge* merges;  // device memory
  int32_t merge_count;
  void* workspace;             // prefill_attention_bytes(...) bytes, 256-byte aligned; reusable after the kernels
  int32_t capacity;            // slots of the workspace, as the plan was given
  int32_t sm_count;
  WideCache wide = {};         // if the plan has spans: written by launch_prefill_widen, for all groups
};
// Launches one group of a plan.
cudaError_t launch_prefill_attention(const PrefillAttentionArgs& args, const Stream& on);

struct PrefillWidenArgs {
  Rows rows;
  KvLayout layout;
  const void *keys, *values;  // block 0 of the layer
  const PrefillSpan* spans;   // of the plan, in device memory
  int32_t span_count;
  int32_t block_count;        // PrefillPlan::wide_blocks
  WideCache wide;
};
// Widens the blocks of a plan's spans. Fails if the device or the layout has no such kernel (prefill_wide_blocks).
cudaError_t launch_prefill_widen(const PrefillWidenArgs& args, const Stream& on);

// Returns in *blocks how many KV blocks a runner's scratch holds: `most`, but not more than 512 MiB of elements; 0 if the current device
// and the layout have no kernel that widens them ahead. Prompts that see more blocks are attended without the scratch.
cudaError_t prefill_wide_blocks(const KvLayout& layout, int64_t most, int32_t* blocks);
int64_t prefill_wide_bytes(const KvLayout& layout, int32_t blocks);

// Bytes of a workspace of `capacity` slots. A slot holds a row's partial result of all heads.
int64_t prefill_attention_bytes(int32_t capacity, int32_t heads, int32_t head_dim);

}  // namespace mr::cuda
