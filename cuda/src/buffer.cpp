#include "src/buffer.h"

#include <utility>

#include "src/digest.h"
#include "src/error.h"

namespace mr::cuda {

Buffer::Buffer(std::shared_ptr<Device> device, uint64_t size, int32_t purpose)
    : device_(std::move(device)), memory_(device_->ledger.allocate(size, purpose)) {
  device_->transfers.fill(memory_.data(), 0, size);
  device_->buffers.fetch_add(1);
}

Buffer::~Buffer() { device_->buffers.fetch_sub(1); }

void Buffer::release() {
  const unsigned long long bytes = size();
  if (const cudaError_t error = memory_.reset(); error != cudaSuccess)
    throw Error(MR_INTERNAL, error, "the driver refuses a buffer of " + std::to_string(bytes) + " bytes back: " +
                                        cudaGetErrorName(error));
}

uint8_t* Buffer::range(uint64_t offset, uint64_t size) const {
  if (offset > this->size() || size > this->size() - offset)
    fail(MR_OUT_OF_RANGE, "%llu bytes at offset %llu are beyond a buffer of %llu bytes",
         static_cast<unsigned long long>(size), static_cast<unsigned long long>(offset),
         static_cast<unsigned long long>(this->size()));
  return memory_.data() + offset;
}

void Buffer::write(uint64_t offset, const void* src, uint64_t size) {
  device_->transfers.upload(range(offset, size), src, size);
}

void Buffer::read(uint64_t offset, void* dst, uint64_t size) const {
  device_->transfers.download(dst, range(offset, size), size);
}

void Buffer::copy_from(uint64_t offset, const Buffer& src, uint64_t src_offset, uint64_t size) {
  uint8_t* const to = range(offset, size);
  const uint8_t* const from = src.range(src_offset, size);
  if (to == from) return;
  if (to < from + size && from < to + size) {  // they overlap: by way of a third place
    const Memory between = device_->ledger.allocate(size, MR_PURPOSE_WORKSPACE);
    device_->transfers.copy(between.data(), from, size);
    device_->transfers.copy(to, between.data(), size);
    return;
  }
  device_->transfers.copy(to, from, size);
}

void Buffer::fill(uint64_t offset, uint8_t value, uint64_t size) { device_->transfers.fill(range(offset, size), value, size); }

void Buffer::digest(uint64_t offset, uint64_t size, uint8_t out[32]) const {
  device_->digester->bytes(range(offset, size), size, out);
}

}  // namespace mr::cuda
