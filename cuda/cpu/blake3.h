// blake3: the BLAKE3 hash (unkeyed, 32 bytes out), chunks in vector lanes.
//
// The digest is the same on every path. Bytes come in any pieces through update(), or as whole subtrees whose chaining
// values several threads compute at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace mr {

constexpr size_t kBlake3Chunk = 1024;              // bytes of a leaf of the tree
constexpr size_t kBlake3Subtree = 64 * kBlake3Chunk;  // bytes of what subtree() takes

class Blake3 {
 public:
  explicit Blake3(cpu::Isa isa) : isa_(isa) {}

  // Appends bytes.
  void update(const void* data, size_t size);

  // Chaining value of the kBlake3Subtree bytes at data, whose first lies at `offset` of the message, a multiple of
  // kBlake3Subtree. Keeps no state: any thread.
  static void subtree(cpu::Isa isa, const uint8_t* data, uint64_t offset, uint32_t value[8]);
  // Appends a subtree by its value. All bytes so far came as whole subtrees, and at least one byte must follow through
  // update(): the last block of a message is hashed apart.
  void append(const uint32_t value[8]);

  uint64_t size() const { return chunks_ * kBlake3Chunk + held_; }  // bytes so far
  void finish(uint8_t out[32]) const;

 private:
  void add_value(const uint32_t value[8], uint64_t chunks);

  const cpu::Isa isa_;
  uint64_t chunks_ = 0;               // chunks in the stack
  uint8_t chunk_[kBlake3Chunk] = {};  // the newest chunk: kept until a byte follows it
  size_t held_ = 0;                   // bytes of it
  uint32_t stack_[54][8];             // values of complete subtrees, largest first: one a set bit of chunks_
  int depth_ = 0;
};

// The digest of one piece of memory.
void blake3(cpu::Isa isa, const void* data, size_t size, uint8_t out[32]);

}  // namespace mr
