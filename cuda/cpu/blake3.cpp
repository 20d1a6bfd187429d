#include "blake3.h"

#include <algorithm>
#include <cstring>

#include "blake3_core.h"

namespace mr {
namespace {

using namespace blake3_core;

inline uint32_t rotate_right(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

inline void mix(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t x, uint32_t y) {
  a += b + x;
  d = rotate_right(d ^ a, 16);
  c += d;
  b = rotate_right(b ^ c, 12);
  a += b + y;
  d = rotate_right(d ^ a, 8);
  c += d;
  b = rotate_right(b ^ c, 7);
}

// h = chaining value after one block of `size` bytes (the rest of the 64 is zero).
void compress(uint32_t h[8], const uint8_t block[64], uint64_t counter, uint32_t size, uint32_t flags) {
  uint32_t m[16];
  for (int i = 0; i < 16; ++i) {
    const uint8_t* p = block + i * 4;
    m[i] = uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
  }
  uint32_t v[16] = {h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7], kIv[0], kIv[1], kIv[2], kIv[3],
                    static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), size, flags};
  for (const uint8_t(&s)[16] : kSchedule) {
    mix(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
    mix(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
    mix(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
    mix(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
    mix(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
    mix(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
    mix(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
    mix(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
  }
  for (int i = 0; i < 8; ++i) h[i] = v[i] ^ v[i + 8];
}

void start(uint32_t h[8]) { std::copy(kIv, kIv + 8, h); }

void store_words(const uint32_t h[8], uint8_t* out) {
  for (int i = 0; i < 8; ++i)
    for (int byte = 0; byte < 4; ++byte) out[i * 4 + byte] = static_cast<uint8_t>(h[i] >> (8 * byte));
}

void hash_one(const Job& job, uint32_t value[8]) {
  start(value);
  for (int block = 0; block < job.blocks; ++block) {
    const uint32_t first = block == 0 ? job.first : 0, last = block == job.blocks - 1 ? job.last : 0;
    compress(value, job.data + block * 64, job.counter, 64, job.flags | first | last);
  }
}

// `count` inputs by the widest kernel that they fill.
void hash_many(cpu::Isa isa, Job job, size_t count, uint32_t (*value)[8]) {
  const auto step = [&](size_t lanes) {
    job.data += lanes * job.stride;
    job.counter += lanes * job.counter_step;
    value += lanes;
    count -= lanes;
  };
#if defined(__x86_64__)
  if (isa >= cpu::Isa::avx512vnni)
    for (; count >= 16; step(16)) hash_lanes_avx512(job, value);
  if (isa >= cpu::Isa::avx2)
    for (; count >= 8; step(8)) hash_lanes_avx2(job, value);
#else
  (void)isa;
#endif
  for (; count > 0; step(1)) hash_one(job, *value);
}

void hash_chunks(cpu::Isa isa, const uint8_t* data, size_t count, uint64_t first_chunk, uint32_t (*value)[8]) {
  hash_many(isa, Job{data, kBlake3Chunk, 16, first_chunk, 1, 0, kChunkStart, kChunkEnd}, count, value);
}

// A parent's block is its children's values, little-endian, one after the other.
void parent_block(const uint32_t left[8], const uint32_t right[8], uint8_t block[64]) {
  store_words(left, block);
  store_words(right, block + 32);
}

// Folds a power of two of neighbouring values into their common ancestor, value[0].
void fold(cpu::Isa isa, uint32_t (*value)[8], size_t count) {
  uint8_t blocks[kBlake3Subtree / kBlake3Chunk * 32];
  for (; count > 1; count /= 2) {
    for (size_t i = 0; i < count; ++i) store_words(value[i], blocks + i * 32);
    hash_many(isa, Job{blocks, 64, 1, 0, 0, kParent, 0, 0}, count / 2, value);
  }
}

}  // namespace

void Blake3::subtree(cpu::Isa isa, const uint8_t* data, uint64_t offset, uint32_t value[8]) {
  constexpr size_t kChunks = kBlake3Subtree / kBlake3Chunk;
  uint32_t values[kChunks][8];
  hash_chunks(isa, data, kChunks, offset / kBlake3Chunk, values);
  fold(isa, values, kChunks);
  std::copy(values[0], values[0] + 8, value);
}

// Pushes the value of a subtree of `chunks` (a power of two) and joins the subtrees that it completes.
void Blake3::add_value(const uint32_t value[8], uint64_t chunks) {
  uint32_t joined[8];
  std::copy(value, value + 8, joined);
  for (uint64_t size = chunks; (chunks_ & size) != 0; size *= 2) {
    uint8_t block[64];
    parent_block(stack_[--depth_], joined, block);
    start(joined);
    compress(joined, block, 0, 64, kParent);
  }
  std::copy(joined, joined + 8, stack_[depth_++]);
  chunks_ += chunks;
}

void Blake3::append(const uint32_t value[8]) { add_value(value, kBlake3Subtree / kBlake3Chunk); }

void Blake3::update(const void* data, size_t size) {
  const uint8_t* p = static_cast<const uint8_t*>(data);
  while (size > 0) {
    if (held_ == kBlake3Chunk) {
      uint32_t value[8];
      hash_chunks(isa_, chunk_, 1, chunks_, &value);
      held_ = 0;
      add_value(value, 1);
    }
    if (held_ == 0 && size > kBlake3Chunk) {  // whole chunks that are not the last go straight from the caller's memory
      constexpr size_t kMost = 16;
      const size_t count = std::min(kMost, (size - 1) / kBlake3Chunk);
      if (chunks_ % (kBlake3Subtree / kBlake3Chunk) == 0 && size > kBlake3Subtree) {
        uint32_t value[8];
        subtree(isa_, p, chunks_ * kBlake3Chunk, value);
        append(value);
        p += kBlake3Subtree;
        size -= kBlake3Subtree;
        continue;
      }
      uint32_t values[kMost][8];
      hash_chunks(isa_, p, count, chunks_, values);
      for (size_t i = 0; i < count; ++i) add_value(values[i], 1);
      p += count * kBlake3Chunk;
      size -= count * kBlake3Chunk;
      continue;
    }
    const size_t take = std::min(size, kBlake3Chunk - held_);
    std::memcpy(chunk_ + held_, p, take);
    held_ += take;
    p += take;
    size -= take;
  }
}

void Blake3::finish(uint8_t out[32]) const {
  // The newest chunk, its last block kept open: it is the root's when there is nothing else.
  uint32_t h[8];
  start(h);
  size_t block = 0;
  for (; held_ > (block + 1) * 64; ++block)
    compress(h, chunk_ + block * 64, chunks_, 64, block == 0 ? uint32_t{kChunkStart} : 0);
  uint8_t last[64] = {};
  std::memcpy(last, chunk_ + block * 64, held_ - block * 64);
  const uint32_t flags = (block == 0 ? uint32_t{kChunkStart} : 0) | kChunkEnd;
  compress(h, last, chunks_, static_cast<uint32_t>(held_ - block * 64), flags | (depth_ == 0 ? uint32_t{kRoot} : 0));
  for (int i = depth_; i-- > 0;) {
    parent_block(stack_[i], h, last);
    start(h);
    compress(h, last, 0, 64, kParent | (i == 0 ? uint32_t{kRoot} : 0));
  }
  store_words(h, out);
}

void blake3(cpu::Isa isa, const void* data, size_t size, uint8_t out[32]) {
  Blake3 hash(isa);
  hash.update(data, size);
  hash.finish(out);
}

}  // namespace mr
