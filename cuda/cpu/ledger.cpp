#include "ledger.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "cgroup.h"
#include "error.h"

namespace mr::cpu {
namespace {

constexpr uint64_t kHuge = uint64_t{2} << 20;                // size and alignment of a huge page
constexpr uint64_t kDefaultPool = uint64_t{256} << 20;       // enough for the staging buffers of a load
constexpr uint64_t kLargest = uint64_t{1} << 46;             // beyond any machine; keeps the arithmetic from overflowing
constexpr const char* kPurposes[MR_PURPOSE_COUNT] = {"staging", "weights", "kv cache", "workspace"};

// The size class of a request: at most an eighth above it, from 64 bytes up. Blocks of one class can replace each other.
uint64_t size_class(uint64_t size) {
  uint64_t step = 64;
  while (step * 8 < size) step *= 2;
  return (size + step - 1) / step * step;
}

// Bytes from the system, or null and errno. A block of at least kHuge is a mapping and zero, a smaller one is of the heap
// and holds anything.
void* system_take(uint64_t capacity) {
  if (capacity < kHuge) return std::aligned_alloc(64, capacity);
  void* mapping = mmap(nullptr, capacity + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  uint8_t* begin = static_cast<uint8_t*>(mapping);
  const uint64_t head = (kHuge - reinterpret_cast<uintptr_t>(begin) % kHuge) % kHuge;
  if (head != 0) munmap(begin, head);
  if (head != kHuge) munmap(begin + head + capacity, kHuge - head);
  (void)madvise(begin + head, capacity, MADV_HUGEPAGE);  // advice: a kernel without huge pages is only slower
  return begin + head;
}

uint64_t system_available() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  uint64_t value = 0;
  while (file >> key >> value) {
    if (key == "MemAvailable:") return value * 1024;
    std::getline(file, unit);
  }
  return uint64_t{1} << 30;  // an unknown system gets a gigabyte
}

}  // namespace

uint64_t available_memory() { return std::min(system_available(), cgroup_memory_left()); }

Memory::~Memory() {
  if (reset() != 0) ledger_->adopt({data_, size_, capacity_, purpose_});
}

int Memory::reset() noexcept {
  if (data_ == nullptr) return 0;
  if (const int error = ledger_->release(data_, size_, capacity_, purpose_); error != 0) return error;
  data_ = nullptr;
  size_ = 0;
  return 0;
}

void Memory::swap(Memory& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  std::swap(purpose_, other.purpose_);
  std::swap(zeroed_, other.zeroed_);
}

Ledger::Ledger(uint64_t limit, uint64_t pool_limit)
    : limit_(limit != 0 ? limit : available_memory() / 5 * 4),
      pool_limit_(pool_limit == UINT64_MAX ? 0 : pool_limit != 0 ? pool_limit : std::min(kDefaultPool, limit_ / 8)) {}

Ledger::~Ledger() { trim(); }

uint64_t Ledger::used_locked() const { return std::accumulate(used_.begin(), used_.end(), uint64_t{0}); }

void* Ledger::take(uint64_t capacity) {
  void* data = system_take(capacity);
  if (data == nullptr) {
    trim();
    data = system_take(capacity);
  }
  return data;
}

void* Ledger::reserve(uint64_t size, uint64_t capacity, int32_t purpose, bool pooled) {
  for (bool trimmed = false;; trimmed = true) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const uint64_t free = limit_ - std::min(limit_, used_locked() + stuck_);
      const auto block = pooled ? pool_.find(capacity) : pool_.end();
      const uint64_t kept = pooled_ - (block != pool_.end() ? capacity : 0);
      if (size <= free && kept <= free - size) {
        used_[static_cast<size_t>(purpose)] += size;
        if (block == pool_.end()) {
          ++misses_;
          return nullptr;
        }
        void* const data = block->second;
        pooled_ -= capacity;
        pool_.erase(block);
        ++hits_;
        return data;
      }
      if (trimmed || size > limit_)
        fail(MR_RESOURCE_EXHAUSTED, "%llu bytes of %s asked, %llu of %llu bytes free", static_cast<unsigned long long>(size),
             kPurposes[purpose], static_cast<unsigned long long>(free), static_cast<unsigned long long>(limit_));
    }
    trim();  // live bytes go before kept ones
  }
}

Memory Ledger::allocate(uint64_t size, int32_t purpose, bool zero) {
  Memory memory;
  if (size == 0) return memory;
  if (size > kLargest)
    fail(MR_RESOURCE_EXHAUSTED, "%llu bytes of %s asked: more than any machine has, and %llu are free",
         static_cast<unsigned long long>(size), kPurposes[purpose], static_cast<unsigned long long>(counts().free()));
  const uint64_t capacity = size_class(size);
  const bool refused = refusals_.take(MR_FAULT_REFUSE_ALLOC);
  void* data = reserve(size, capacity, purpose, !refused);
  memory.zeroed_ = data == nullptr && capacity >= kHuge;
  if (data == nullptr) {
    data = refused ? nullptr : take(capacity);
    const int error = refused ? ENOMEM : errno;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (data == nullptr) {
      used_[static_cast<size_t>(purpose)] -= size;
      fail_errno(MR_RESOURCE_EXHAUSTED, error, "%llu bytes of %s asked, %llu of %llu bytes free, but the system refuses",
                 static_cast<unsigned long long>(size), kPurposes[purpose],
                 static_cast<unsigned long long>(limit_ - std::min(limit_, used_locked() + stuck_)),
                 static_cast<unsigned long long>(limit_));
    }
    held_ += capacity;
  }
  if (zero && !memory.zeroed_) {
    std::memset(data, 0, size);
    memory.zeroed_ = true;
  }
  memory.ledger_ = this;
  memory.data_ = data;
  memory.size_ = size;
  memory.capacity_ = capacity;
  memory.purpose_ = purpose;
  return memory;
}

int Ledger::release(void* data, uint64_t size, uint64_t capacity, int32_t purpose) noexcept {
  Pool out;
  bool keep = !refusals_.pending(MR_FAULT_REFUSE_FREE) && capacity <= pool_limit_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t others = used_locked() - size + stuck_;
    keep = keep && others + capacity <= limit_;
    if (keep && (pooled_ + capacity > pool_limit_ || others + pooled_ + capacity > limit_)) {
      out.swap(pool_);  // a pool full of other sizes is useless: empty it
      pooled_ = 0;
    }
    if (keep) {
      try {
        pool_.emplace(capacity, data);
        pooled_ += capacity;
        used_[static_cast<size_t>(purpose)] -= size;
      } catch (const std::bad_alloc&) {
        keep = false;
      }
    }
  }
  give_back(out);
  if (keep) return 0;
  const int error = give(data, capacity);
  if (error != 0) return error;
  const std::lock_guard<std::mutex> lock(mutex_);
  used_[static_cast<size_t>(purpose)] -= size;
  return 0;
}

int Ledger::give(void* data, uint64_t capacity) noexcept {
  int error = refusals_.take(MR_FAULT_REFUSE_FREE) ? EBUSY : 0;
  if (error == 0 && capacity >= kHuge && munmap(data, capacity) != 0) error = errno;
  if (error == 0 && capacity < kHuge) std::free(data);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error == 0) {
    held_ -= capacity;
  } else {
    ++failed_frees_;
  }
  return error;
}

void Ledger::give_back(const Pool& blocks) noexcept {
  for (const auto& [capacity, data] : blocks) {
    if (give(data, capacity) == 0) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    stuck_ += capacity;
    adopt_locked({data, capacity, capacity, kOfPool});
  }
}

void Ledger::adopt(const Refused& block) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  adopt_locked(block);
}

void Ledger::adopt_locked(const Refused& block) noexcept {
  try {
    refused_.push_back(block);
  } catch (const std::bad_alloc&) {
    // It stays counted and is not offered again.
  }
}

void Ledger::trim() noexcept {
  Pool blocks;
  std::vector<Refused> refused;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks.swap(pool_);
    pooled_ = 0;
    refused.swap(refused_);
  }
  give_back(blocks);
  for (const Refused& block : refused) {
    const int error = give(block.data, block.capacity);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error != 0) {
      adopt_locked(block);
    } else if (block.purpose == kOfPool) {
      stuck_ -= block.capacity;
    } else {
      used_[static_cast<size_t>(block.purpose)] -= block.size;
    }
  }
}

uint64_t LedgerCounts::free() const {
  return total - std::min(total, std::accumulate(used, used + MR_PURPOSE_COUNT, stuck));
}

LedgerCounts Ledger::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  LedgerCounts counts{limit_, {}, pooled_ + stuck_, stuck_, held_, hits_, misses_, failed_frees_};
  std::copy(used_.begin(), used_.end(), counts.used);
  return counts;
}

}  // namespace mr::cpu
