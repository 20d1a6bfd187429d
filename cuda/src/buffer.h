// buffer: bytes of a GPU that a caller can fill, read, copy and digest.
#pragma once

#include <cstdint>
#include <memory>

#include "src/device.h"
#include "src/ledger.h"

namespace mr::cuda {

// Calls from several threads are safe; overlapping writes by several threads leave one of the values in each byte. A call
// returns when the device has finished. Every function throws OUT_OF_RANGE when [offset, offset + size) does
// not lie within the buffer.
class Buffer {
 public:
  Buffer(std::shared_ptr<Device> device, uint64_t size, int32_t purpose);  // zeroed
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint64_t size() const { return memory_.size(); }
  const std::shared_ptr<Device>& device() const { return device_; }
  uint8_t* data() const { return memory_.data(); }  // in device memory

  void write(uint64_t offset, const void* src, uint64_t size);
  void read(uint64_t offset, void* dst, uint64_t size) const;
  void copy_from(uint64_t offset, const Buffer& src, uint64_t src_offset, uint64_t size);  // ranges may overlap
  void fill(uint64_t offset, uint8_t value, uint64_t size);
  void digest(uint64_t offset, uint64_t size, uint8_t out[32]) const;

  // Gives the bytes back now, after which nothing may be called. Throws INTERNAL when the driver refuses them, and the buffer
  // is as before.
  void release();

 private:
  uint8_t* range(uint64_t offset, uint64_t size) const;

  const std::shared_ptr<Device> device_;
  Memory memory_;
};

}  // namespace mr::cuda
