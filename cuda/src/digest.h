// digest: BLAKE3 of bytes in device memory, and of a packed tensor's file bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include "cpu/blake3.h"
#include "src/handles.h"

namespace mr::cuda {

class Device;

// One digest at a time, on a stream of the lowest priority and in small kernels, so that running steps go first. Its
// working memory is allocated at the first use, outside the ledger, in the margin that the ledger leaves.
class Digester {
 public:
  explicit Digester(const Device& device) : device_(device) {}
  ~Digester();

  void bytes(const uint8_t* data, uint64_t size, uint8_t out[32]);

  // Writes bytes [offset, offset + count) of a message to `to`, 16-byte aligned device memory, on the stream.
  using Restore = std::function<void(uint64_t offset, uint64_t count, uint8_t* to, cudaStream_t stream)>;
  // The digest of the message of `size` bytes that restore() gives piece by piece.
  void restored(uint64_t size, const Restore& restore, uint8_t out[32]);

 private:
  // Address of bytes [offset, offset + count) of a message, 16-byte aligned, valid after the work on the stream.
  using Source = std::function<const uint8_t*(uint64_t offset, uint64_t count)>;

  void prepare();
  void message(uint64_t size, uint64_t piece, const Source& source, uint8_t out[32]);
  // Waits for `count` values and `rest` bytes behind them, and adds them to the hash.
  void collect(Blake3& hash, int64_t count, uint64_t rest);

  const Device& device_;
  std::mutex mutex_;
  StreamHandle stream_;
  EventHandle done_;
  uint8_t* scratch_ = nullptr;  // device: a piece of a message
  Pinned back_;                 // written by the device: chaining values, the last bytes
  bool ready_ = false;
};

}  // namespace mr::cuda
