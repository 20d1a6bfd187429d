// digest: BLAKE3 of bytes in device memory, and of a packed tensor's file bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include "cpu/blake3.h"
#include "src/handles.h"

namespace mr::cuda {

class Device;

// One digest at a time, on a stream of the lowest priority and in small pieces, so that running steps go first. Its
// working memory is taken at the first use and lies beside the ledger, in the margin that the ledger leaves.
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
  void prepare();
  void settle();  // waits, asleep, for what is on the stream
  // Feeds the whole subtrees of [data, data + size), a 16-byte aligned range, to the hash.
  void subtrees(cpu::Blake3& hash, const uint8_t* data, uint64_t size);
  void tail(cpu::Blake3& hash, const uint8_t* data, uint64_t size);

  const Device& device_;
  std::mutex mutex_;
  StreamHandle stream_;
  EventHandle done_;
  uint8_t* scratch_ = nullptr;   // device: a piece of a message
  uint32_t* values_ = nullptr;   // device: chaining values
  Pinned host_;                  // what comes back: chaining values, the last bytes
  bool ready_ = false;
};

}  // namespace mr::cuda
