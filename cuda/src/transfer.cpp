#include "src/transfer.h"

#include <algorithm>
#include <cstring>

#include "src/nap.h"

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
    this->~Hold();
    throw;
  }
}

Transfers::Hold::~Hold() { transfers_.give_back(lane_); }

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

// Gives up what is kept before it fails.
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
  kept.clear();
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
  if (taken.memory.size() == 0) taken = {pin(size), EventHandle(cudaEventDisableTiming)};
  uint8_t* const data = taken.memory.data();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (direct_ == nullptr) direct_ = StreamHandle(0);
  given_.emplace(data, std::move(taken));
  return data;
}

void Transfers::host_free(void* data) {
  (void)cudaSetDevice(device_);
  Given surplus;  // given up behind the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto given = given_.find(static_cast<const uint8_t*>(data));
  if (given == given_.end()) fail(MR_INVALID_ARGUMENT, "host memory that was never given, or was given back");
  const uint64_t size = given->second.memory.size();
  if (kept_bytes_ + size <= kMostKept) {
    kept_.emplace(size, std::move(given->second));
    kept_bytes_ += size;
  } else {
    surplus = std::move(given->second);
  }
  given_.erase(given);
}

const Transfers::Given* Transfers::owner(const void* src, uint64_t size) {
  const uint8_t* const from = static_cast<const uint8_t*>(src);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto behind = given_.upper_bound(from);
  if (behind == given_.begin()) return nullptr;
  const auto& [data, given] = *--behind;
  const uint64_t offset = static_cast<uint64_t>(from - data);
  return offset < given.memory.size() && size <= given.memory.size() - offset ? &given : nullptr;
}

void Transfers::upload(void* device_dst, const void* src, uint64_t size) {
  if (size == 0) return;
  if (const Given* const from = owner(src, size); from != nullptr) {
    CUDA_CHECK(cudaSetDevice(device_));
    CUDA_CHECK(cudaMemcpyAsync(device_dst, src, size, cudaMemcpyHostToDevice, direct_));
    CUDA_CHECK(cudaEventRecord(from->copied, direct_));
    nap_until(from->copied);
    return;
  }
  const Hold lane(*this);
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
}

void Transfers::download(void* dst, const void* device_src, uint64_t size) {
  if (size == 0) return;
  const Hold lane(*this);
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
}

void Transfers::copy(void* device_dst, const void* device_src, uint64_t size) {
  if (size == 0) return;
  const Hold lane(*this);
  CUDA_CHECK(cudaMemcpyAsync(device_dst, device_src, size, cudaMemcpyDeviceToDevice, lane->stream));
  CUDA_CHECK(cudaStreamSynchronize(lane->stream));
}

void Transfers::fill(void* device_dst, uint8_t value, uint64_t size) {
  if (size == 0) return;
  const Hold lane(*this);
  CUDA_CHECK(cudaMemsetAsync(device_dst, value, size, lane->stream));
  CUDA_CHECK(cudaStreamSynchronize(lane->stream));
}

}  // namespace mr::cuda
