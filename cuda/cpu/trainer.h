// trainer: slices of a training, in the order of their submission, on a thread of their own.
#pragma once

#include <cstdint>
#include <memory>

#include "device.h"
#include "millrace/vectors.h"

namespace mr::cpu {

// Used by one thread at a time. While no runner lives on the device its team does the work; while one lives, the device's
// background thread does, so that no step waits for it.
class Trainer {
 public:
  static void cost(const Device& device, const mr_trainer_config& config, mr_trainer_cost* out);

  Trainer(std::shared_ptr<Device> device, const mr_trainer_config& config);
  ~Trainer();  // waits for the unit of work at hand
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void write(uint64_t first, const void* rows, uint64_t count);
  void give(const void* codewords, uint64_t size);
  void restore(const void* state, uint64_t size);
  void submit(const mr_slice& slice);
  void wait(uint64_t timeout_ns, mr_training* out);
  uint64_t size(int32_t what) const;
  void read(int32_t what, uint64_t offset, void* dst, uint64_t size) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mr::cpu
