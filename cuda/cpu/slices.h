// slices: slices of a training, done in the order of their submission on a thread of their own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "millrace/vectors.h"

namespace mr {

// One slice: the caller's limits, and the progress that the thread reports.
struct Slice {
  uint64_t budget_ns = 0;
  int64_t most_rounds = 1;
  std::vector<mr_round> rounds;
  mr_training told{};
};

// Used by one thread at a time. Its functions throw as trainer_submit and trainer_wait say.
class Slices {
 public:
  // `begin` is called on the caller's thread before the first slice, and may throw; `run` does a slice on the thread of this, and
  // returns soon once *stop is set. What they use outlives this.
  Slices(std::function<void()> begin, std::function<void(Slice*, const std::atomic<bool>& stop)> run);
  ~Slices();  // waits for the unit of work at hand
  Slices(const Slices&) = delete;
  Slices& operator=(const Slices&) = delete;

  void submit(const mr_slice& slice);
  void wait(uint64_t timeout_ns, mr_training* out);
  // Throws FAILED_PRECONDITION while a slice is in flight, INTERNAL once one has failed. Until the next submit what `run` works
  // on is the caller's.
  void check_at_rest() const;

 private:
  static constexpr uint64_t kInFlight = 2;
  void work();
  [[noreturn]] void report_failure() const;

  const std::function<void()> begin_;
  const std::function<void(Slice*, const std::atomic<bool>&)> run_;
  Slice slices_[kInFlight];
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t submitted_ = 0, done_ = 0, collected_ = 0;  // collected <= done <= submitted <= collected + kInFlight
  bool told_done_ = false, broken_ = false;
  std::string failure_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mr
