#include "src/transfer.h"

#include <algorithm>
#include <cstring>

#include "src/event_wait.h"

namespace mr::cuda {

Transfers::Transfers(int device) : device_(device) {
  for (Lane& lane : lanes_) free_.push_back(&lane);
}

Transfers::Hold::Hold(Transfers& transfers) : transfers_(transfers) {
  {
    std::unique_lock<std::mutex> lock(transfers.mutex_);
    transfers.freed_.wait(lock, [&] { return !transfers.free_.empty(); });
    lane_ = transfers.free_.back();  // the last one given back, so that few lanes take memory when few are used
    transfers.free_.pop_back();
  }
  try {
    CUDA_CHECK(cudaSetDevice(transfers.device_));
    if (!lane_->ready) {
      lane_->stream = StreamHandle(0);
      for (EventHandle& event : lane_->done) event = EventHandle(cudaEventDisableTiming);
      lane_->ready = true;
    }
  } catch (...) {
    transfers_.give_back(lane_);
    throw;
  }
}

Transfers::Hold::~Hold() {
  // The call has failed half way, and its copies still use memory that the caller may free as soon as it returns.
  if (waits_) (void)cudaStreamSynchronize(lane_->stream);
  transfers_.give_back(lane_);
}

void Transfers::give_back(Lane* lane) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(lane);
  }
  freed_.notify_one();
}

void Transfers::Lane::take_halves() {
  for (Pinned& each : half)
    if (each.size() == 0) each = Pinned(kHalf);
}

// Frees the kept memory before it fails.
Pinned Transfers::pin(uint64_t size) {
  try {
    return Pinned(size);
  } catch (const Error& e) {
    if (e.code != MR_RESOURCE_EXHAUSTED) throw;
  }
  std::multimap<uint64_t, Given> kept;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    kept.swap(kept_);
    kept_bytes_ = 0;
  }
  while (!kept.empty()) {
    auto block = kept.extract(kept.begin());
    if (block.mapped().memory.reset() == cudaSuccess) continue;
    ++failed_frees_;
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_bytes_ += block.key();
    kept_.insert(std::move(block));
  }
  return Pinned(size);
}

void* Transfers::host_alloc(uint64_t size) {
  Given taken;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto kept = kept_.find(size); kept != kept_.end()) {
      taken = std::move(kept->second);
      kept_.erase(kept);
      kept_bytes_ -= size;
    }
  }
  CUDA_CHECK(cudaSetDevice(device_));
  if (taken.memory.size() == 0) taken = {pin(size), EventHandle(cudaEventDisableTiming), EventHandle(cudaEventDisableTiming), 0};
  uint8_t* const data = taken.memory.data();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (up_ == nullptr) up_ = StreamHandle(0);
  if (down_ == nullptr) down_ = StreamHandle(0);
  given_.emplace(data, std::move(taken));
  return data;
}

void Transfers::host_free(void* data) {
  (void)cudaSetDevice(device_);
  decltype(given_)::node_type surplus;  // given up without the lock
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto given = given_.find(static_cast<const uint8_t*>(data));
    if (given == given_.end()) fail(MR_INVALID_ARGUMENT, "host memory that was never given, or was given back");
    if (given->second.users != 0) fail(MR_FAILED_PRECONDITION, "host memory that a copy still uses: free it afterwards");
    const uint64_t size = given->second.memory.size();
    if (kept_bytes_ + size <= kMostKept) {
      kept_.emplace(size, std::move(given->second));
      kept_bytes_ += size;
      given_.erase(given);
      return;
    }
    surplus = given_.extract(given);
  }
  const unsigned long long size = surplus.mapped().memory.size();
  const cudaError_t error = surplus.mapped().memory.reset();
  if (error == cudaSuccess) return;
  ++failed_frees_;
  const std::lock_guard<std::mutex> lock(mutex_);
  given_.insert(std::move(surplus));
  throw Error(MR_INTERNAL, error, "the driver refuses " + std::to_string(size) + " bytes of host memory back: " +
                                      cudaGetErrorName(error));
}

Transfers::Given* Transfers::owner_locked(const void* memory, uint64_t size) {
  const uint8_t* const from = static_cast<const uint8_t*>(memory);
  auto behind = given_.upper_bound(from);
  if (behind == given_.begin()) return nullptr;
  auto& [data, given] = *--behind;
  const uint64_t offset = static_cast<uint64_t>(from - data);
  return offset < given.memory.size() && size <= given.memory.size() - offset ? &given : nullptr;
}

Transfers::Use::Use(Transfers& transfers, const void* memory, uint64_t size) : transfers_(transfers) {
  const std::lock_guard<std::mutex> lock(transfers.mutex_);
  given_ = transfers.owner_locked(memory, size);
  if (given_ != nullptr) ++given_->users;
}

Transfers::Use::~Use() {
  if (given_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(transfers_.mutex_);
  --given_->users;
}

// A copy of at most kShort bytes ends sooner than a sleeping thread wakes up, so its caller spins for it. Not longer than
// kSpin, because other copies may be queued before it.
constexpr uint64_t kShort = uint64_t{1} << 20;
constexpr std::chrono::microseconds kSpin{100};

void Transfers::copy_direct(void* dst, const void* src, uint64_t size, cudaMemcpyKind way, cudaStream_t stream,
                            cudaEvent_t copied) {
  CUDA_CHECK(cudaSetDevice(device_));
  CUDA_CHECK(cudaMemcpyAsync(dst, src, size, way, stream));
  try {
    CUDA_CHECK(cudaEventRecord(copied, stream));
    wait_for_event(copied, size <= kShort ? kSpin : std::chrono::microseconds(0));
  } catch (...) {
    (void)cudaStreamSynchronize(stream);  // the copy is under way, and its caller may give both ends of it back
    throw;
  }
}

void Transfers::upload(void* device_dst, const void* src, uint64_t size) {
  if (size == 0) return;
  if (const Use from(*this, src, size); from) {
    copy_direct(device_dst, src, size, cudaMemcpyHostToDevice, up_, from->uploaded);
    return;
  }
  Hold lane(*this);
  lane->take_halves();
  uint64_t done = 0;
  for (int half = 0; done < size; half ^= 1) {
    const uint64_t piece = std::min(kHalf, size - done);
    CUDA_CHECK(cudaEventSynchronize(lane->done[half]));  // the device has read what lay in this half
    std::memcpy(lane->half[half].data(), static_cast<const uint8_t*>(src) + done, piece);
    CUDA_CHECK(cudaMemcpyAsync(static_cast<uint8_t*>(device_dst) + done, lane->half[half].data(), piece,
                               cudaMemcpyHostToDevice, lane->stream));
    CUDA_CHECK(cudaEventRecord(lane->done[half], lane->stream));
    done += piece;
  }
  CUDA_CHECK(cudaStreamSynchronize(lane->stream));
  lane.done();
}

void Transfers::download(void* dst, const void* device_src, uint64_t size) {
  if (size == 0) return;
  if (const Use to(*this, dst, size); to) {
    copy_direct(dst, device_src, size, cudaMemcpyDeviceToHost, down_, to->downloaded);
    return;
  }
  Hold lane(*this);
  lane->take_halves();
  const auto start = [&](uint64_t at, int half) {
    if (at >= size) return;
    CUDA_CHECK(cudaMemcpyAsync(lane->half[half].data(), static_cast<const uint8_t*>(device_src) + at,
                               std::min(kHalf, size - at), cudaMemcpyDeviceToHost, lane->stream));
    CUDA_CHECK(cudaEventRecord(lane->done[half], lane->stream));
  };
  start(0, 0);
  uint64_t done = 0;
  for (int half = 0; done < size; half ^= 1) {
    start(done + kHalf, half ^ 1);
    CUDA_CHECK(cudaEventSynchronize(lane->done[half]));
    const uint64_t piece = std::min(kHalf, size - done);
    std::memcpy(static_cast<uint8_t*>(dst) + done, lane->half[half].data(), piece);
    done += piece;
  }
  lane.done();
}

void Transfers::copy(void* device_dst, const void* device_src, uint64_t size) {
  if (size == 0) return;
  Hold lane(*this);
  CUDA_CHECK(cudaMemcpyAsync(device_dst, device_src, size, cudaMemcpyDeviceToDevice, lane->stream));
  CUDA_CHECK(cudaStreamSynchronize(lane->stream));
  lane.done();
}

void Transfers::fill(void* device_dst, uint8_t value, uint64_t size) {
  if (size == 0) return;
  Hold lane(*this);
  CUDA_CHECK(cudaMemsetAsync(device_dst, value, size, lane->stream));
  CUDA_CHECK(cudaStreamSynchronize(lane->stream));
  lane.done();
}

}  // namespace mr::cuda
