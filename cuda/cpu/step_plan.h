// step_plan: an accepted step: a checked copy of mr_step, and memory for its results.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "millrace/engine.h"
#include "shape.h"
#include "slot.h"

namespace mr {

struct StepPlan {
  struct PreOp {
    int32_t kind;  // MR_PRE_*
    int32_t slot;
    uint32_t generation;
    // MR_PRE_BLOCK_*: blocks of the device or, of OUT's dst and IN's src, of host memory. MR_PRE_STATE_*: states, by state_index.
    int32_t src, dst;
    bool window;  // MR_PRE_BLOCK_*: of the window group
    SlotParams params;
    std::vector<int32_t> history;  // of SLOT_SET: the slot's first positions
    uint8_t* host;                 // of OUT and IN, where the engine says so: the block or state of host memory
  };

  std::vector<PreOp> pre_ops;
  // block_offset and window_block_offset count within block_ids below; states are by state_index. Entries of the window group's tables
  // that are absent are the block of zeros, window_blocks.
  std::vector<mr_segment> segments;
  std::vector<int32_t> tokens;
  std::vector<int32_t> block_ids;
  std::vector<mr_sample_row> samples;
  std::vector<mr_score_row> scores;
  std::vector<int32_t> hidden;        // indexes into tokens
  std::vector<uint32_t> masks;        // empty when no row has one, and until they are there
  bool masks_late = false;            // they come after the step was submitted
  int64_t mask_words = 0;             // of masks that come late
  uint64_t hang_ns = 0;  // faults: the step lasts longer by this; the logits of this sample row are NaN
  int32_t nan_row = -1;

  // Results, filled by the step. Row i may use candidates [offset, offset + its top_n).
  std::vector<mr_row_result> sample_results, score_results;
  std::vector<mr_candidate> candidates;
  float* hidden_rows = nullptr;       // one row for each of `hidden`; the engine's memory for most a step may have
  uint64_t device_ns = 0, bytes_read = 0;
};

// Copies a finished step's results to the caller's struct, candidates closed up; `width` is that of a hidden row. Throws
// INVALID_ARGUMENT, having written nothing, when there is too little room.
void give_results(const StepPlan& plan, int32_t width, mr_step_result* result);

// Checks steps against the rules of engine.h and follows what accepted steps will have done to the slots.
// Used by the submitting thread only.
class StepChecker {
 public:
  // positions: history kept for a slot, in tokens. Reserves room in both plans for the largest step.
  StepChecker(const mr_runner_config& config, const Description& desc, int32_t positions);

  void reserve(StepPlan& plan) const;
  // Copies the step into plan, or throws INVALID_ARGUMENT or OUT_OF_RANGE saying which element is wrong and why; then
  // the checker is as before and the plan's content is unspecified. `also`, where given, is asked about the whole plan
  // and may refuse it by throwing, to the same effect.
  void accept(const mr_step& step, StepPlan& plan, const std::function<void(const StepPlan&)>& also = {});
  void take_back();  // the step just accepted, which will not run: the checker is as before it

  // Copies masks that came late into their plan. Throws INVALID_ARGUMENT, having changed nothing, for another number of words.
  static void accept_masks(const uint32_t* masks, int64_t words, StepPlan& plan);

 private:
  struct View {  // a slot as it will be when every accepted step has run
    bool set = false;
    uint32_t generation = 0;
    int32_t length = 0;
    uint64_t sampled_step = 0;  // the last step that samples for it, 0 = none
    uint64_t fed_step = 0;      // the last step with a segment of it
    int32_t state = 0;          // which that segment wrote
  };
  struct Undo {
    int32_t slot;
    View view;
  };
  // Slots whose segments name a state in the step that is checked.
  struct Users {
    int32_t reader = kNoSlot, writer = kNoSlot;
  };
  static constexpr int32_t kNoSlot = -1, kManySlots = -2;
  static constexpr int32_t kUnread = -1;  // the position of a state that no step has written

  View& change(int32_t slot);
  // Blocks of host memory, of one group.
  struct HostWritten {
    std::vector<bool> written;   // by block, up to the highest that an accepted step writes: whether one does
    std::vector<int32_t> undo;   // blocks that the step accepted last is the first to write
    bool has(int32_t block) const;
    void write(int32_t block);
    void take_back();
  };
  void undo();
  View& find(int32_t slot, uint32_t generation, const char* what, int32_t index);
  void take_flags(const mr_step& step, StepPlan& plan) const;
  void take_pre_ops(const mr_step& step, StepPlan& plan);
  void take_block(const mr_pre_op& op, int32_t index, StepPlan::PreOp& to);
  void take_state(const mr_pre_op& op, int32_t index, StepPlan::PreOp& to);
  void take_states(mr_segment& segment, int32_t index, const View& slot);
  void take_table(const mr_step& step, mr_segment& segment, int32_t index, bool window, StepPlan& plan) const;
  void take_history(const mr_pre_op& op, const char* where, StepPlan::PreOp& to) const;
  void take_segments(const mr_step& step, StepPlan& plan);
  void take_tokens(const mr_step& step, const mr_segment& segment, int32_t index, int32_t first, StepPlan& plan);
  void take_samples(const mr_step& step, StepPlan& plan);
  void take_scores(const mr_step& step, StepPlan& plan);
  void take_hidden(const mr_step& step, StepPlan& plan) const;

  const mr_runner_config config_;
  const int32_t vocab_, context_, positions_;
  const bool whole_texts_;  // a segment is one
  const bool states_;       // layers carry them
  const int32_t window_;    // of the window group; 0 = the runner has none
  uint64_t accepted_ = 0;  // steps
  std::vector<View> views_;
  std::vector<Undo> undo_;
  HostWritten host_written_, host_window_written_;
  // Up to which position each state and each state of host memory has read, and the same before the step accepted last. Empty if no
  // layer carries a state.
  std::vector<int32_t> read_, host_read_, undo_read_, undo_host_read_;
  std::vector<Users> users_;
};

}  // namespace mr
