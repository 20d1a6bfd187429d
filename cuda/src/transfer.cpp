#include "src/transfer.h"

#include <algorithm>
#include <cstring>

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
      lane_->slept = EventHandle(cudaEventDisableTiming | cudaEventBlockingSync);
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

void* Transfers::host_alloc(uint64_t size) {
  Pinned memory;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto kept = kept_.find(size); kept != kept_.end()) {
      memory = std::move(kept->second);
      kept_.erase(kept);
    }
  }
  if (memory.size() == 0) {
    CUDA_CHECK(cudaSetDevice(device_));
    memory = Pinned(size);
  }
  uint8_t* const data = memory.data();
  const std::lock_guard<std::mutex> lock(mutex_);
  given_.emplace(data, std::move(memory));
  return data;
}

void Transfers::host_free(void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto given = given_.find(static_cast<const uint8_t*>(data));
  if (given == given_.end()) fail(MR_INVALID_ARGUMENT, "host memory that was never given, or was given back");
  const uint64_t size = given->second.size();
  kept_.emplace(size, std::move(given->second));
  given_.erase(given);
}

bool Transfers::pinned(const void* src, uint64_t size) {
  const uint8_t* const from = static_cast<const uint8_t*>(src);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto behind = given_.upper_bound(from);
  if (behind == given_.begin()) return false;
  const auto& [data, memory] = *--behind;
  const uint64_t offset = static_cast<uint64_t>(from - data);
  return offset < memory.size() && size <= memory.size() - offset;
}

void Transfers::upload(void* device_dst, const void* src, uint64_t size) {
  if (size == 0) return;
  const bool direct = pinned(src, size);
  const Hold lane(*this);
  if (direct) {
    CUDA_CHECK(cudaMemcpyAsync(device_dst, src, size, cudaMemcpyHostToDevice, lane->stream));
    CUDA_CHECK(cudaEventRecord(lane->slept, lane->stream));
    CUDA_CHECK(cudaEventSynchronize(lane->slept));
    return;
  }
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
