// workspace: the device memory that steps of one runner work in, laid out once.
#pragma once

#include <cstdint>

#include "kernels/kv.h"
#include "kernels/rows.h"
#include "kernels/sampler/state.h"
#include "kernels/types.h"
#include "millrace/engine.h"
#include "src/model.h"

namespace mr::cuda {

constexpr int32_t kLogitRows = 256;      // rows of logits held at once, at most
constexpr int32_t kGateRows = 512;       // most rows of separate gate and up GEMMs held at once
constexpr int32_t kBiasCapacity = 1024;  // logit biases a slot may have
constexpr int64_t kRowAlign = 64;        // elements: activation rows are padded with zeros to whole units of weights

// Sizes that follow from a model and a configuration; of one rank, and the same on each.
struct Sizes {
  KvLayout kv;         // of the rank's heads
  // Activations between GEMMs have all of a row; those between q, k and v and attention have the rank's heads.
  int64_t hidden_stride, q_width, q_stride, attention_stride, qkv_stride, ffn_stride, vocab_stride;  // elements
  int32_t tokens;         // rows of one step, at most
  int32_t decode_rows;    // rows that decode attention takes at once, at most
  int32_t decode_parts;   // such pieces in one step, at most
  int32_t decode_units;   // of decode attention's workspace
  int32_t prefill_places; // of prefill attention's
  int32_t logit_rows;     // at once
  int32_t positions;      // history kept for a slot: the context, or the whole pool if that is less
  int32_t rows_wanted;    // sample and score rows of one step, at most
  int64_t candidates;     // of one step, at most
  uint64_t input_bytes;   // of what one step uploads, at most
  uint64_t kv_block_bytes;  // over all layers
  uint64_t record_bytes;    // of the slot records that travel at once, at most
  uint64_t mask_bytes;      // of the masks of one step, at most

  // Throws INVALID_ARGUMENT or UNIMPLEMENTED naming what this engine does not run.
  Sizes(const UniformShape& model, const mr_runner_config& config, int32_t ranks = 1);
};

// f32 unless stated; T = tokens, L = logit_rows.
struct Workspace {
  float* x;        // (T, hidden_stride) residual stream
  void* norm;      // (T, hidden_stride) act (activations.h); of the head: (L, hidden_stride)
  float* qkv;      // (T, qkv_stride): Q, K, V behind one another
  void* q;         // (T, q_stride) of the cache's act: heads of padded_dim
  void* attention; // (T, attention_stride) act: heads of head_dim
  void* ffn;       // (T, ffn_stride) act
  void* input_sums;     // of a GEMM of T or L rows (input_sums.h)
  uint32_t* semaphores; // (kGemmSemaphores) zeros between GEMMs (gemm.h)
  float *gate, *up;  // (min(T, kGateRows), ffn_stride) each
  float* rope_table;    // (T, rope_dims)
  int32_t* token;  // (T) resolved ids
  int32_t* nan_flags; // (T)
  float* logits;   // (L, vocab_stride)
  double* frequencies;  // (rope_dims / 2)
  int32_t* plan_first;  // (decode_parts, decode_rows + 1)
  int32_t* plan_span;   // (decode_parts)
  void* decode;    // decode attention's own
  void* prefill;   // prefill attention's own
  void* sampler;   // the sampler's own
  SlotTables slots;
  mr_row_result* results;   // (rows_wanted)
  mr_candidate* candidates; // (candidates)
  uint8_t* input;           // (input_bytes) the input that a step uploads
  uint32_t* masks;          // (mask_bytes) and its masks: at one place, which captured graphs know
  // Of several ranks (gather.h):
  uint64_t* step;           // (1)
  uint64_t* arrived;        // (kMostRanks, kGatherBlocks)
  uint8_t* packets;         // gather_packet_bytes(ranks)
  uint64_t bytes;           // of all of the above

  // Lays out a workspace that begins at base (256-byte aligned); base null only counts bytes.
  Workspace(const Model& model, const mr_runner_config& config, const Sizes& sizes, uint8_t* base);
};

}  // namespace mr::cuda
