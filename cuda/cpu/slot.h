// slot: a runner's state of one sequence: its sampling parameters, identity and token history.
#pragma once

#include <cstdint>
#include <vector>

#include "millrace/engine.h"

namespace mr {

// A checked copy of mr_slot_params; see there for meaning and units.
struct SlotParams {
  uint64_t seed = 0;
  int32_t output_index = 0, prompt_length = 0, min_tokens = 0, top_n = 0;
  float temperature = 0;
  int32_t top_k = 0;
  float top_p = 1, min_p = 0, typical_p = 1;
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  int32_t penalty_window = 0;
  bool all_allowed = true;
  std::vector<int32_t> bias_ids, allowed, suppressed;
  std::vector<float> bias_values;  // as many as bias_ids

  // Throws INVALID_ARGUMENT naming `where`, the field and its value. Ranges: ids 0 .. vocab-1; temperature >= 0; top_k
  // >= 0; top_p, min_p, typical_p in [0, 1] (0 keeps one token, for min_p all); repetition_penalty > 0; bias values
  // finite or -infinity; the rest as engine.h says. Floats are finite.
  static SlotParams copy(const mr_slot_params& params, int32_t vocab, int32_t max_top_n, const char* where);
};

struct Slot {
  uint32_t generation = 0;
  SlotParams params;
  int32_t* history = nullptr;  // token ids by absolute position; length entries are valid
  int32_t length = 0;
  int32_t sampled = 0;         // the token of this slot's last sample row; 0 unless its status is OK
  int32_t sampled_status = MR_ROW_OK;
};

}  // namespace mr
