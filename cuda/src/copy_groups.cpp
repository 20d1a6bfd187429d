#include "src/copy_groups.h"

namespace mr::cuda {

void CopyGroups::clear() {
  ends_.clear();
  read_.clear();
  written_.clear();
}

void CopyGroups::add(const StepPlan::PreOp& op) {
  const int64_t src = op.kind == MR_PRE_BLOCK_IN || op.kind == MR_PRE_STATE_IN ? ~int64_t{op.src} : op.src;
  const int64_t dst = op.kind == MR_PRE_BLOCK_OUT || op.kind == MR_PRE_STATE_OUT ? ~int64_t{op.dst} : op.dst;
  const bool waits = written_.count(src) + written_.count(dst) + read_.count(dst) != 0;
  if (ends_.empty() || waits) {
    ends_.push_back(ends_.empty() ? 0 : ends_.back());
    read_.clear();
    written_.clear();
  }
  ++ends_.back();
  read_.insert(src);
  written_.insert(dst);
}

}  // namespace mr::cuda
