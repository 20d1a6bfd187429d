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
      memcpy(swizzled_at(to + static_cast<uint32_t>(r * 128 + c * 2)), from, 2);
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
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32 % 4, lane = static_cast<int32_t>(threadIdx.x) % 32;
  float* const to = d;
  product([=] {
    for (int32_t i = 0; i < count; ++i) {
      const int32_t row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = add ? static_cast<double>(to[i]) : 0;
      for (int32_t j = 0; j < 16; ++j) sum += term_of<T>(row_operand(q, row, j)) * term_of<T>(row_operand(k, column, j));
      to[i] = static_cast<float>(sum);
    }
  });
}

// The weights of a row, which four lanes have.
inline uint32_t emulated_weights[1024][4];
template <class T, int32_t count>
void value_products(float (&d)[count], const uint32_t (&w)[4], uint64_t v) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, first = static_cast<int32_t>(threadIdx.x) - lane;
  float* const to = d;
  const uint32_t* const from = w;
  product([=] {
    memcpy(emulated_weights[threadIdx.x], from, sizeof emulated_weights[0]);
    emulated::warp_barrier();
    for (int32_t i = 0; i < count; ++i) {
      const int32_t column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = static_cast<double>(to[i]);
      for (int32_t j = 0; j < 16; ++j) {
        const uint32_t pair = emulated_weights[first + lane / 4 * 4 + j % 8 / 2][i / 2 % 2 + j / 8 * 2];
        sum += term_of<T>(pair >> j % 2 * 16 & 0xffffu) * term_of<T>(summed_operand(v, j, column));
      }
      to[i] = static_cast<float>(sum);
    }
    emulated::warp_barrier();
  });
}

}  // namespace mr::cuda
