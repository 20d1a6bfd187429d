// sampler/state: the sampling state of each slot on the device, and how it is set.
//
// The lists of a slot have a fixed capacity, so that nothing is allocated while steps run: the allowed and the
// suppressed tokens are bitmasks of ceil(vocab/32) words, biases are up to bias_capacity pairs in ascending order of
// ids.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "millrace/engine.h"

namespace mr::cuda {

// Meaning and units as in mr_slot_params. Ranges must have been checked by the caller.
struct SlotParams {
  uint64_t seed;
  int32_t output_index, prompt_length, min_tokens, top_n;
  float temperature;
  int32_t top_k;
  float top_p, min_p, typical_p;
  float repetition_penalty, presence_penalty, frequency_penalty;
  int32_t penalty_window;
  int32_t bias_count;
  int32_t all_allowed;      // bool: no allowed list
  int32_t has_suppressed;   // bool
};

// SlotFeed is the result of a slot's last sample row: the slot's token -1 of the next step.
struct SlotFeed {
  int32_t token;   // 0 unless status is MR_ROW_OK
  int32_t status;  // MR_ROW_*
};

// SlotTables are the tables of all slots of a runner, in device memory.
struct SlotTables {
  SlotParams* params;    // (slots)
  SlotFeed* feeds;       // (slots)
  uint32_t* allowed;     // (slots, mask_words)
  uint32_t* suppressed;  // (slots, mask_words)
  int32_t* bias_ids;     // (slots, bias_capacity)
  float* bias_values;    // (slots, bias_capacity)
  int32_t* history;      // (slots, history_stride)  token ids by absolute position
  int64_t history_stride;
  int32_t mask_words;    // ceil(vocab / 32)
  int32_t bias_capacity;
};

// SlotSet is one SLOT_SET as it is sent to the device. `record` points to slot_record_bytes(...) bytes in device
// memory, written by pack_slot_record. The slot's feed becomes {0, MR_ROW_OK}, and the record's history becomes the
// first positions of the slot's.
struct SlotSet {
  int32_t slot;
  int32_t history_count;  // <= history_stride of the tables
  const void* record;
};

struct SlotSource {  // host memory
  SlotParams params;
  const int32_t* bias_ids;
  const float* bias_values;        // params.bias_count of both
  const int32_t* allowed_ids;      // read unless params.all_allowed
  int32_t allowed_count;
  const int32_t* suppressed_ids;
  int32_t suppressed_count;
  const int32_t* history;          // token ids of positions 0 .. history_count-1
  int32_t history_count;
};

// Bytes of the record of these parameters, a multiple of 16.
int64_t slot_record_bytes(const SlotSource& source, int32_t vocab);
// Writes the record to host memory (16-byte aligned). Ids lie in [0, vocab).
void pack_slot_record(const SlotSource& source, int32_t vocab, void* record);

// Applies `count` sets of distinct slots, none of which has a history longer than `most_history`.
cudaError_t launch_slot_sets(const SlotTables& tables, const SlotSet* sets, int32_t count, int32_t most_history, const Stream& on);

}  // namespace mr::cuda
