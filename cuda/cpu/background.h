// background: one thread of low priority for work that must not disturb running steps.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace mr::cpu {

// The thread starts with the first run and ends with the object. Callers take turns.
class Background {
 public:
  Background() = default;
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Calls job() on the background thread and returns when it is done; rethrows its exception.
  void run(const std::function<void()>& job);

 private:
  void work();

  std::mutex turn_;  // held by the caller of run
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  const std::function<void()>* job_ = nullptr;
  std::exception_ptr failure_;
  bool stop_ = false;
};

}  // namespace mr::cpu
