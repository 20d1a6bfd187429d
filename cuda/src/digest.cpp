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

// Subtrees that may be hashed apart: all whole ones but the message's last, which is its own kind of block.
int64_t whole_subtrees(uint64_t size) { return size == 0 ? 0 : static_cast<int64_t>((size - 1) / kSubtree); }

}  // namespace

Digester::~Digester() {
  if (scratch_ != nullptr) (void)cudaFree(scratch_);
  if (values_ != nullptr) (void)cudaFree(values_);
}

void Digester::prepare() {
  device_.enter();
  if (ready_) return;
  if (scratch_ == nullptr) CUDA_CHECK(cudaMalloc(&scratch_, kScratch));
  scratch_bytes_ = kScratch;
  if (values_ == nullptr) CUDA_CHECK(cudaMalloc(&values_, kPiece * kValueBytes));
  stream_ = StreamHandle(device_.priority_low);
  host_ = Pinned(std::max(kPiece * kValueBytes, kSubtree));
  ready_ = true;
}

void Digester::subtrees(cpu::Blake3& hash, const uint8_t* data, uint64_t size) {
  const int64_t count = static_cast<int64_t>(size / kSubtree);
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t n = std::min(kPiece, count - first);
    const uint64_t chunk = hash.size() / cpu::kBlake3Chunk;
    CUDA_CHECK(launch_blake3_subtrees({data + static_cast<uint64_t>(first) * kSubtree, chunk, n, values_}, stream_));
    CUDA_CHECK(cudaMemcpyAsync(host_.data(), values_, static_cast<uint64_t>(n) * kValueBytes, cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    for (int64_t i = 0; i < n; ++i) hash.append(host_.as<uint32_t>() + i * 8);
  }
}

void Digester::tail(cpu::Blake3& hash, const uint8_t* data, uint64_t size) {
  if (size == 0) return;
  CUDA_CHECK(cudaMemcpyAsync(host_.data(), data, size, cudaMemcpyDeviceToHost, stream_));
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  hash.update(host_.data(), size);
}

void Digester::bytes(const uint8_t* data, uint64_t size, uint8_t out[32]) {
  const std::lock_guard<std::mutex> lock(mutex_);
  prepare();
  cpu::Blake3 hash(cpu::detect());
  const uint64_t whole = static_cast<uint64_t>(whole_subtrees(size)) * kSubtree;
  if (reinterpret_cast<uintptr_t>(data) % 16 == 0) {
    subtrees(hash, data, whole);
  } else {
    for (uint64_t at = 0; at < whole; at += scratch_bytes_) {
      const uint64_t piece = std::min(scratch_bytes_, whole - at);
      CUDA_CHECK(cudaMemcpyAsync(scratch_, data + at, piece, cudaMemcpyDeviceToDevice, stream_));
      subtrees(hash, scratch_, piece);
    }
  }
  tail(hash, data + whole, size - whole);
  hash.finish(out);
}

void Digester::rows(int64_t rows, uint64_t row_bytes, int64_t step, const Restore& restore, uint8_t out[32]) {
  const std::lock_guard<std::mutex> lock(mutex_);
  prepare();
  // Room for what was left of the piece before, less than a subtree, in front of at least one step of rows.
  const uint64_t step_bytes = static_cast<uint64_t>(step) * row_bytes, least = 2 * kSubtree + step_bytes;
  if (least > scratch_bytes_) {
    CUDA_CHECK(cudaFree(scratch_));
    scratch_ = nullptr;
    ready_ = false;
    CUDA_CHECK(cudaMalloc(&scratch_, least));
    scratch_bytes_ = least;
    ready_ = true;
  }
  const int64_t at_once = std::max<int64_t>(1, static_cast<int64_t>((scratch_bytes_ - 2 * kSubtree) / step_bytes)) * step;
  cpu::Blake3 hash(cpu::detect());
  // Rows are restored behind the bytes held back, which end at the same place each time: a multiple of 16 apart from it.
  uint64_t held = 0;  // bytes at scratch_ not hashed yet
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min(at_once, rows - first);
    restore(first, count, scratch_ + held, stream_);
    held += static_cast<uint64_t>(count) * row_bytes;
    const bool last = first + count == rows;
    const uint64_t whole = last ? static_cast<uint64_t>(whole_subtrees(held)) * kSubtree : held / kSubtree * kSubtree;
    // A message that ends at a piece's end keeps its last subtree: what follows decides whether it is the last.
    const uint64_t hashed = !last && whole == held && whole > 0 ? whole - kSubtree : whole;
    subtrees(hash, scratch_, hashed);
    held -= hashed;
    if (last) {
      tail(hash, scratch_ + hashed, held);
    } else if (held != 0 && hashed != 0) {
      CUDA_CHECK(cudaMemcpyAsync(scratch_, scratch_ + hashed, held, cudaMemcpyDeviceToDevice, stream_));
    }
  }
  hash.finish(out);
}

}  // namespace mr::cuda
