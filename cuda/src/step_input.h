// step_input: a step as it travels to the device, in one copy.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/step_plan.h"
#include "kernels/attention/attention.h"
#include "kernels/block_copy.h"
#include "kernels/rows.h"
#include "kernels/sampler/sampler.h"
#include "millrace/engine.h"
#include "src/copy_groups.h"
#include "src/kinds.h"
#include "src/step_chains.h"

namespace mr::cuda {

class Blocks;
struct Sizes;

// What the host remembers of a slot: as it will be when every accepted step has run.
struct SlotView {
  int32_t length = 0;  // tokens of history
  int32_t top_n = 0;
};

// Where a step's arrays lie in the input region, and how many elements they have. Decode rows come first, then prefill
// rows; job i is sample row i, then the score rows follow. Everything up to the block ids lies where rows, jobs and chains alone
// say, so that a graph captured for a bucket finds it. Masks are no part of it: they have a region of their own.
struct StepShape {
  int32_t rows = 0, decode_rows = 0;  // padding included
  int32_t jobs = 0;                   // padding included
  int32_t chains = 0;                 // padding included; 0 if no layer carries a state
  struct Prefill {                    // of attention of one kind
    int32_t group_count = 0;
    PrefillGroup groups[kMostPrefillGroups] = {};
    uint64_t item = 0, merge = 0, span = 0;    // PrefillItem, PrefillMerge, PrefillSpan
    int32_t span_count = 0, wide_blocks = 0;  // of all spans
  };
  Prefill prefill[kMostKinds] = {};
  int32_t sets = 0;
  int32_t most_history = 0;           // of a set
  uint64_t slot = 0, position = 0, table = 0, window_table = 0, token = 0;  // (rows) int32 each; window_table: of the window group
  uint64_t chain = 0, segment = 0;                        // (chains) StateChain, StateSegment
  uint64_t chain_of = 0, segment_of = 0;                  // (rows) int32 each; absent without chains
  uint64_t gather = 0;                                    // (jobs) int32: the row of each row of logits
  uint64_t job = 0;                                       // (jobs) SampleJob
  uint64_t block_ids = 0;
  uint64_t set = 0;                                       // SlotSet
  uint64_t copy = 0, window_copy = 0, state_copy = 0;     // BlockCopy: of blocks of either group, of states
  int32_t hidden_rows = 0;
  uint64_t hidden = 0;                   // (hidden_rows) int32: the row of each hidden row
  uint64_t bytes = 0;                    // to copy

  StepShape() = default;
  StepShape(int32_t rows, int32_t decode_rows, int32_t jobs, int32_t chains);
};

class StepInput {
 public:
  // positions: as in Sizes
  static uint64_t record_capacity(const Description& model, const mr_runner_config& config, int32_t positions);
  static uint64_t mask_capacity(const Description& model, const mr_runner_config& config);  // bytes of one step's masks
  static uint64_t capacity(const mr_runner_config& config, const Sizes& sizes);

  // sm_count: of the device.
  StepInput(const Description& model, const mr_runner_config& config, const Sizes& sizes, int32_t sm_count);

  // Throws if a step that meets engine.h's rules still exceeds the runner's memory: biases of a slot, lists and histories of
  // all slots at once, entries of block tables, words of masks, copies of blocks.
  void check(const StepPlan& plan) const;

  // Writes the plan to host memory of `input_bytes` that will be copied to `device`. Rows and jobs are padded to `bucket`
  // and `bucket_jobs` where those are not 0: for steps of decode segments alone. Moves the views along.
  StepShape pack(const StepPlan& plan, int32_t bucket, int32_t bucket_jobs, std::vector<SlotView>& views,
                 const Blocks& blocks, uint8_t* host, const uint8_t* device);
  // Of the step packed last: by group of copies that may run at once, the copy after its last. `window`: of blocks of the window group.
  const std::vector<int32_t>& copy_ends(bool window) const { return (window ? window_copies_ : copies_).ends(); }
  const std::vector<int32_t>& state_copy_ends() const { return state_copies_.ends(); }  // of states, as of blocks

 private:
  void pack_rows(const StepPlan& plan, const StepShape& shape, std::vector<SlotView>& views, uint8_t* host);
  void pack_chains(const StepPlan& plan, const StepShape& shape, uint8_t* host);
  void pack_jobs(const StepPlan& plan, const StepShape& shape, const std::vector<SlotView>& views, uint8_t* host);
  void pack_prefill(StepShape& shape, uint8_t* host);
  void pack_sets(const StepPlan& plan, StepShape& shape, uint8_t* host, const uint8_t* device);
  void pack_copies(const StepPlan& plan, StepShape& shape, bool (*packed)(const StepPlan::PreOp&), CopyGroups& groups, uint64_t* at,
                   const Blocks& blocks, uint8_t* host);
  void pack_hidden(const StepPlan& plan, StepShape& shape, uint8_t* host) const;

  // Prefill attention of one kind.
  struct Tiling {
    int32_t tile_rows;
    PrefillWork work;
    std::vector<PrefillTile> tiles;  // of the step being packed
  };

  const int32_t vocab_, block_size_;
  const uint64_t most_ids_, most_words_, most_records_, most_copies_, most_state_copies_;
  const bool states_;  // layers carry them
  const int32_t logit_rows_;
  // Of the step being packed.
  std::vector<int32_t> row_of_;     // by token of the step
  std::vector<Tiling> tilings_;     // by kind
  PrefillPlan prefill_;
  std::vector<int32_t> feeder_;     // by slot: its last sample row, -1 = none
  std::vector<int32_t> setter_;     // by slot: its last SLOT_SET, -1 = none
  StepChains chains_;
  CopyGroups copies_, window_copies_, state_copies_;
};

}  // namespace mr::cuda
