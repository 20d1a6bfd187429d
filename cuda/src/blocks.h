// blocks: where the blocks of a runner's cache lie: in the device's pool, and in host memory.
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
  // pool: layers x {keys, values} x kv_blocks x block bytes, as kernels/kv.h says. The ledger outlives this.
  Blocks(Ledger& ledger, uint8_t* pool, int32_t layers, const mr_runner_config& config, const Sizes& sizes);

  // Takes the host memory that a step's OUTs write for the first time. Throws RESOURCE_EXHAUSTED, having changed nothing, when
  // the driver refuses it.
  void hold(const StepPlan& plan);

  int32_t planes() const { return planes_; }
  int64_t plane_bytes() const { return plane_bytes_; }
  // Operations that copies are made of: every MR_PRE_BLOCK_*, except a block's copy to itself.
  static bool copies(const StepPlan::PreOp& op);
  BlockCopy copy_of(const StepPlan::PreOp& op) const;  // of an operation that was passed to hold

 private:
  uint8_t* in_pool(int32_t block) const { return pool_ + block * plane_bytes_; }

  Ledger& ledger_;
  uint8_t* const pool_;
  const int32_t planes_;                // of a block: keys and values of each layer
  const int64_t plane_bytes_, stride_;  // stride_: between the planes of a block of the pool
  mr::HostBlocks<Pinned> host_;
};

}  // namespace mr::cuda
