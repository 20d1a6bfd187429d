// instructions: tensor cores and shared memory of one block at a time, on the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <deque>
#include <type_traits>

namespace mr::cuda {

// Of the block that runs; its addresses begin at kSharedStart.
alignas(1024) inline uint8_t shared_bytes[256 << 10];
constexpr uint32_t kSharedStart = 4096;

inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(p) - shared_bytes) + kSharedStart;
}
inline uint8_t* dynamic_memory() { return shared_bytes; }
inline uint8_t* shared_at(uint32_t address) { return shared_bytes + (address - kSharedStart); }
inline uint32_t load_shared4(uint32_t address) {
  uint32_t v;
  memcpy(&v, shared_at(address), sizeof v);
  return v;
}
inline uint4 load_shared16(uint32_t address) {
  uint4 v;
  memcpy(&v, shared_at(address), sizeof v);
  return v;
}
inline void store_shared4(uint32_t address, uint32_t v) { memcpy(shared_at(address), &v, sizeof v); }
inline void store_shared16(uint32_t address, uint4 v) { memcpy(shared_at(address), &v, sizeof v); }

inline void store_shared8(uint32_t address, uint2 v) { memcpy(shared_at(address), &v, sizeof v); }
inline uint2 load_shared8(uint32_t address) {
  uint2 v;
  memcpy(&v, shared_at(address), sizeof v);
  return v;
}
inline uint32_t load_shared2(uint32_t address) {
  uint16_t v;
  memcpy(&v, shared_at(address), sizeof v);
  return v;
}
inline float load_shared_float(uint32_t address) { return __uint_as_float(load_shared4(address)); }
inline float2 load_shared_floats(uint32_t address) { return {load_shared_float(address), load_shared_float(address + 4)}; }

inline float reciprocal_near(float x) { return 1 / x; }
inline uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) { return (a & mask) | bits; }

inline int32_t count_done(int32_t* done, int32_t more) { return atomicAdd(done, more); }

// CopyGroups is a thread's asynchronous copies. They run only when they are waited for.
struct CopyGroups {
  struct Copy {
    uint32_t to, bytes, all;
    const void* from;
  };
  std::deque<Copy> copies;
  std::deque<size_t> committed;  // copies of each group
  size_t open = 0;               // copies after them
};
inline CopyGroups emulated_copies[1024];
inline void copy_or_zero(uint32_t to, const void* from, uint32_t bytes, uint32_t all) {
  emulated_copies[threadIdx.x].copies.push_back({to, bytes, all, from});
  ++emulated_copies[threadIdx.x].open;
}
inline void copy16_or_zero(uint32_t to, const void* from, uint32_t bytes) { copy_or_zero(to, from, bytes, 16); }
inline void copy4_or_zero(uint32_t to, const void* from, uint32_t bytes) { copy_or_zero(to, from, bytes, 4); }
inline void prefetch_l2(const void*) {}
inline uint64_t evict_first_policy() { return 0; }
inline uint64_t evict_normal_policy() { return 0; }
inline float4 load16(const float4* from, uint64_t) { return *from; }
inline void store16(float4* to, float4 x, uint64_t) { *to = x; }
inline void copy16(uint32_t to, const void* from, uint64_t) { copy_or_zero(to, from, 16, 16); }
inline void copy16_through(uint32_t to, const void* from) { copy_or_zero(to, from, 16, 16); }
inline void copies_commit() {
  CopyGroups& mine = emulated_copies[threadIdx.x];
  mine.committed.push_back(mine.open);
  mine.open = 0;
}
template <int pending>
void copies_wait() {
  CopyGroups& mine = emulated_copies[threadIdx.x];
  for (; mine.committed.size() > pending; mine.committed.pop_front()) {
    for (size_t left = mine.committed.front(); left > 0; --left, mine.copies.pop_front()) {
      const CopyGroups::Copy& copy = mine.copies.front();
      memset(shared_at(copy.to), 0, copy.all);
      memcpy(shared_at(copy.to), copy.from, copy.bytes);
    }
  }
}

struct NamedBarrier {
  int32_t here, turns;
};
inline NamedBarrier named_barriers[16];
inline void named_arrive(int32_t id, int32_t threads) {
  if (++named_barriers[id].here < threads) return;
  named_barriers[id].here = 0;
  ++named_barriers[id].turns;
}
inline void named_barrier(int32_t id, int32_t threads) {
  const int32_t turn = named_barriers[id].turns;
  named_arrive(id, threads);
  while (named_barriers[id].turns == turn) emulated::yield();
}

template <class E>
double term_of(uint32_t bits) {
  if constexpr (std::is_same_v<E, __half>) return static_cast<double>(__half2float({static_cast<uint16_t>(bits)}));
  else return static_cast<double>(__uint_as_float(bits << 16));
}

// Each lane reads a row of eight elements for the others.
inline const uint4* rows_of_matrices(uint32_t address) { return emulated::of_warp(load_shared16(address)); }
inline void load_matrices(uint32_t (&out)[4], uint32_t address) {
  const uint32_t lane = threadIdx.x % 32;
  const uint4* const rows = rows_of_matrices(address);
  for (uint32_t i = 0; i < 4; ++i) memcpy(&out[i], reinterpret_cast<const uint8_t*>(&rows[i * 8 + lane / 4]) + lane % 4 * 4, 4);
}

// The same, each transposed.
inline void load_matrices_transposed(uint32_t (&out)[4], uint32_t address) {
  const uint32_t lane = threadIdx.x % 32;
  const uint4* const rows = rows_of_matrices(address);
  for (uint32_t i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (uint32_t h = 0; h < 2; ++h)
      memcpy(&pair[h], reinterpret_cast<const uint8_t*>(&rows[i * 8 + lane % 4 * 2 + h]) + lane / 4 * 2, 2);
    out[i] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
  }
}

// Lane 4 g + t has row g, columns 2 t and 2 t + 1, before and after.
inline uint32_t transpose(uint32_t x) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const uint32_t first = emulated::of_lane(x, 8 * t + g / 2), second = emulated::of_lane(x, 8 * t + 4 + g / 2);
  return (first >> g % 2 * 16 & 0xffffu) | (second >> g % 2 * 16 & 0xffffu) << 16;
}

// The terms of a product of a warp: 16 rows and `columns` columns of 16. Each lane converts a part of them for the others.
template <int columns>
struct Terms {
  double rows[16][16], columns_of[columns][16];
};
template <int columns>
inline Terms<columns> emulated_terms[2][32];

// The lane's part of the rows, of which it has four registers.
template <class E, int columns>
void put_rows(Terms<columns>& terms, const uint32_t (&a)[4]) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t r = 0; r < 4; ++r)
    for (uint32_t h = 0; h < 2; ++h) terms.rows[lane / 4 + r % 2 * 8][r / 2 * 8 + lane % 4 * 2 + h] = term_of<E>(a[r] >> h * 16 & 0xffffu);
}

// The lane's sums: rows g and g + 8 of columns 8 j + 2 t and 8 j + 2 t + 1, where its number is 4 g + t.
template <int columns, int32_t count>
void add_products(const Terms<columns>& terms, float (&sums)[count]) {
  const uint32_t lane = threadIdx.x % 32;
  for (int32_t i = 0; i < count; ++i) {
    const double* const x = terms.rows[lane / 4 + static_cast<uint32_t>(i / 2 % 2 * 8)];
    const double* const y = terms.columns_of[static_cast<uint32_t>(i / 4 * 8 + i % 2) + lane % 4 * 2];
    double sum = static_cast<double>(sums[i]);
    for (int32_t k = 0; k < 16; ++k) sum += x[k] * y[k];
    sums[i] = static_cast<float>(sum);
  }
}

template <class E>
void mma16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Terms<8>& terms = emulated_terms<8>[emulated::next_turn()][threadIdx.x / 32];
  put_rows<E>(terms, a);
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t h = 0; h < 2; ++h) {
    terms.columns_of[lane / 4][lane % 4 * 2 + h] = term_of<E>(b0 >> h * 16 & 0xffffu);
    terms.columns_of[lane / 4][8 + lane % 4 * 2 + h] = term_of<E>(b1 >> h * 16 & 0xffffu);
  }
  emulated::warp_barrier();
  add_products(terms, c);
}

}  // namespace mr::cuda
