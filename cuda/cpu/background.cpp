#include "background.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "threads.h"

namespace mr::cpu {

// Nice 10 weighs about a tenth of a normal thread: steps keep their CPUs, and a load under full service still ends.
constexpr int kNice = 10;

Background::~Background() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Background::run(const std::function<void()>& job) {
  std::lock_guard<std::mutex> turn(turn_);
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  std::unique_lock<std::mutex> lock(mutex_);
  job_ = &job;
  changed_.notify_all();
  changed_.wait(lock, [this] { return job_ == nullptr; });
  if (std::exception_ptr failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
}

void Background::work() {
  // Fails only where a thread may not be made nicer, which costs nothing but the courtesy.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
  const FloatEnvironment environment;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || job_ != nullptr; });
    if (stop_) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      (*job_)();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    job_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace mr::cpu
