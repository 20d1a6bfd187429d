// instructions: tensor cores and shared memory of one block at a time, on the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <deque>
#include <functional>
#include <type_traits>
#include <vector>

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
  std::vector<std::function<void()>> open;
  std::deque<std::vector<std::function<void()>>> committed;
};
inline CopyGroups emulated_copies[1024];
inline void copy_or_zero(uint32_t to, const void* from, uint32_t bytes, uint32_t all) {
  emulated_copies[threadIdx.x].open.push_back([=] {
    memset(shared_at(to), 0, all);
    memcpy(shared_at(to), from, bytes);
  });
}
inline void copy16_or_zero(uint32_t to, const void* from, uint32_t bytes) { copy_or_zero(to, from, bytes, 16); }
inline void copy4_or_zero(uint32_t to, const void* from, uint32_t bytes) { copy_or_zero(to, from, bytes, 4); }
inline void prefetch_l2(const void*) {}
inline uint64_t evict_first_policy() { return 0; }
inline uint64_t evict_normal_policy() { return 0; }
inline void copy16(uint32_t to, const void* from, uint64_t) { copy_or_zero(to, from, 16, 16); }
inline void copy16_through(uint32_t to, const void* from) { copy_or_zero(to, from, 16, 16); }
inline void copies_commit() {
  CopyGroups& mine = emulated_copies[threadIdx.x];
  mine.committed.push_back(std::move(mine.open));
  mine.open.clear();
}
template <int pending>
void copies_wait() {
  auto& groups = emulated_copies[threadIdx.x].committed;
  for (; groups.size() > pending; groups.pop_front())
    for (const auto& copy : groups.front()) copy();
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
  if constexpr (std::is_same_v<E, __half>) return static_cast<double>(half_to_float(static_cast<uint16_t>(bits)));
  else return static_cast<double>(__uint_as_float(bits << 16));
}

inline void load_matrices(uint32_t (&out)[4], uint32_t address) {
  static uint32_t rows[32][32];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  rows[warp][lane] = address;
  emulated::warp_barrier();
  for (uint32_t i = 0; i < 4; ++i) out[i] = load_shared4(rows[warp][i * 8 + lane / 4] + lane % 4 * 4);
  emulated::warp_barrier();
}

// The same, each transposed.
inline void load_matrices_transposed(uint32_t (&out)[4], uint32_t address) {
  static uint32_t rows[32][32];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  rows[warp][lane] = address;
  emulated::warp_barrier();
  for (uint32_t i = 0; i < 4; ++i) {
    const auto element = [&](uint32_t row) { return load_shared2(rows[warp][i * 8 + row] + lane / 4 * 2); };
    out[i] = element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
  }
  emulated::warp_barrier();
}

// Lane 4 g + t has row g, columns 2 t and 2 t + 1, before and after.
inline uint32_t transpose(uint32_t x) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const uint32_t first = emulated::of_lane(x, 8 * t + g / 2), second = emulated::of_lane(x, 8 * t + 4 + g / 2);
  return (first >> g % 2 * 16 & 0xffffu) | (second >> g % 2 * 16 & 0xffffu) << 16;
}

template <class E>
void mma16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static uint32_t rows[32][32][4], columns[32][32][2];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  memcpy(rows[warp][lane], a, sizeof a);
  columns[warp][lane][0] = b0;
  columns[warp][lane][1] = b1;
  emulated::warp_barrier();
  for (uint32_t e = 0; e < 4; ++e) {
    const uint32_t row = lane / 4, column = lane % 4 * 2 + e % 2;
    double sum = static_cast<double>(c[e]);
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t x = rows[warp][row * 4 + k % 8 / 2][k / 8 * 2 + e / 2], y = columns[warp][column * 4 + k % 8 / 2][k / 8];
      sum += term_of<E>(x >> k % 2 * 16 & 0xffffu) * term_of<E>(y >> k % 2 * 16 & 0xffffu);
    }
    c[e] = static_cast<float>(sum);
  }
  emulated::warp_barrier();
}

}  // namespace mr::cuda
