// host_piece: memory for blocks of host memory, taken from the system outside the ledger.
#pragma once

#include <cstdint>

#include "ledger.h"

namespace mr::cpu {

// Zeroed bytes, page-aligned; given back on destruction.
class HostPiece {
 public:
  // bytes >= 1. Throws RESOURCE_EXHAUSTED when the machine does not have them available: the system would give them all the
  // same, and end the process when they are written. The ledger is asked for refusals that a test wants.
  HostPiece(Ledger& ledger, uint64_t bytes);
  ~HostPiece();
  HostPiece(const HostPiece&) = delete;
  HostPiece& operator=(const HostPiece&) = delete;

  void* data() const { return data_; }

 private:
  const uint64_t bytes_;
  void* data_;
};

}  // namespace mr::cpu
