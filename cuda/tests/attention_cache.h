// attention_cache: a paged cache of random keys and values, in device memory and as host numbers, for tests of
// attention.
#pragma once

#include <algorithm>
#include <utility>

#include "kernel_fixture.h"
#include "kernels/attention/attention.h"
#include "kernels/f8.cuh"

namespace mr::cuda::testing {

struct Shape {
  int32_t heads, kv_heads, dim, block_size;
};

// Cache holds sequences with random keys and values, each in blocks of its own in shuffled order; all other memory is
// NaN.
struct Cache {
  Act act;
  Shape shape;
  KvLayout layout;
  std::vector<int32_t> lengths, table, blocks;
  std::vector<float> key, value;  // as stored, by pool element
  float query = 0;                // every element of every query; 0: queries are random
  int32_t window = 0;             // of the rows that read it, and the cap of their scores; 0: none
  float cap = 0;
  std::vector<float> sinks;       // (heads), or none
  std::vector<uint8_t> key_bytes, value_bytes;
  Guarded<uint8_t> keys, values;

  static size_t pool(const std::vector<int32_t>& lengths, const KvLayout& l) {
    int64_t count = 0;
    for (const int32_t n : lengths) count += (n + l.block_size - 1) / l.block_size;
    return static_cast<size_t>(count);
  }
  Cache(Act a, const Shape& s, const std::vector<int32_t>& n, uint64_t seed, Kv kv = Kv::kAct)
      : act(a), shape(s), layout{a, s.block_size, s.kv_heads, s.dim, pad_head_dim(s.dim), kv}, lengths(n),
        key(pool(n, layout) * static_cast<size_t>(layout.block_elements())), value(key.size()),
        key_bytes(pool(n, layout) * static_cast<size_t>(layout.block_bytes()), 0xff), value_bytes(key_bytes),
        keys(key_bytes.size()), values(key_bytes.size()) {
    Numbers numbers(seed);
    for (const int32_t length : n) {
      table.push_back(static_cast<int32_t>(blocks.size()));
      for (int32_t b = 0; b < length; b += s.block_size) blocks.push_back(static_cast<int32_t>(blocks.size()));
    }
    for (size_t i = blocks.size(); i > 1; --i)
      std::swap(blocks[i - 1], blocks[static_cast<size_t>(numbers.below(static_cast<int64_t>(i)))]);
    std::vector<float> k(static_cast<size_t>(s.dim)), v(k.size());
    for (size_t i = 0; i < n.size(); ++i)
      for (int32_t p = 0; p < n[i]; ++p)
        for (int32_t h = 0; h < s.kv_heads; ++h) {
          // Tokens of an 8-bit cache get different scales.
          const float size = kv == Kv::kF8 ? 1.0f / static_cast<float>(1 + numbers.below(8)) : 1.0f;
          for (int32_t d = 0; d < s.dim; ++d) {
            k[static_cast<size_t>(d)] = size * numbers.normal();
            v[static_cast<size_t>(d)] = size * numbers.normal();
          }
          put(i, p, h, k, key, key_bytes);
          put(i, p, h, v, value, value_bytes);
        }
    upload();
  }
  void upload() {
    keys.write(key_bytes);
    values.write(value_bytes);
  }
  // Stores one head of one token as the kernels write it.
  void put(size_t sequence, int32_t position, int32_t head, const std::vector<float>& x, std::vector<float>& stored,
           std::vector<uint8_t>& bytes) const {
    const int64_t block = blocks[static_cast<size_t>(table[sequence] + position / layout.block_size)];
    const int32_t token = position % layout.block_size;
    uint32_t greatest = 0;
    for (const float element : x) greatest = std::max(greatest, f8_size(element));
    const float scale = f8_scale(greatest);
    if (layout.kv == Kv::kF8) std::memcpy(bytes.data() + layout.f8_scale_at(block, head, token), &scale, sizeof scale);
    for (int32_t d = 0; d < layout.padded_dim; ++d) {
      const float element = d < shape.dim ? x[static_cast<size_t>(d)] : 0.0f;
      const size_t at = place(sequence, position, head) + static_cast<size_t>(d);
      if (layout.kv == Kv::kF8) {
        const uint32_t small = f8_from_f32(element, scale);
        bytes[static_cast<size_t>(layout.f8_at(block, head, token) + d)] = static_cast<uint8_t>(small);
        stored[at] = f8_to_f32(small) * scale;
      } else {
        const uint16_t half = to_act(act, element);
        std::memcpy(bytes.data() + 2 * at, &half, sizeof half);
        stored[at] = from_act(act, half);
      }
    }
  }
  // Returns whether prompts round elements of 8 bits times their scales to `act` before they multiply them, as prefill_wgmma does.
  bool prompts_round() const {
    int32_t blocks = 0;
    MUST(prefill_wide_blocks(layout, 1, &blocks));
    return blocks > 0;
  }
  size_t place(size_t sequence, int32_t position, int32_t head) const {
    const int64_t block = blocks[static_cast<size_t>(table[sequence] + position / layout.block_size)];
    return static_cast<size_t>(block * layout.block_elements() + head * layout.head_elements() +
                               static_cast<int64_t>(position % layout.block_size) * layout.padded_dim);
  }
};

}  // namespace mr::cuda::testing
