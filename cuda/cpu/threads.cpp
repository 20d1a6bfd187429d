#include "threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "cgroup.h"
#include "error.h"
#include "spin.h"

namespace mr::cpu {
namespace {

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

uint64_t read_float_control() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
#else
  return 0;
#endif
}

void write_float_control([[maybe_unused]] uint64_t value) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(value));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(value));
#endif
}

#if defined(__x86_64__)
constexpr uint64_t kFloatControl = 0x1f80;  // exceptions masked, round to nearest, no FTZ, no DAZ
#else
constexpr uint64_t kFloatControl = 0;       // the same in an FPCR
#endif

// Is this thread inside a task? Then a run would wait for itself.
thread_local bool inside_task = false;

std::vector<int> affinity() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(getpid(), sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

}  // namespace

FloatEnvironment::FloatEnvironment() : saved_(read_float_control()) {
  if (saved_ != kFloatControl) write_float_control(kFloatControl);
}

FloatEnvironment::~FloatEnvironment() { write_float_control(saved_); }

int allowed_cpus() {
  int count = static_cast<int>(affinity().size());
  if (count == 0) count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const double quota = cpu_quota();
  if (quota > 0) count = std::min(count, std::max(1, static_cast<int>(std::ceil(quota))));
  return count;
}

// Threads are pinned only when they fill the affinity mask. A team smaller than the mask (a quota, a --threads) is left
// to the kernel: pinning would put every such process of a host on the same first CPUs.
Threads::Threads(int count) : count_(count), cpus_(affinity()) {
  if (static_cast<int>(cpus_.size()) != count) cpus_.clear();
  workers_.reserve(static_cast<size_t>(count - 1));
  try {
    for (int thread = 1; thread < count; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    stop_ = true;
    generation_.fetch_add(1);
    futex_wake(generation_);
    for (std::thread& worker : workers_) worker.join();
    throw;
  }
}

Threads::~Threads() {
  std::lock_guard<std::mutex> turn(turn_);
  stop_ = true;
  generation_.fetch_add(1);
  futex_wake(generation_);
  for (std::thread& worker : workers_) worker.join();
}

void Threads::place(int thread) const {
  if (cpus_.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus_[static_cast<size_t>(thread)], &set);
  // A refusal (the mask has changed since) leaves the thread where the kernel wants it.
  (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void Threads::adopt_caller() const { place(0); }

void Threads::dispatch(int64_t tasks, Call call, void* fn) {
  if (tasks == 0) return;
  if (inside_task) fail(MR_INTERNAL, "a task of a thread team asks for the team itself");
  const FloatEnvironment environment;
  const std::lock_guard<std::mutex> turn(turn_);
  const bool alone = count_ == 1 || tasks == 1;
  call_ = call;
  fn_ = fn;
  tasks_ = tasks;
  failed_.store(false, std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  if (!alone) {
    finished_.store(0, std::memory_order_relaxed);
    gate_.store(uint64_t{generation_.load(std::memory_order_relaxed) + 1} << 32, std::memory_order_release);
    generation_.fetch_add(1);  // sequentially consistent: a worker that saw the old value is counted as a sleeper below
    if (sleepers_.load() != 0) futex_wake(generation_);
  }
  serve(0);
  if (!alone) {
    const uint32_t all = static_cast<uint32_t>(count_ - 1);
    const uint32_t joined = tasks == kPresent ? static_cast<uint32_t>(gate_.fetch_or(kClosed) & (kClosed - 1)) : all;
    if (!spin([&] { return finished_.load(std::memory_order_acquire) == joined; })) {
      caller_sleeps_.store(1);
      for (uint32_t now; (now = finished_.load()) != joined;) futex_wait(finished_, now);
      caller_sleeps_.store(0);
    }
  }
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// One thread's share of the run in progress.
void Threads::serve(int thread) {
  inside_task = true;
  try {
    if (tasks_ < 0) {
      call_(fn_, thread, thread);
    } else {
      for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) call_(fn_, task, thread);
    }
  } catch (...) {
    next_.store(INT64_MAX / 2, std::memory_order_relaxed);  // drops the tasks not yet begun
    if (!failed_.exchange(true)) failure_ = std::current_exception();
  }
  inside_task = false;
}

// Joins the run at the gate unless it is closed or was joined before. It may be newer than *seen, which is then set to it.
bool Threads::join(uint32_t* seen, uint32_t* joined) {
  for (uint64_t gate = gate_.load(std::memory_order_acquire);;) {
    const uint32_t generation = static_cast<uint32_t>(gate >> 32);
    if ((gate & kClosed) != 0 || generation == *joined) return false;
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) {
      *seen = *joined = generation;
      return true;
    }
  }
}

void Threads::work(int thread) {
  place(thread);
  const FloatEnvironment environment;
  for (uint32_t seen = 0, joined = 0;;) {
    if (!spin([&] { return generation_.load(std::memory_order_acquire) != seen; })) {
      sleepers_.fetch_add(1);
      while (generation_.load() == seen) futex_wait(generation_, seen);
      sleepers_.fetch_sub(1);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (!join(&seen, &joined)) continue;
    serve(thread);
    finished_.fetch_add(1);
    if (caller_sleeps_.load() != 0) futex_wake(finished_);
  }
}

}  // namespace mr::cpu
