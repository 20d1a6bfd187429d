// fair_mutex: a lock that comes to its waiters in the order in which they asked.
//
// A std::mutex is unfair: a thread that locks it again right after it has unlocked it can starve threads that sleep until it is
// free. Then a thread that allocates from the driver in a loop would let no step be queued.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace mr::cuda {

// Its holder may take it again, and gives it back as often. Meets BasicLockable.
class FairMutex {
 public:
  FairMutex() = default;
  FairMutex(const FairMutex&) = delete;
  FairMutex& operator=(const FairMutex&) = delete;

  void lock() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (depth_ == 0 || holder_ != std::this_thread::get_id()) {
      const uint64_t own = asked_++;
      served_.wait(lock, [&] { return own == given_ && depth_ == 0; });
      holder_ = std::this_thread::get_id();
    }
    ++depth_;
  }

  void unlock() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--depth_ > 0) return;
    ++given_;
    served_.notify_all();
  }

  // How many wait for it.
  uint64_t waiting() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return asked_ - given_ - (depth_ > 0 ? 1 : 0);
  }

 private:
  mutable std::mutex mutex_;  // held for moments alone
  std::condition_variable served_;
  uint64_t asked_ = 0, given_ = 0;  // tickets of outermost locks: the next to issue, and the one that holds or gets the lock
  int32_t depth_ = 0;               // of the holder's locks; 0: it is free
  std::thread::id holder_;
};

}  // namespace mr::cuda
