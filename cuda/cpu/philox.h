// philox: the counter-based generator Philox4x32-10 (Salmon et al., 2011). A draw is a pure function of its key and
// counter; it has no state.
#pragma once

#include <stdint.h>

namespace mr {

struct Philox {
  uint32_t word[4];
};

inline Philox philox4x32(Philox counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ key0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ key1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return Philox{{c0, c1, c2, c3}};
}

// What a draw is for: part of the counter, so that different uses never share numbers.
enum : uint32_t { random_sample = 0 };

// 64 uniform bits for one position of one output: key = seed, counter = (position, output_index, purpose, lane 0);
// word 0 holds the high bits, word 1 the low ones.
inline uint64_t random_bits(uint64_t seed, uint32_t position, uint32_t output_index, uint32_t purpose) {
  const Philox r = philox4x32(Philox{{position, output_index, purpose, 0}}, static_cast<uint32_t>(seed),
                              static_cast<uint32_t>(seed >> 32));
  return (static_cast<uint64_t>(r.word[0]) << 32) | r.word[1];
}

}  // namespace mr
