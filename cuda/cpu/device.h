// device: the CPU as the engine sees it: an instruction-set path, a team of threads and a ledger of bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "background.h"
#include "isa.h"
#include "ledger.h"
#include "millrace/engine.h"
#include "threads.h"

namespace mr::cpu {

// Version of every rule that decides bits, on every path of this engine.
constexpr char kNumerics[] = "cpu-1";

// Safe for use by any number of threads.
class Device {
 public:
  explicit Device(const mr_device_options& options);  // options already completed; throws

  void info(mr_device_info* out) const;
  std::string label() const;  // for messages, to distinguish devices
  // Throws FAILED_PRECONDITION while anything of the device lives.
  void check_idle() const;

  // Runs work that is not part of a step: repacking, digests. All threads of the team do it while no runner lives. While
  // one lives, a single background thread of low priority does it, so that a step never waits for it. Tasks must be
  // small (about a megabyte each), because every call chooses again. fn(task, thread) as in Threads::run.
  template <class F>
  void aside(int64_t tasks, F&& fn) {
    if (runners.load() == 0) {
      threads.run(tasks, fn);
      return;
    }
    background.run([&] {
      for (int64_t task = 0; task < tasks; ++task) fn(task, 0);
    });
  }

  const Isa isa;
  Threads threads;
  Ledger ledger;
  Background background;
  std::atomic<int64_t> buffers{0}, models{0}, runners{0}, trainers{0}, codebooks{0};  // alive

 private:
  const std::string name_;
  const int64_t number_;  // of the devices this process has opened
};

}  // namespace mr::cpu
