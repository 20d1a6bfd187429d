// blocks: where the blocks of a runner's cache, and its states, lie: on the device, and in host memory.
#pragma once

#include <cstdint>

#include "cpu/host_blocks.h"
#include "cpu/step_plan.h"
#include "kernels/block_copy.h"
#include "millrace/engine.h"
#include "src/handles.h"
#include "src/ledger.h"

namespace mr::cuda {

struct Sizes;

// Host memory is pinned, so that kernels read and write it, and belongs to this until it is destroyed, when no step that uses
// it is under way any more. Used by the submitting thread.
class Blocks {
 public:
  // pool and states: as Sizes lays them out. The ledger outlives this.
  Blocks(Ledger& ledger, uint8_t* pool, uint8_t* states, const mr_runner_config& config, const Sizes& sizes);

  // Takes the host memory that a step's OUTs write for the first time. Throws RESOURCE_EXHAUSTED, having changed nothing, when
  // the driver refuses it.
  void hold(const StepPlan& plan);

  // Operations that copies are made of: every MR_PRE_BLOCK_*, except a block's copy to itself.
  static bool copies(const StepPlan::PreOp& op);
  static bool copies_state(const StepPlan::PreOp& op);  // MR_PRE_STATE_*
  BlockCopy copy_of(const StepPlan::PreOp& op) const;  // of an operation that was passed to hold

 private:
  Ledger& ledger_;
  uint8_t *const pool_, *const states_;
  mr::HostBlocks<Pinned> host_, host_window_, host_states_;  // host_window_: of the window group
};

}  // namespace mr::cuda
