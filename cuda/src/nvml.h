// nvml: readings of a GPU from the driver's management library. The library is opened at run time: where it is missing, every
// reading is unknown, says so, and nothing fails.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace mr::cuda {

struct Readings {
  int32_t temperature_c = INT32_MIN;  // INT32_MIN = unknown, for these two
  int32_t power_mw = INT32_MIN;
  // UINT64_MAX = unknown, for the others. Memory errors are since the driver was loaded, bytes of the whole device.
  uint64_t errors = UINT64_MAX;  // uncorrected
  uint64_t corrected_errors = UINT64_MAX;
  uint64_t bytes_total = UINT64_MAX, bytes_free = UINT64_MAX;
  uint64_t held = 0;        // bytes that the reader itself held just before
  char problem[128] = "";   // first reason why a supported reading is unknown; an unsupported reading does not count
  char lost[128] = "";      // the source that reports the GPU as lost or in need of a reset; empty if none does
};

// pci is the device's bus id as cudaDeviceGetPCIBusId writes it. Any thread; some microseconds to a millisecond. `library`
// names another one than the driver's.
Readings read_nvml(const char* pci, const char* library = nullptr) noexcept;

// Caches readings: the library is called at most once in `age`, and all other calls get the last readings, also while one is
// in progress. Only before the first readings exist do callers wait for each other. Safe for any thread.
class Management {
 public:
  // ask() does not throw.
  explicit Management(std::function<Readings()> ask, std::chrono::milliseconds age = std::chrono::seconds(1))
      : ask_(std::move(ask)), age_(age) {}
  Readings read();

 private:
  const std::function<Readings()> ask_;
  const std::chrono::milliseconds age_;
  std::mutex mutex_;
  std::condition_variable first_;
  bool known_ = false, asking_ = false;
  Readings last_;
  std::chrono::steady_clock::time_point read_at_;
};

// Listens for the Xid errors that the driver reports of a GPU, from the watch's beginning on. Where the library or the driver
// has no such events it hears nothing. One thread at a time.
class XidWatch {
 public:
  // recent: how old a report may be that explains what happens now.
  explicit XidWatch(const char* pci, std::chrono::milliseconds recent = std::chrono::seconds(10)) noexcept;
  ~XidWatch();
  XidWatch(const XidWatch&) = delete;
  XidWatch& operator=(const XidWatch&) = delete;

  // Collects the reports so far; regular calls give each report its date.
  void listen() noexcept;
  // The number of the last recent one, or of one that is reported within wait_ms; 0 for none. An older one explains nothing
  // that happens now: some are of other processes' faults.
  uint64_t last(uint32_t wait_ms) noexcept;

 private:
  void hear(uint32_t wait_ms) noexcept;  // reports until then, and all that are queued

  const std::chrono::milliseconds recent_;
  void* events_ = nullptr;
  uint64_t last_ = 0;
  std::chrono::steady_clock::time_point heard_;  // when last_ was
};

}  // namespace mr::cuda
