#include "src/digest.h"

#include <algorithm>

#include "src/device.h"
#include "src/digest_kernel.h"
#include "src/error.h"
#include "src/event_wait.h"

namespace mr::cuda {
namespace {

constexpr uint64_t kScratch = uint64_t{32} << 20;  // bytes restored or aligned at once
constexpr uint64_t kPiece = uint64_t{64} << 20;    // bytes hashed by one kernel where they lie
constexpr uint64_t kSubtree = kBlake3Subtree;
// Subtrees hashed between two waits: 256 MiB. A wait is longer than the hashing of many pieces.
constexpr int64_t kRun = 4096;
constexpr uint64_t kValueBytes = 32;

static_assert(kScratch <= kRun * kSubtree && kPiece <= kRun * kSubtree);

// Bytes of the subtrees that may be hashed apart: all whole ones but what ends the message, which is its own kind of block.
uint64_t whole_subtrees(uint64_t size) { return size == 0 ? 0 : (size - 1) / kSubtree * kSubtree; }

}  // namespace

Digester::~Digester() {
  if (scratch_ == nullptr) return;
  const SlowCall alone(slow_calls());
  (void)cudaFree(scratch_);
}

void Digester::prepare() {
  device_.enter();
  if (ready_) return;
  const SlowCall alone(slow_calls());
  if (scratch_ == nullptr) CUDA_CHECK(cudaMalloc(&scratch_, kScratch));
  stream_ = StreamHandle(device_.priority_low);
  done_ = EventHandle(cudaEventDisableTiming);
  back_ = Pinned(kRun * kValueBytes + kSubtree);
  ready_ = true;
}

void Digester::collect(Blake3& hash, int64_t count, uint64_t rest) {
  const uint64_t values = static_cast<uint64_t>(count) * kValueBytes;
  CUDA_CHECK(cudaEventRecord(done_, stream_));
  wait_for_event(done_);
  for (int64_t i = 0; i < count; ++i) hash.append(back_.as<uint32_t>() + i * 8);
  hash.update(back_.data() + values, rest);
}

void Digester::message(uint64_t size, uint64_t piece, const Source& source, uint8_t out[32]) {
  Blake3 hash(cpu::detect());
  int64_t held = 0;  // values under way
  const Rest rest(stream_);
  for (uint64_t at = 0; at < size; at += piece) {
    const uint64_t count = std::min(piece, size - at);
    const bool last = at + count == size;
    const uint64_t whole = last ? whole_subtrees(count) : count;
    const int64_t n = static_cast<int64_t>(whole / kSubtree);
    if (held + n > kRun) {
      collect(hash, held, 0);
      held = 0;
    }
    const uint8_t* const data = source(at, count);
    uint8_t* const behind = back_.data() + static_cast<uint64_t>(held) * kValueBytes;
    CUDA_CHECK(launch_blake3_subtrees({data, at / kBlake3Chunk, n, reinterpret_cast<uint32_t*>(behind)}, stream_));
    held += n;
    if (!last) continue;
    CUDA_CHECK(cudaMemcpyAsync(behind + static_cast<uint64_t>(n) * kValueBytes, data + whole, count - whole,
                               cudaMemcpyDeviceToHost, stream_));
    collect(hash, held, count - whole);
  }
  hash.finish(out);
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
  message(size, kPiece, [data](uint64_t offset, uint64_t) { return data + offset; }, out);
}

void Digester::restored(uint64_t size, const Restore& restore, uint8_t out[32]) {
  const std::lock_guard<std::mutex> lock(mutex_);
  prepare();
  message(size, kScratch, [&](uint64_t offset, uint64_t count) {
    restore(offset, count, scratch_, stream_);
    return scratch_;
  }, out);
}

}  // namespace mr::cuda
