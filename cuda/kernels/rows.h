// rows: the tokens of one step as kernels see them, one row each, and the kernel that begins a step.
//
// All arrays are in device memory. A row with slot -1 is padding: its token and position are 0, and no kernel writes
// anything of it outside the step's own activations.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/sampler/state.h"
#include "kernels/types.h"

namespace mr::cuda {

struct Rows {
  const int32_t* slot;       // (n)  -1: padding
  const int32_t* position;   // (n)  absolute
  const int32_t* table;      // (n)  first entry of the row's block table in block_ids
  const int32_t* block_ids;  // block b of a row covers its positions [b * block_size, (b+1) * block_size)
};

// DecodePlan divides decode attention: row r has the units [first[r], first[r+1]) of `span` chunks each.
struct DecodePlan {
  int32_t* first;  // (decode_rows + 1)
  int32_t* span;   // (1)  chunks a unit: 1, or kChunksAGroup if the workspace cannot hold single chunks
  int32_t capacity;  // units that the workspace of decode attention holds, see decode_attention_capacity
};

// Rotations, and kinds of attention, that layers of one model may differ in.
constexpr int32_t kMostRopes = 4, kMostKinds = 4;

// One rotation of every position.
struct BeginRope {
  const double* frequencies;  // (dims / 2), from rope_frequencies
  int32_t dims;
  float magnitude;            // multiplies cosines and sines
  float* table;               // (count, dims): cosines of each pair, then sines
};

// Begins a step: resolves the token ids (-1: the token that the slot sampled last), writes them to the slots'
// histories, computes the RoPE tables of each position, and plans decode attention of the first decode_rows rows, once
// for each window.
struct BeginArgs {
  Rows rows;
  int32_t count;               // rows, padding included
  int32_t decode_rows;         // of the rows; they come first
  const int32_t* token_in;     // (count)  ids, or -1
  int32_t* token;              // (count)  ids, resolved
  int32_t* nan_flags;             // (count)  MR_ROW_*: the status of every result of this row; MR_ROW_OK if it is not predetermined
  SlotFeed* feeds;             // by slot
  int32_t* history;            // (slots, history_stride)
  int64_t history_stride;
  BeginRope ropes[kMostRopes];
  int32_t rope_count;
  DecodePlan plans[kMostKinds];
  int32_t windows[kMostKinds]; // of each plan; 0 = none
  int32_t plan_count;
  uint64_t* step = nullptr;    // incremented; null: no counter
  uint64_t* expert_bytes = nullptr;  // set to 0; null: no counter
};
cudaError_t launch_begin(const BeginArgs& args, const Stream& on);

// Computes frequencies[i] = base^(-2i/dims) / scale / divisors[i] on the host, with the bits of the CPU engine;
// divisors (host memory) may be null.
void rope_frequencies(int32_t dims, float base, float scale, const double* divisors, double* frequencies);

}  // namespace mr::cuda
