// wgmma: barriers in shared memory, copies that complete on them, and products of registers, on the host; descriptors are decoded as
// the hardware does. A copy runs when it is issued, except late ones.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "kernels/instructions.cuh"

namespace mr::cuda {

struct EmulatedBarrier {
  int64_t arrivals, left, bytes;
  uint32_t phase;
};
inline EmulatedBarrier emulated_barriers[64];

inline EmulatedBarrier& barrier_at(uint32_t address) { return emulated_barriers[address / 8 % 64]; }
inline void end_phase(EmulatedBarrier& b) {
  if (b.left < 0) {
    std::fprintf(stderr, "a barrier has more arrivals than it waits for\n");
    std::abort();
  }
  if (b.left > 0 || b.bytes != 0) return;
  b.phase ^= 1;
  b.left = b.arrivals;
}
inline void barrier_init(uint32_t barrier, uint32_t arrivals) { barrier_at(barrier) = {arrivals, arrivals, 0, 0}; }
inline void barrier_init_fence() {}
inline void barrier_arrive(uint32_t barrier) {
  --barrier_at(barrier).left;
  end_phase(barrier_at(barrier));
}
inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  barrier_at(barrier).bytes += bytes;
  barrier_arrive(barrier);
}
// Late copies by the barrier on which they complete; they run only when a thread waits for it.
inline std::vector<std::function<void()>> late_copies[64];
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  for (;; emulated::yield()) {
    std::vector<std::function<void()>> copies;
    copies.swap(late_copies[barrier / 8 % 64]);
    for (const auto& copy : copies) copy();
    if (barrier_at(barrier).phase != parity) return;
  }
}
inline void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  memcpy(shared_at(to), from, bytes);
  barrier_at(barrier).bytes -= bytes;
  end_phase(barrier_at(barrier));
}
template <int32_t count>
void registers_up() {}
template <int32_t count>
void registers_down() {}
template <int32_t up, int32_t down>
constexpr bool kRegistersFit = 2 * up + down <= 3 * 168;
inline void shared_fence() {}
inline bool elected() { return threadIdx.x % 32 == 0; }
inline uint32_t kept_address(const void* p) { return shared_address(p); }

template <int32_t stages>
struct PipelineState {
  int32_t stage = 0;
  uint32_t phase = 0;
  void next() {
    if (++stage < stages) return;
    stage = 0;
    phase ^= 1;
  }
};

// Products by thread and commit; they run only when they are waited for.
inline std::vector<std::vector<std::function<void()>>> emulated_products[1024];
inline void wgmma_fence() {
  auto& mine = emulated_products[threadIdx.x];
  if (mine.empty()) mine.emplace_back();
}
inline void wgmma_commit() {
  wgmma_fence();
  emulated_products[threadIdx.x].emplace_back();
  emulated::yield();
}
template <int32_t pending>
void wgmma_wait() {
  auto& mine = emulated_products[threadIdx.x];
  while (mine.size() > pending + 1) {
    for (const auto& product : mine.front()) product();
    mine.erase(mine.begin());
  }
}
template <int32_t steps>
void wgmma_keep(const uint32_t (&)[steps][4]) {}
template <int32_t count>
void wgmma_settle(float (&)[count]) {}
inline uint64_t swizzled_rows(uint32_t address) { return (address & 0x3ffffu) >> 4 | uint64_t{64} << 32; }

// Copies run when they are issued and products when they are waited for, or the other way round, so a missing wait
// changes results.
inline bool products_first = false;

// Bits 4 to 6 of an address differ where bits 7 to 9 are set.
inline uint8_t* swizzled_at(uint32_t plain) { return shared_at(plain ^ (plain >> 7 & 7) << 4); }

inline uint16_t operand_at(uint32_t plain) {
  uint16_t v;
  memcpy(&v, swizzled_at(plain), sizeof v);
  return v;
}
// Element k of a row: eight rows of 128 bytes, then the next eight at the descriptor's stride.
inline uint16_t row_operand(uint64_t rows, int32_t row, int32_t k) {
  const uint32_t first = static_cast<uint32_t>(rows & 0x3fff) * 16, stride = static_cast<uint32_t>(rows >> 32 & 0x3fff) * 16;
  return operand_at(first + static_cast<uint32_t>(row / 8) * stride + static_cast<uint32_t>(row % 8 * 128 + k * 2));
}

inline void product(std::function<void()> work) {
  auto& mine = emulated_products[threadIdx.x];
  if (mine.empty()) {
    std::fprintf(stderr, "products without a fence before them\n");
    std::abort();
  }
  if (products_first) work();
  else mine.back().push_back(std::move(work));
}

// The lane's part of the columns of a product, element k of column n of which is `element(n, k)`.
template <class E, int columns, class Element>
void put_columns(Terms<columns>& terms, const Element& element) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x) % 32; i < columns * 16; i += 32)
    terms.columns_of[i / 16][i % 16] = term_of<E>(element(i / 16, i % 16));
}

template <class E, bool add = true, int32_t count>
void wgmma_m64(float (&d)[count], const uint32_t (&a)[4], uint64_t b) {
  product([to = &d, from = &a, b] {
    if constexpr (!add) memset(to, 0, sizeof *to);
    auto& terms = emulated_terms<2 * count>[emulated::next_turn()][threadIdx.x / 32];
    put_rows<E>(terms, *from);
    put_columns<E>(terms, [b](int32_t n, int32_t k) { return row_operand(b, n, k); });
    emulated::warp_barrier();
    add_products(terms, *to);
  });
}

}  // namespace mr::cuda
