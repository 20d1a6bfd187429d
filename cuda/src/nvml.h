// nvml: what the driver's management library knows of a GPU. The library is opened at run time: where it is missing, every
// reading is unknown and nothing fails.
#pragma once

#include <chrono>
#include <cstdint>

namespace mr::cuda {

struct Readings {
  int32_t temperature_c = INT32_MIN;  // INT32_MIN = unknown, for these two
  int32_t power_mw = INT32_MIN;
  uint64_t errors = 0;                // uncorrected memory errors since the driver was loaded
  uint64_t bytes_total = 0, bytes_free = 0;  // of the device; 0 = unknown
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

  // Takes note of what was reported until now; called now and then, it dates each report.
  void listen() noexcept;
  // The number of the last recent one, or of one that is reported within wait_ms; 0 for none. An older one explains nothing
  // that happens now: some are of other processes' faults.
  uint64_t last(uint32_t wait_ms) noexcept;

 private:
  void hear(uint32_t wait_ms) noexcept;  // what is reported by then, and all that waits behind it

  const std::chrono::milliseconds recent_;
  void* events_ = nullptr;
  uint64_t last_ = 0;
  std::chrono::steady_clock::time_point heard_;  // when last_ was
};

// pci is the device's bus id as cudaDeviceGetPCIBusId writes it. Any thread; some microseconds to a millisecond.
Readings read_nvml(const char* pci) noexcept;

}  // namespace mr::cuda
