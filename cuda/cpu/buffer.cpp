#include "buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "digest.h"
#include "error.h"

namespace mr::cpu {

Buffer::Buffer(std::shared_ptr<Device> device, uint64_t size, int32_t purpose)
    : device_(std::move(device)), memory_(device_->ledger.allocate(size, purpose, false)),
      defined_(memory_.zeroed() ? size : 0) {
  device_->buffers.fetch_add(1);
}

Buffer::~Buffer() { device_->buffers.fetch_sub(1); }

void Buffer::release() {
  const uint64_t bytes = size();
  if (const int error = memory_.reset(); error != 0)
    fail_errno(MR_INTERNAL, error, "the system refuses a buffer of %llu bytes back", static_cast<unsigned long long>(bytes));
}

void Buffer::check(uint64_t offset, uint64_t size) const {
  if (offset > this->size() || size > this->size() - offset)
    fail(MR_OUT_OF_RANGE, "%llu bytes at offset %llu are beyond a buffer of %llu bytes",
         static_cast<unsigned long long>(size), static_cast<unsigned long long>(offset),
         static_cast<unsigned long long>(this->size()));
}

uint8_t* Buffer::defined(uint64_t offset, uint64_t size) const {
  check(offset, size);
  uint8_t* const data = memory_.as<uint8_t>();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const uint64_t end = offset + size; end > defined_) {
    std::memset(data + defined_, 0, end - defined_);
    defined_ = end;
  }
  return data + offset;
}

// Marks the range before the caller writes it: a second writer that follows finds it defined and clears nothing of it.
uint8_t* Buffer::overwritten(uint64_t offset, uint64_t size) const {
  check(offset, size);
  uint8_t* const data = memory_.as<uint8_t>();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const uint64_t end = offset + size; end > defined_) {
    if (offset > defined_) std::memset(data + defined_, 0, offset - defined_);
    defined_ = end;
  }
  return data + offset;
}

void Buffer::write(uint64_t offset, const void* src, uint64_t size) {
  uint8_t* const to = overwritten(offset, size);
  if (size != 0) std::memcpy(to, src, size);
}

void Buffer::read(uint64_t offset, void* dst, uint64_t size) const {
  const uint8_t* const from = defined(offset, size);
  if (size != 0) std::memcpy(dst, from, size);
}

void Buffer::copy_from(uint64_t offset, const Buffer& src, uint64_t src_offset, uint64_t size) {
  check(offset, size);
  const uint8_t* const from = src.defined(src_offset, size);  // before the target is marked: it may be the same buffer
  uint8_t* const to = overwritten(offset, size);
  if (size != 0) std::memmove(to, from, size);
}

void Buffer::fill(uint64_t offset, uint8_t value, uint64_t size) {
  uint8_t* const to = overwritten(offset, size);
  if (size != 0) std::memset(to, value, size);
}

void Buffer::digest(uint64_t offset, uint64_t size, uint8_t out[32]) const {
  const uint8_t* const data = defined(offset, size);
  digest_memory(*device_, data, size, out);
}

}  // namespace mr::cpu
