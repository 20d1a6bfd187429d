// device: the part of a device that a trainer needs, on the host.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "src/handles.h"
#include "src/ledger.h"
#include "src/transfer.h"

namespace mr::cuda {

class Device {
 public:
  explicit Device(uint64_t bytes) : ledger(0, bytes, UINT64_MAX), transfers(0) {}
  void enter() const {}

  const int index = 0;
  const cudaDeviceProp properties;
  const int priority_low = 0;
  mutable Ledger ledger;
  mutable Transfers transfers;
  std::atomic<int64_t> trainers{0};
};

}  // namespace mr::cuda
