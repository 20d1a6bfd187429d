// threads: the worker threads of a device. The number of threads never changes bits: work is cut into tasks by the
// caller, and a task computes the same whichever thread takes it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace mr::cpu {

// Sets this thread's floating-point control word to round to nearest, denormals kept, exceptions masked; gives the old
// one back on destruction. Every thread that computes holds one.
class FloatEnvironment {
 public:
  FloatEnvironment();
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  uint64_t saved_;
};

// CPUs this process may use: its affinity mask, cut by the quota of its control group (rounded up). At least 1.
int allowed_cpus();

// A fixed team. The calling thread works as thread 0 of size(). Workers spin for a while after a run (spin.h) and then
// sleep on a futex. Any thread may call run; calls by several threads take turns. A call from inside a task is
// refused with INTERNAL. The first exception a task throws is thrown by run after every thread has stopped; tasks not yet begun
// are dropped.
class Threads {
 public:
  explicit Threads(int count);  // count >= 1
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int size() const { return count_; }

  // Calls fn(task, thread) for every task in [0, tasks), 0 <= thread < size(); free threads take the next task.
  template <class F>
  void run(int64_t tasks, F&& fn) {
    using Fn = std::remove_reference_t<F>;
    dispatch(tasks, [](void* f, int64_t task, int thread) { (*static_cast<Fn*>(f))(task, thread); },
             const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Cuts [0, count) into at most size() contiguous ranges whose lengths are multiples of `grain` but for the last, and
  // calls fn(begin, end, thread) once for each: thread t gets the t-th range, so that repeated runs touch the same memory.
  template <class F>
  void split(int64_t count, int64_t grain, F&& fn) {
    if (count <= 0) return;
    const int64_t pieces = (count + grain - 1) / grain;
    const int64_t n = count_;
    run_each([&, pieces, n](int thread) {
      const int64_t begin = pieces * thread / n * grain;
      int64_t end = pieces * (thread + 1) / n * grain;
      if (end > count) end = count;
      if (begin < end) fn(begin, end, thread);
    });
  }

  // Calls fn(thread) once on each thread.
  template <class F>
  void run_each(F&& fn) {
    using Fn = std::remove_reference_t<F>;
    dispatch(kEach, [](void* f, int64_t, int thread) { (*static_cast<Fn*>(f))(thread); },
             const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Calls fn(thread) once on thread 0, and on every other thread that arrives before fn has returned on thread 0: a thread
  // that the system does not run delays no other. On thread 0, fn must not wait for a thread that has not arrived.
  template <class F>
  void run_present(F&& fn) {
    using Fn = std::remove_reference_t<F>;
    dispatch(kPresent, [](void* f, int64_t, int thread) { (*static_cast<Fn*>(f))(thread); },
             const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Pins the calling thread where thread 0 belongs. For a thread that lives to call run, such as a runner's.
  void adopt_caller() const;

 private:
  using Call = void (*)(void* fn, int64_t task, int thread);
  static constexpr int64_t kEach = -1, kPresent = -2;  // once a thread, instead of a number of tasks
  static constexpr uint64_t kClosed = uint64_t{1} << 31;

  void dispatch(int64_t tasks, Call call, void* fn);
  bool join(uint32_t* seen, uint32_t* joined);
  void work(int thread);
  void serve(int thread);
  void place(int thread) const;

  const int count_;
  std::vector<int> cpus_;  // thread t runs on cpus_[t]; empty: anywhere
  std::vector<std::thread> workers_;
  std::mutex turn_;  // held by the caller of run

  // The run in progress; written by the caller before it raises generation_.
  Call call_ = nullptr;
  void* fn_ = nullptr;
  int64_t tasks_ = 0;
  std::atomic<bool> stop_{false};
  std::exception_ptr failure_;
  std::atomic<bool> failed_{false};

  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
  std::atomic<uint32_t> sleepers_{0};
  // The run that workers may join: its generation, whether it is closed to more, and how many have joined.
  alignas(64) std::atomic<uint64_t> gate_{kClosed};
  alignas(64) std::atomic<uint32_t> finished_{0};  // of those
  std::atomic<uint32_t> caller_sleeps_{0};
};

}  // namespace mr::cpu
