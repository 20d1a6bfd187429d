// buffer: bytes of a device that a caller can fill, read, copy and digest.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "device.h"
#include "ledger.h"

namespace mr::cpu {

// Calls from several threads are safe; overlapping writes by several threads leave one of the values in each byte.
// Fresh bytes read as zero. They are cleared lazily: only bytes that are read before they are written are cleared.
// Every function throws OUT_OF_RANGE when [offset, offset + size) does not lie within the buffer.
class Buffer {
 public:
  Buffer(std::shared_ptr<Device> device, uint64_t size, int32_t purpose);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint64_t size() const { return memory_.size(); }
  const std::shared_ptr<Device>& device() const { return device_; }

  void write(uint64_t offset, const void* src, uint64_t size);
  void read(uint64_t offset, void* dst, uint64_t size) const;
  void copy_from(uint64_t offset, const Buffer& src, uint64_t src_offset, uint64_t size);  // ranges may overlap
  void fill(uint64_t offset, uint8_t value, uint64_t size);
  void digest(uint64_t offset, uint64_t size, uint8_t out[32]) const;

  // The bytes from the start, `size` of them, for an operation to read or to overwrite.
  const uint8_t* readable(uint64_t size) const { return defined(0, size); }
  uint8_t* writable(uint64_t size) { return defined(0, size); }
  // Gives the bytes back now, after which nothing may be called. Throws INTERNAL when the system refuses them, and the buffer
  // is as before.
  void release();

 private:
  uint8_t* defined(uint64_t offset, uint64_t size) const;      // with the bytes never written cleared
  uint8_t* overwritten(uint64_t offset, uint64_t size) const;  // the same for bytes about to be written in full
  void check(uint64_t offset, uint64_t size) const;

  const std::shared_ptr<Device> device_;
  Memory memory_;
  mutable std::mutex mutex_;
  mutable uint64_t defined_;  // bytes below it are what they should be; those above read as zero but may hold anything
};

}  // namespace mr::cpu
