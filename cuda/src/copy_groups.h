// copy_groups: which copies of blocks, or of states, a step may run at once.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "cpu/step_plan.h"

namespace mr::cuda {

// Cuts copies of blocks, or of states, added in their order, into groups. Within a group none reads or writes what another one writes, so
// that its order does not matter; the groups run one after another. A step seldom has more than one.
class CopyGroups {
 public:
  void clear();
  void add(const StepPlan::PreOp& op);  // MR_PRE_BLOCK_*, or in an object of its own MR_PRE_STATE_*
  const std::vector<int32_t>& ends() const { return ends_; }  // by group: operations in it and in those before it; ascending

 private:
  std::vector<int32_t> ends_;
  std::unordered_set<int64_t> read_, written_;  // by the last group: places of the device, and of host memory as ~place
};

}  // namespace mr::cuda
