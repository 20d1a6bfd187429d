#include "src/ledger.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "src/error.h"

namespace mr::cuda {
namespace {

constexpr uint64_t kPage = uint64_t{2} << 20;     // what the driver maps large blocks in
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

cudaError_t Memory::reset() noexcept {
  if (data_ == nullptr) return cudaSuccess;
  const cudaError_t error = ledger_->release(data_, size_, capacity_, purpose_);
  data_ = nullptr;
  size_ = 0;
  return error;
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

void* Ledger::take(uint64_t capacity, cudaError_t* error) const {
  void* data = nullptr;
  *error = cudaSetDevice(device_);
  if (*error == cudaSuccess) *error = cudaMalloc(&data, capacity);
  if (*error != cudaSuccess) (void)cudaGetLastError();  // out of memory is no lasting state
  return *error == cudaSuccess ? data : nullptr;
}

Memory Ledger::allocate(uint64_t size, int32_t purpose) {
  Memory memory;
  if (size == 0) return memory;
  const char* const name = kPurposes[purpose];
  const uint64_t capacity = size <= kLargest ? size_class(size) : 0;
  void* data = nullptr;
  Pool evicted;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t free = limit_ - std::min(limit_, used_locked());
    if (size > free || capacity == 0)
      fail(MR_RESOURCE_EXHAUSTED, "%llu bytes of %s asked, %llu of %llu bytes free", ull(size), name, ull(free), ull(limit_));
    if (const auto block = pool_.find(capacity); block != pool_.end()) {
      data = block->second;
      pooled_ -= capacity;
      pool_.erase(block);
      ++hits_;
    } else {
      ++misses_;
    }
    if (pooled_ > free - size) {  // live bytes go before kept ones
      evicted.swap(pool_);
      pooled_ = 0;
    }
    used_[static_cast<size_t>(purpose)] += size;
  }
  (void)give_back(evicted);
  cudaError_t error = cudaSuccess;
  if (data == nullptr && (data = take(capacity, &error)) == nullptr) {
    trim();
    data = take(capacity, &error);
  }
  if (data == nullptr) {
    size_t device_free = 0, device_total = 0;
    (void)cudaMemGetInfo(&device_free, &device_total);
    const std::lock_guard<std::mutex> lock(mutex_);
    used_[static_cast<size_t>(purpose)] -= size;
    const int32_t code = error == cudaErrorMemoryAllocation ? MR_RESOURCE_EXHAUSTED : MR_INTERNAL;
    char text[256];
    std::snprintf(text, sizeof text,
                  "%llu bytes of %s asked, %llu of %llu bytes free by the ledger, %zu on the device, but the driver refuses: %s",
                  ull(size), name, ull(limit_ - std::min(limit_, used_locked())), ull(limit_), device_free,
                  cudaGetErrorName(error));
    throw Error(code, error, text);
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
  bool keep;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_[static_cast<size_t>(purpose)] -= size;
    keep = capacity <= pool_limit_ && used_locked() + capacity <= limit_;
    if (keep && (pooled_ + capacity > pool_limit_ || used_locked() + pooled_ + capacity > limit_)) {
      out.swap(pool_);  // a pool full of other sizes serves nobody: begin anew
      pooled_ = 0;
    }
    if (keep) {
      try {
        pool_.emplace(capacity, data);
        pooled_ += capacity;
      } catch (const std::bad_alloc&) {
        keep = false;
      }
    }
  }
  const cudaError_t error = give_back(out);
  if (keep) return error;
  const cudaError_t own = give_back(data);
  return own != cudaSuccess ? own : error;
}

cudaError_t Ledger::give_back(void* data) noexcept {
  (void)cudaSetDevice(device_);  // a thread that has called nothing yet would begin with the first GPU
  const cudaError_t error = cudaFree(data);
  if (error == cudaSuccess) return error;
  (void)cudaGetLastError();
  const std::lock_guard<std::mutex> lock(mutex_);
  ++failed_frees_;
  return error;
}

cudaError_t Ledger::give_back(const Pool& blocks) noexcept {
  cudaError_t first = cudaSuccess;
  for (const auto& [capacity, data] : blocks) {
    const cudaError_t error = give_back(data);
    if (first == cudaSuccess) first = error;
  }
  return first;
}

void Ledger::trim() {
  Pool blocks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks.swap(pool_);
    pooled_ = 0;
  }
  (void)give_back(blocks);
}

LedgerCounts Ledger::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  LedgerCounts counts{limit_, {}, pooled_, hits_, misses_, failed_frees_};
  std::copy(used_.begin(), used_.end(), counts.used);
  return counts;
}

}  // namespace mr::cuda
