// wgmma: barriers in shared memory and copies that complete on them, on the host. A copy is done when it is asked for.
#pragma once

#include <cstdio>
#include <cstdlib>

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
inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (barrier_at(barrier).phase == parity) emulated::yield();
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
inline void shared_fence() {}
inline void wgmma_fence() {}
inline void wgmma_commit() { emulated::yield(); }
template <int32_t pending>
void wgmma_wait() {}

}  // namespace mr::cuda
