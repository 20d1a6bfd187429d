// ledger: the memory of a GPU, counted by purpose, with a ceiling and a pool of freed blocks.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>

#include "millrace/engine.h"

namespace mr::cuda {

class Ledger;

// Device bytes owned by one holder; given back to the ledger on destruction. The ledger outlives it. data() is 256-byte
// aligned. Work that still uses the bytes has ended when they are given back.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    Memory(std::move(other)).swap(*this);
    return *this;
  }
  ~Memory() { (void)reset(); }

  template <class T>
  T* as() const { return static_cast<T*>(data_); }
  uint8_t* data() const { return as<uint8_t>(); }
  uint64_t size() const { return size_; }  // bytes asked for: what the ledger counts
  explicit operator bool() const { return data_ != nullptr; }
  cudaError_t reset() noexcept;  // gives the bytes back now
  void swap(Memory& other) noexcept;

 private:
  friend class Ledger;
  Ledger* ledger_ = nullptr;
  void* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t capacity_ = 0;  // >= size_: the size class
  int32_t purpose_ = 0;
};

struct LedgerCounts {
  uint64_t total;                   // the ceiling
  uint64_t used[MR_PURPOSE_COUNT];  // live bytes; sum <= total
  uint64_t pooled;                  // capacity of freed blocks kept for reuse; sum(used) + pooled <= total
  uint64_t hits, misses;            // allocations served by the pool, and by the driver
  uint64_t failed_frees;            // blocks the driver refused to take back
};

// Safe for use by any number of threads. Only plain device memory is ever taken: nothing falls back to the host's.
class Ledger {
 public:
  // limit: bytes. pool_limit: bytes, 0 = 80 % of the limit, UINT64_MAX = no pool.
  Ledger(int device, uint64_t limit, uint64_t pool_limit);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Bytes that hold anything; size 0 holds nothing. Throws RESOURCE_EXHAUSTED with the bytes asked and free when the
  // ceiling or the driver does not allow it; nothing is held then and the device stays usable.
  Memory allocate(uint64_t size, int32_t purpose);

  LedgerCounts counts() const;
  void trim();  // gives every pooled block back to the driver

 private:
  friend class Memory;
  using Pool = std::multimap<uint64_t, void*>;  // blocks by capacity

  cudaError_t release(void* data, uint64_t size, uint64_t capacity, int32_t purpose) noexcept;
  uint64_t used_locked() const;
  // To the driver, without the lock; the first error.
  cudaError_t give_back(const Pool& blocks) noexcept;
  cudaError_t give_back(void* data) noexcept;
  void* take(uint64_t capacity, cudaError_t* error) const;

  const int device_;
  const uint64_t limit_, pool_limit_;
  mutable std::mutex mutex_;
  std::array<uint64_t, MR_PURPOSE_COUNT> used_{};
  uint64_t pooled_ = 0, hits_ = 0, misses_ = 0, failed_frees_ = 0;
  Pool pool_;
};

}  // namespace mr::cuda
