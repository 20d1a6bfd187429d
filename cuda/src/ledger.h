// ledger: the memory of a GPU, counted by purpose, with a ceiling and a pool of freed blocks.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/refusals.h"
#include "millrace/engine.h"

namespace mr::cuda {

class Ledger;

// Device bytes owned by one holder; given back to the ledger on destruction, where a refusal of the driver leaves them with
// the ledger, counted. The ledger outlives it. data() is 256-byte aligned. Work that still uses the bytes has ended when they
// are given back.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    Memory(std::move(other)).swap(*this);
    return *this;
  }
  ~Memory();

  template <class T>
  T* as() const { return static_cast<T*>(data_); }
  uint8_t* data() const { return as<uint8_t>(); }
  uint64_t size() const { return size_; }  // requested bytes, which the ledger counts
  explicit operator bool() const { return data_ != nullptr; }
  cudaError_t reset() noexcept;  // gives the bytes back now; nothing has changed when the driver refuses them
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
  uint64_t pooled;                  // capacity of freed blocks that are still held; sum(used) + pooled <= total
  uint64_t stuck;                   // of pooled, those that the driver refuses, which nothing is served from
  uint64_t held;                    // capacity of every block the driver has given and not taken back
  uint64_t hits, misses;            // allocations served by the pool, and by the driver
  uint64_t failed_frees;            // times the driver refused to take a block back

  uint64_t free() const;  // what can still be allocated: every block of the pool but the stuck ones is given up for it
};

// Safe for use by any number of threads. Only plain device memory is ever taken: nothing falls back to the host's.
class Ledger {
 public:
  // limit: bytes. pool_limit: bytes, 0 = 80 % of the limit, UINT64_MAX = no pool.
  Ledger(int device, uint64_t limit, uint64_t pool_limit);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Bytes that hold anything; size 0 holds nothing. Throws RESOURCE_EXHAUSTED when the ceiling or the driver does not allow
  // it, with the bytes asked, those free by the ledger and on the device, and those that others hold of it; nothing is held
  // then and the device stays usable.
  Memory allocate(uint64_t size, int32_t purpose);

  LedgerCounts counts() const;
  void trim() noexcept;  // gives every pooled block, and those refused before, back to the driver
  void refuse(int32_t fault, int32_t skip, uint64_t count) { refusals_.ask(fault, skip, count); }  // for tests
  // Whether the injected fault refuses memory outside the ledger: blocks of host memory.
  bool refuses_outside() noexcept { return refusals_.take(MR_FAULT_REFUSE_ALLOC); }

 private:
  friend class Memory;
  using Pool = std::multimap<uint64_t, void*>;  // blocks by capacity

  // A block that the driver refused and that has no owner any more.
  struct Refused {
    void* data;
    uint64_t size, capacity;
    int32_t purpose;  // which counts it, or kOfPool
  };
  static constexpr int32_t kOfPool = -1;

  // Counts the bytes and gives a block of the pool for them, if wanted, or null where a new one is needed; throws
  // RESOURCE_EXHAUSTED.
  void* reserve(uint64_t size, uint64_t capacity, int32_t purpose, bool pooled);
  void* take(uint64_t capacity, cudaError_t* error);  // from the driver, whatever it costs the pool
  cudaError_t driver_take(uint64_t capacity, void** data) const;
  std::string numbers(uint64_t size, int32_t purpose) const;  // of a refusal
  // An error where the driver refuses the block, which is as before then.
  cudaError_t release(void* data, uint64_t size, uint64_t capacity, int32_t purpose) noexcept;
  cudaError_t give(void* data, uint64_t capacity) noexcept;  // without the lock
  void give_back(const Pool& blocks) noexcept;               // without the lock
  void adopt(const Refused& block) noexcept;
  void adopt_locked(const Refused& block) noexcept;
  uint64_t used_locked() const;

  const int device_;
  const uint64_t limit_, pool_limit_;
  Refusals refusals_;
  mutable std::mutex mutex_;
  std::array<uint64_t, MR_PURPOSE_COUNT> used_{};
  uint64_t pooled_ = 0, stuck_ = 0, held_ = 0, hits_ = 0, misses_ = 0, failed_frees_ = 0;
  Pool pool_;
  std::vector<Refused> refused_;
};

}  // namespace mr::cuda
