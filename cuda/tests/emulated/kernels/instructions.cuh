// instructions: tensor cores and shared memory of one block at a time, on the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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
inline void store_shared16(uint32_t address, uint4 v) { memcpy(shared_at(address), &v, sizeof v); }

inline void store_shared8(uint32_t address, uint2 v) { memcpy(shared_at(address), &v, sizeof v); }

// This thread's asynchronous copies, which run only when they are waited for.
inline std::vector<std::function<void()>> emulated_copies[1024];
inline void copy16_or_zero(uint32_t to, const void* from, uint32_t bytes) {
  emulated_copies[threadIdx.x].push_back([=] {
    memset(shared_at(to), 0, 16);
    memcpy(shared_at(to), from, bytes);
  });
}
inline void copies_commit() {}
template <int pending>
void copies_wait() {
  static_assert(pending == 0);
  for (const auto& copy : emulated_copies[threadIdx.x]) copy();
  emulated_copies[threadIdx.x].clear();
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
