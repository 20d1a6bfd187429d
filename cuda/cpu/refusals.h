// refusals: injected faults of a ledger: allocations or frees that the system refuses.
#pragma once

#include <cstdint>
#include <mutex>

#include "error.h"
#include "millrace/engine.h"

namespace mr {

// Safe for use by any number of threads.
class Refusals {
 public:
  // Of the blocks that follow, `skip` pass and the `count` behind them are refused. Throws INVALID_ARGUMENT.
  void ask(int32_t fault, int32_t skip, uint64_t count) {
    if (fault != MR_FAULT_REFUSE_ALLOC && fault != MR_FAULT_REFUSE_FREE)
      fail(MR_INVALID_ARGUMENT, "fault is %d: a device knows %d and %d", fault, MR_FAULT_REFUSE_ALLOC, MR_FAULT_REFUSE_FREE);
    if (skip < 0) fail(MR_INVALID_ARGUMENT, "index is %d: want how many blocks pass first, 0 or more", skip);
    const std::lock_guard<std::mutex> lock(mutex_);
    plan(fault) = {static_cast<uint64_t>(skip), count};
  }

  // Whether the next block is refused.
  bool pending(int32_t fault) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    return plan(fault).skip == 0 && plan(fault).count != 0;
  }

  // Whether this block is refused; counts it.
  bool take(int32_t fault) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    Plan& of = plan(fault);
    if (of.count == 0) return false;
    if (of.skip != 0) {
      --of.skip;
      return false;
    }
    --of.count;
    return true;
  }

 private:
  struct Plan {
    uint64_t skip = 0, count = 0;
  };
  Plan& plan(int32_t fault) { return plans_[fault == MR_FAULT_REFUSE_FREE ? 1 : 0]; }

  std::mutex mutex_;
  Plan plans_[2];
};

}  // namespace mr
