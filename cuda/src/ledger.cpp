#include "src/ledger.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <numeric>
#include <utility>

#include "src/error.h"
#include "src/handles.h"

namespace mr::cuda {
namespace {

constexpr uint64_t kPage = uint64_t{2} << 20;     // the driver's mapping unit for large blocks
constexpr uint64_t kLargest = uint64_t{1} << 46;  // beyond any GPU; keeps the arithmetic from overflowing
constexpr const char* kPurposes[MR_PURPOSE_COUNT] = {"staging", "weights", "kv cache", "workspace"};

// The size class of a request: whole pages from a page on, at most an eighth above the size below it. Blocks of one class
// can replace each other.
uint64_t size_class(uint64_t size) {
  if (size >= kPage) return (size + kPage - 1) / kPage * kPage;
  uint64_t step = 512;
  while (step * 8 < size) step *= 2;
  return (size + step - 1) / step * step;
}

unsigned long long ull(uint64_t value) { return value; }

}  // namespace

Memory::~Memory() {
  if (reset() != cudaSuccess) ledger_->adopt({data_, size_, capacity_, purpose_});
}

cudaError_t Memory::reset() noexcept {
  if (data_ == nullptr) return cudaSuccess;
  if (const cudaError_t error = ledger_->release(data_, size_, capacity_, purpose_); error != cudaSuccess) return error;
  data_ = nullptr;
  size_ = 0;
  return cudaSuccess;
}

void Memory::swap(Memory& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  std::swap(purpose_, other.purpose_);
}

Ledger::Ledger(int device, uint64_t limit, uint64_t pool_limit)
    : device_(device), limit_(limit),
      pool_limit_(pool_limit == UINT64_MAX ? 0 : pool_limit != 0 ? pool_limit : limit / 5 * 4) {}

Ledger::~Ledger() { trim(); }

uint64_t Ledger::used_locked() const { return std::accumulate(used_.begin(), used_.end(), uint64_t{0}); }

cudaError_t Ledger::driver_take(uint64_t capacity, void** data) const {
  const SlowCall alone(slow_calls());
  cudaError_t error = cudaSetDevice(device_);
  if (error == cudaSuccess) error = cudaMalloc(data, capacity);
  if (error == cudaSuccess) return error;
  *data = nullptr;
  (void)cudaGetLastError();  // clear the error: out of memory does not persist
  return error;
}

void* Ledger::take(uint64_t capacity, cudaError_t* error) {
  void* data = nullptr;
  *error = driver_take(capacity, &data);
  if (*error != cudaErrorMemoryAllocation) return data;
  trim();
  *error = driver_take(capacity, &data);
  return data;
}

std::string Ledger::numbers(uint64_t size, int32_t purpose) const {
  const LedgerCounts now = counts();
  char text[256];
  std::snprintf(text, sizeof text, "%llu bytes of %s asked, %llu of %llu bytes free by the ledger", ull(size),
                kPurposes[purpose], ull(now.free()), ull(limit_));
  std::string all = text;
  size_t free = 0, total = 0;
  if (cudaSetDevice(device_) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) {
    (void)cudaGetLastError();
    return all + ", an unknown number on the device";
  }
  const uint64_t taken = total - std::min(free, total);
  std::snprintf(text, sizeof text, ", %zu of %zu free on the device, %llu held by others or the driver", free, total,
                ull(taken - std::min(taken, now.held)));
  return all + text;
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
    }
    if (trimmed || size > limit_) throw Error(MR_RESOURCE_EXHAUSTED, 0, numbers(size, purpose));
    trim();  // live bytes go before kept ones
  }
}

Memory Ledger::allocate(uint64_t size, int32_t purpose) {
  Memory memory;
  if (size == 0) return memory;
  if (size > kLargest) throw Error(MR_RESOURCE_EXHAUSTED, 0, numbers(size, purpose));
  const uint64_t capacity = size_class(size);
  const bool refused = refusals_.take(MR_FAULT_REFUSE_ALLOC);
  void* data = reserve(size, capacity, purpose, !refused);
  if (data == nullptr) {
    cudaError_t error = cudaErrorMemoryAllocation;
    if (!refused) data = take(capacity, &error);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (data == nullptr) {
        used_[static_cast<size_t>(purpose)] -= size;
      } else {
        held_ += capacity;
      }
    }
    if (data == nullptr)
      throw Error(error == cudaErrorMemoryAllocation ? MR_RESOURCE_EXHAUSTED : MR_INTERNAL, error,
                  numbers(size, purpose) + ", but the driver refuses: " + cudaGetErrorName(error));
  }
  memory.ledger_ = this;
  memory.data_ = data;
  memory.size_ = size;
  memory.capacity_ = capacity;
  memory.purpose_ = purpose;
  return memory;
}

cudaError_t Ledger::release(void* data, uint64_t size, uint64_t capacity, int32_t purpose) noexcept {
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
  if (keep) return cudaSuccess;
  const cudaError_t error = give(data, capacity);
  if (error != cudaSuccess) return error;
  const std::lock_guard<std::mutex> lock(mutex_);
  used_[static_cast<size_t>(purpose)] -= size;
  return cudaSuccess;
}

cudaError_t Ledger::give(void* data, uint64_t capacity) noexcept {
  cudaError_t error = cudaErrorUnknown;
  if (!refusals_.take(MR_FAULT_REFUSE_FREE)) {
    const SlowCall alone(slow_calls());
    (void)cudaSetDevice(device_);  // a thread that has called nothing yet would begin with the first GPU
    error = cudaFree(data);
    if (error != cudaSuccess) (void)cudaGetLastError();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error == cudaSuccess) {
    held_ -= capacity;
  } else {
    ++failed_frees_;
  }
  return error;
}

void Ledger::give_back(const Pool& blocks) noexcept {
  for (const auto& [capacity, data] : blocks) {
    if (give(data, capacity) == cudaSuccess) continue;
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
    const cudaError_t error = give(block.data, block.capacity);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error != cudaSuccess) {
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

}  // namespace mr::cuda
