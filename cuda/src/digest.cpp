#include "src/digest.h"

#include <algorithm>

#include "src/device.h"
#include "src/digest_kernel.h"
#include "src/error.h"

namespace mr::cuda {
namespace {

constexpr uint64_t kScratch = uint64_t{32} << 20;  // bytes restored or aligned at once
constexpr uint64_t kSubtree = cpu::kBlake3Subtree;
constexpr int64_t kPiece = 1024;                   // subtrees hashed between two looks at the queue: 64 MiB
constexpr uint64_t kValueBytes = 32;

// Bytes of the subtrees that may be hashed apart: all whole ones but what ends the message, which is its own kind of block.
uint64_t whole_subtrees(uint64_t size) { return size == 0 ? 0 : (size - 1) / kSubtree * kSubtree; }

}  // namespace

Digester::~Digester() {
  if (scratch_ != nullptr) (void)cudaFree(scratch_);
  if (values_ != nullptr) (void)cudaFree(values_);
}

void Digester::prepare() {
  device_.enter();
  if (ready_) return;
  if (scratch_ == nullptr) CUDA_CHECK(cudaMalloc(&scratch_, kScratch));
  if (values_ == nullptr) CUDA_CHECK(cudaMalloc(&values_, kPiece * kValueBytes));
  stream_ = StreamHandle(device_.priority_low);
  done_ = EventHandle(cudaEventDisableTiming | cudaEventBlockingSync);
  host_ = Pinned(std::max(kPiece * kValueBytes, kSubtree));
  ready_ = true;
}

void Digester::settle() {
  CUDA_CHECK(cudaEventRecord(done_, stream_));
  CUDA_CHECK(cudaEventSynchronize(done_));
}

void Digester::subtrees(cpu::Blake3& hash, const uint8_t* data, uint64_t size) {
  const int64_t count = static_cast<int64_t>(size / kSubtree);
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t n = std::min(kPiece, count - first);
    const uint64_t chunk = hash.size() / cpu::kBlake3Chunk;
    CUDA_CHECK(launch_blake3_subtrees({data + static_cast<uint64_t>(first) * kSubtree, chunk, n, values_}, stream_));
    CUDA_CHECK(cudaMemcpyAsync(host_.data(), values_, static_cast<uint64_t>(n) * kValueBytes, cudaMemcpyDeviceToHost, stream_));
    settle();
    for (int64_t i = 0; i < n; ++i) hash.append(host_.as<uint32_t>() + i * 8);
  }
}

void Digester::tail(cpu::Blake3& hash, const uint8_t* data, uint64_t size) {
  if (size == 0) return;
  CUDA_CHECK(cudaMemcpyAsync(host_.data(), data, size, cudaMemcpyDeviceToHost, stream_));
  settle();
  hash.update(host_.data(), size);
}

void Digester::bytes(const uint8_t* data, uint64_t size, uint8_t out[32]) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    restored(size, [data](uint64_t offset, uint64_t count, uint8_t* to, cudaStream_t stream) {
      CUDA_CHECK(cudaMemcpyAsync(to, data + offset, count, cudaMemcpyDeviceToDevice, stream));
    }, out);
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  prepare();
  cpu::Blake3 hash(cpu::detect());
  const uint64_t whole = whole_subtrees(size);
  subtrees(hash, data, whole);
  tail(hash, data + whole, size - whole);
  hash.finish(out);
}

void Digester::restored(uint64_t size, const Restore& restore, uint8_t out[32]) {
  const std::lock_guard<std::mutex> lock(mutex_);
  prepare();
  cpu::Blake3 hash(cpu::detect());
  for (uint64_t at = 0; at < size; at += kScratch) {
    const uint64_t count = std::min(kScratch, size - at);
    restore(at, count, scratch_, stream_);
    const uint64_t whole = at + count == size ? whole_subtrees(count) : count;
    subtrees(hash, scratch_, whole);
    tail(hash, scratch_ + whole, count - whole);
  }
  hash.finish(out);
}

}  // namespace mr::cuda
