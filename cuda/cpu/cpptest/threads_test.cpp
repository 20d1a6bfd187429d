// The thread team: every call of a run happens, once, and no run sees a call of another.
#include "threads.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "b2_check.h"

using namespace mr;
using namespace mr::cpu;

namespace {

constexpr int kRuns = 2000;

void each_thread_comes_once(Threads& team) {
  for (int run = 0; run < kRuns; ++run) {
    std::atomic<uint64_t> came{0};
    team.run_each([&](int thread) { came.fetch_add(uint64_t{1} << 8 * thread); });
    uint64_t want = 0;
    for (int t = 0; t < team.size(); ++t) want |= uint64_t{1} << 8 * t;
    CHECK(came.load() == want, "run %d of %d threads: calls %llx, want %llx", run, team.size(),
          static_cast<unsigned long long>(came.load()), static_cast<unsigned long long>(want));
    if (came.load() != want) return;
  }
}

// Runs that do not wait: the work is done by whichever threads came, and their calls end with the run.
void present_threads_leave_nothing(Threads& team) {
  for (int run = 0; run < kRuns; ++run) {
    std::atomic<int> next{0}, done{0}, inside{0};
    std::atomic<uint64_t> came{0};
    const int tasks = run % 50;
    team.run_present([&](int thread) {
      inside.fetch_add(1);
      came.fetch_add(uint64_t{1} << 8 * thread);
      for (int task; (task = next.fetch_add(1)) < tasks;) {
        for (volatile int i = 0; i < 100; i = i + 1) {
        }
        done.fetch_add(1);
      }
      inside.fetch_sub(1);
    });
    CHECK(done.load() == tasks, "run %d: %d of %d tasks done", run, done.load(), tasks);
    CHECK(inside.load() == 0, "run %d: %d calls go on behind it", run, inside.load());
    CHECK((came.load() & ~uint64_t{0x0101010101010101}) == 0 && (came.load() & 1) == 1, "run %d: calls %llx", run,
          static_cast<unsigned long long>(came.load()));
    if (check::failures > 0) return;
    if (run % 200 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the others fall asleep
  }
}

// A thread that comes while thread 0 is at work is let in, also one that slept before the run.
void late_threads_help(Threads& team) {
  if (team.size() == 1) return;
  for (const bool asleep : {false, true}) {
    if (asleep) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<bool> helped{false};
    const auto hung = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    team.run_present([&](int thread) {
      if (thread != 0) helped = true;
      while (!helped && std::chrono::steady_clock::now() < hung) std::this_thread::yield();
    });
    CHECK(helped, "no other thread came within a minute%s", asleep ? ", from sleep" : "");
  }
}

// Both kinds of runs and tasks alternate: the gate's state after one run must not let a thread enter the next one twice.
void kinds_of_runs_mix(Threads& team) {
  for (int run = 0; run < kRuns; ++run) {
    std::atomic<int> calls{0}, tasks{0};
    team.run_present([](int) {});
    team.run_each([&](int) { calls.fetch_add(1); });
    team.run(run % 7, [&](int64_t, int) { tasks.fetch_add(1); });
    CHECK(calls.load() == team.size() && tasks.load() == run % 7, "run %d: %d calls, %d tasks", run, calls.load(), tasks.load());
    if (check::failures > 0) return;
  }
}

void what_a_task_throws_comes_back(Threads& team) {
  for (int run = 0; run < 100; ++run) {
    bool caught = false;
    try {
      team.run_present([](int thread) {
        if (thread == 0) throw std::runtime_error("thread 0");
      });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    CHECK(caught, "run %d: the exception is lost", run);
  }
}

}  // namespace

int main() {
  for (const int size : {1, 2, 3, 8}) {
    Threads team(size);
    each_thread_comes_once(team);
    present_threads_leave_nothing(team);
    late_threads_help(team);
    kinds_of_runs_mix(team);
    what_a_task_throws_comes_back(team);
  }
  return check::report("threads");
}
