// search_instructions: the instructions of the search on the host; descriptors are decoded as the hardware does.
#pragma once

#include "kernels/gemm/wgmma.cuh"
#include "kernels/instructions.cuh"
#include "kernels/vectors/search_layout.h"

namespace mr::cuda {

constexpr int32_t kSearchSums = kSearchWide / 2;

inline uint8_t* launch_memory() { return shared_bytes + 16; }

inline uint32_t load_global4(const void* from) {
  uint32_t v;
  memcpy(&v, from, sizeof v);
  return v;
}

inline void store_pair(uint32_t to, float a, float b) {
  memcpy(shared_at(to), &a, 4);
  memcpy(shared_at(to + 4), &b, 4);
}
inline void load_pair(uint32_t from, float& a, float& b) {
  memcpy(&a, shared_at(from), 4);
  memcpy(&b, shared_at(from + 4), 4);
}
inline float near_root(float v) { return std::sqrt(v); }

inline uint64_t swizzled_rows32(uint32_t address) { return (address & 0x3ffffu) >> 4; }

// Column k of a row of a block: eight rows of 32 bytes, then the next eight; bit 4 of an address differs where bit 7 is
// set.
inline uint16_t operand(uint64_t block, int32_t row, int32_t k) {
  const uint32_t plain = static_cast<uint32_t>(block << 4) + static_cast<uint32_t>(row * 32 + k * 2);
  uint16_t v;
  memcpy(&v, shared_at(plain ^ (plain >> 7 & 1) << 4), sizeof v);
  return v;
}

// The contents of a RowsMap here.
struct EmulatedRows {
  const uint8_t* rows;
  int64_t count, spaces, width;
};
inline void copy_rows(uint32_t to, const RowsMap& map, int32_t column, int32_t row, int32_t space, uint32_t barrier) {
  EmulatedRows all;
  memcpy(&all, &map, sizeof all);
  for (int64_t r = 0; r < kSearchRows; ++r)
    for (int64_t c = 0; c < 16; ++c) {
      const uint32_t plain = to + static_cast<uint32_t>(r * 32 + c * 2);
      uint8_t* const at = shared_at(plain ^ (plain >> 7 & 1) << 4);
      const bool there = row + r < all.count && column + c < all.width;
      if (there) memcpy(at, all.rows + (((row + r) * all.spaces + space) * all.width + column + c) * 2, 2);
      else memset(at, 0, 2);
    }
  barrier_at(barrier).bytes -= kRowBlock;
  end_phase(barrier_at(barrier));
}

template <class E, bool add = true>
void wgmma_blocks(float (&d)[kSearchSums], uint64_t a, uint64_t b) {
  auto& terms = emulated_terms<2 * kSearchSums>[emulated::next_turn()][threadIdx.x / 32];
  const int32_t first = static_cast<int32_t>(threadIdx.x) / 32 % 4 * 16;
  for (int32_t i = static_cast<int32_t>(threadIdx.x) % 32; i < 256; i += 32)
    terms.rows[i / 16][i % 16] = term_of<E>(operand(a, first + i / 16, i % 16));
  put_columns<E>(terms, [b](int32_t n, int32_t k) { return operand(b, n, k); });
  emulated::warp_barrier();
  for (float& sum : d) sum = add ? sum : 0;
  add_products(terms, d);
}

}  // namespace mr::cuda
