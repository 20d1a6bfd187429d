// trainer: slices of a training, in the order of their submission, on a thread of their own.
#pragma once

#include <cstdint>
#include <memory>

#include "millrace/vectors.h"
#include "src/device.h"

namespace mr::cuda {

// Used by one thread at a time. Its work goes to streams of the lowest priority, so that steps of runners come first.
class Trainer {
 public:
  static void cost(const Device& device, const mr_trainer_config& config, mr_trainer_cost* out);

  Trainer(std::shared_ptr<Device> device, const mr_trainer_config& config);
  ~Trainer();  // waits for the units of work in flight
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

}  // namespace mr::cuda
