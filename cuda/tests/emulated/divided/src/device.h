// device: the part of a device that shards and ranks need, on the host.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <vector>

#include "src/handles.h"
#include "src/ledger.h"
#include "src/transfer.h"
#include "src/turn.h"

namespace mr::cuda {

class Device {
 public:
  explicit Device(int32_t ranks) {
    for (int32_t i = 1; i < ranks; ++i) others_.push_back(std::make_unique<Device>(1));
  }
  void enter() const {}
  int32_t ranks() const { return static_cast<int32_t>(others_.size()) + 1; }
  Device& rank(int32_t index) { return index == 0 ? *this : *others_[static_cast<size_t>(index) - 1]; }

  const int index = 0;
  const cudaDeviceProp properties;
  const int priority_low = 0;
  mutable Ledger ledger{0, uint64_t{4} << 30, UINT64_MAX};
  mutable Transfers transfers{0};
  Turns turns;

 private:
  std::vector<std::unique_ptr<Device>> others_;
};

}  // namespace mr::cuda
