// ledger: the memory of a device, counted by purpose, with a ceiling and a pool of freed blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "millrace/engine.h"
#include "refusals.h"

namespace mr::cpu {

class Ledger;

// Bytes owned by one holder; given back to the ledger on destruction, where a refusal of the system leaves them with the
// ledger, counted. The ledger outlives it.
// data() is 64-byte aligned; from 2 MiB on it is 2 MiB aligned and asks for huge pages.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    Memory(std::move(other)).swap(*this);
    return *this;
  }
  ~Memory();

  void* data() const { return data_; }
  template <class T>
  T* as() const { return static_cast<T*>(data_); }
  uint64_t size() const { return size_; }      // requested bytes, which the ledger counts
  bool zeroed() const { return zeroed_; }      // every byte was zero when allocated
  explicit operator bool() const { return data_ != nullptr; }
  int reset() noexcept;  // gives the bytes back now: 0, or the errno of a system that refuses them, and nothing has changed
  void swap(Memory& other) noexcept;

 private:
  friend class Ledger;
  Ledger* ledger_ = nullptr;
  void* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t capacity_ = 0;  // >= size_: the size class
  int32_t purpose_ = 0;
  bool zeroed_ = false;
};

struct LedgerCounts {
  uint64_t total;                  // the ceiling
  uint64_t used[MR_PURPOSE_COUNT]; // live bytes; sum <= total
  uint64_t pooled;                 // capacity of freed blocks that are still held; sum(used) + pooled <= total
  uint64_t stuck;                  // of pooled, those that the system refuses, which nothing is served from
  uint64_t held;                   // capacity of every block the system has given and not taken back
  uint64_t hits, misses;           // allocations served by the pool, and not
  uint64_t failed_frees;           // times the system refused to take a block back

  uint64_t free() const;  // what can still be allocated: every block of the pool but the stuck ones is given up for it
};

// Safe for use by any number of threads.
class Ledger {
 public:
  // limit: bytes, 0 = 80 % of available_memory(). pool_limit: bytes, 0 = default, UINT64_MAX = no pool.
  Ledger(uint64_t limit, uint64_t pool_limit);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Bytes that are zero when `zero` is set and unspecified otherwise; size 0 holds nothing. Throws RESOURCE_EXHAUSTED with the bytes
  // asked and free when the ceiling or the system does not allow it; nothing is held then.
  Memory allocate(uint64_t size, int32_t purpose, bool zero);

  LedgerCounts counts() const;
  void trim() noexcept;  // gives every pooled block, and those refused before, back to the system
  void refuse(int32_t fault, int32_t skip, uint64_t count) { refusals_.ask(fault, skip, count); }  // for tests
  // Whether the injected fault refuses memory outside the ledger, such as blocks of host memory.
  bool refuses_outside() noexcept { return refusals_.take(MR_FAULT_REFUSE_ALLOC); }

 private:
  friend class Memory;
  using Pool = std::multimap<uint64_t, void*>;  // blocks by capacity

  // A block that the system refused and that has no owner any more.
  struct Refused {
    void* data;
    uint64_t size, capacity;
    int32_t purpose;  // which counts it, or kOfPool
  };
  static constexpr int32_t kOfPool = -1;

  // Counts the bytes and gives a block of the pool for them, if wanted, or null where a new one is needed; throws
  // RESOURCE_EXHAUSTED.
  void* reserve(uint64_t size, uint64_t capacity, int32_t purpose, bool pooled);
  void* take(uint64_t capacity);
  // An errno where the system refuses the block, which is as before then.
  int release(void* data, uint64_t size, uint64_t capacity, int32_t purpose) noexcept;
  int give(void* data, uint64_t capacity) noexcept;  // without the lock
  void give_back(const Pool& blocks) noexcept;       // without the lock
  void adopt(const Refused& block) noexcept;
  void adopt_locked(const Refused& block) noexcept;
  uint64_t used_locked() const;

  const uint64_t limit_, pool_limit_;
  Refusals refusals_;
  mutable std::mutex mutex_;
  std::array<uint64_t, MR_PURPOSE_COUNT> used_{};
  uint64_t pooled_ = 0, stuck_ = 0, held_ = 0, hits_ = 0, misses_ = 0, failed_frees_ = 0;
  Pool pool_;
  std::vector<Refused> refused_;
};

// Bytes that this process can still allocate: the smaller of the system's available memory and the rest of the control group.
uint64_t available_memory();

}  // namespace mr::cpu
