// attention/wgmma: the Hopper instructions of prefill attention, on the host; descriptors are decoded as the hardware
// does.
#pragma once

#include "kernels/cache_map.h"
#include "kernels/gemm/wgmma.cuh"

namespace mr::cuda {

inline uint8_t* attention_memory() { return shared_bytes; }

template <int32_t count>
void settle(float (&)[count]) {}

inline uint64_t summed_rows(uint32_t address, uint32_t half) {
  return (address & 0x3ffffu) >> 4 | static_cast<uint64_t>(half >> 4) << 16 | uint64_t{64} << 32;
}

// The contents of a CacheMap here.
struct EmulatedCache {
  const uint8_t* block0;
  int64_t dims, rows_a_box;
};
inline void copy_box(uint32_t to, const EmulatedCache& cache, int32_t x, int32_t y, uint32_t barrier) {
  for (int64_t r = 0; r < cache.rows_a_box; ++r)
    for (int64_t c = 0; c < 64; ++c) {
      const uint8_t* const from = cache.block0 + ((y + r) * cache.dims + x + c) * 2;
      uint8_t* const place = swizzled_at(to + static_cast<uint32_t>(r * 128 + c * 2));
      if (x + c < cache.dims) memcpy(place, from, 2);
      else memset(place, 0, 2);  // beyond the tensor
    }
  barrier_at(barrier).bytes -= cache.rows_a_box * 128;
  end_phase(barrier_at(barrier));
}

inline void tensor_copy(uint32_t to, const void* map, int32_t x, int32_t y, uint32_t barrier) {
  EmulatedCache cache;
  memcpy(&cache, map, sizeof cache);
  if (products_first) late_copies[barrier / 8 % 64].push_back([=] { copy_box(to, cache, x, y, barrier); });
  else copy_box(to, cache, x, y, barrier);
}

inline void map_prefetch(const void*) {}

// Column n of row k: 64 columns, then the next 64 at the descriptor's leading offset; eight rows, then the next at its
// stride.
inline uint16_t summed_operand(uint64_t rows, int32_t k, int32_t n) {
  const uint32_t first = static_cast<uint32_t>(rows & 0x3fff) * 16, leading = static_cast<uint32_t>(rows >> 16 & 0x3fff) * 16;
  const uint32_t stride = static_cast<uint32_t>(rows >> 32 & 0x3fff) * 16;
  return operand_at(first + static_cast<uint32_t>(n / 64) * leading + static_cast<uint32_t>(k / 8) * stride +
                    static_cast<uint32_t>(k % 8 * 128 + n % 64 * 2));
}

template <class T, bool add, int32_t count>
void score_products(float (&d)[count], uint64_t q, uint64_t k) {
  product([to = &d, q, k] {
    auto& terms = emulated_terms<2 * count>[emulated::next_turn()][threadIdx.x / 32];
    const int32_t first = static_cast<int32_t>(threadIdx.x) / 32 % 4 * 16;
    for (int32_t i = static_cast<int32_t>(threadIdx.x) % 32; i < 256; i += 32)
      terms.rows[i / 16][i % 16] = term_of<T>(row_operand(q, first + i / 16, i % 16));
    put_columns<T>(terms, [k](int32_t n, int32_t j) { return row_operand(k, n, j); });
    emulated::warp_barrier();
    for (float& sum : *to) sum = add ? sum : 0;
    add_products(terms, *to);
  });
}

template <class T, int32_t count>
void value_products(float (&d)[count], const uint32_t (&w)[4], uint64_t v) {
  product([to = &d, from = &w, v] {
    auto& terms = emulated_terms<2 * count>[emulated::next_turn()][threadIdx.x / 32];
    put_rows<T>(terms, *from);
    put_columns<T>(terms, [v](int32_t n, int32_t j) { return summed_operand(v, j, n); });
    emulated::warp_barrier();
    add_products(terms, *to);
  });
}

}  // namespace mr::cuda
