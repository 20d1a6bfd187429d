// handles: owners of the runtime's streams, events and pinned memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>

#include "src/error.h"
#include "src/fair_mutex.h"

namespace mr::cuda {

// Held around calls that take memory from the driver or give it back, or make a graph ready: process-wide. turn.h says what else it
// keeps them apart from.
inline FairMutex& slow_calls() {
  static FairMutex mutex;
  return mutex;
}
using SlowCall = std::lock_guard<FairMutex>;

class StreamHandle {
 public:
  StreamHandle() = default;
  // The greatest priority is the least number of cudaDeviceGetStreamPriorityRange.
  explicit StreamHandle(int priority) {
    CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority));
  }
  StreamHandle(StreamHandle&& other) noexcept { std::swap(stream_, other.stream_); }
  StreamHandle& operator=(StreamHandle&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~StreamHandle() {
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class EventHandle {
 public:
  EventHandle() = default;
  explicit EventHandle(unsigned flags) { CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags)); }
  EventHandle(EventHandle&& other) noexcept { std::swap(event_, other.event_); }
  EventHandle& operator=(EventHandle&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~EventHandle() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Waits for a stream's work if a scope ends by an exception, because the scope then frees the bytes that the work uses. Must
// be declared after the owners of those bytes.
class Rest {
 public:
  explicit Rest(cudaStream_t stream) : stream_(stream) {}
  ~Rest() {
    if (std::uncaught_exceptions() > thrown_) (void)cudaStreamSynchronize(stream_);
  }
  Rest(const Rest&) = delete;
  Rest& operator=(const Rest&) = delete;

 private:
  const cudaStream_t stream_;
  const int thrown_ = std::uncaught_exceptions();
};

// Host memory the device reads and writes directly.
class Pinned {
 public:
  Pinned() = default;
  explicit Pinned(uint64_t bytes) : bytes_(bytes) {
    const SlowCall alone(slow_calls());
    CUDA_CHECK(cudaHostAlloc(&data_, bytes, cudaHostAllocPortable));
  }
  Pinned(Pinned&& other) noexcept { swap(other); }
  Pinned& operator=(Pinned&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Pinned() {
    if (data_ == nullptr) return;
    const SlowCall alone(slow_calls());
    (void)cudaFreeHost(data_);
  }
  void swap(Pinned& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  template <class T>
  T* as() const { return static_cast<T*>(data_); }
  uint8_t* data() const { return as<uint8_t>(); }
  uint64_t size() const { return bytes_; }
  cudaError_t reset() noexcept {  // gives the memory back now; nothing has changed when the driver refuses it
    if (data_ == nullptr) return cudaSuccess;
    const SlowCall alone(slow_calls());
    if (const cudaError_t error = cudaFreeHost(data_); error != cudaSuccess) {
      (void)cudaGetLastError();
      return error;
    }
    data_ = nullptr;
    bytes_ = 0;
    return cudaSuccess;
  }

 private:
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace mr::cuda
