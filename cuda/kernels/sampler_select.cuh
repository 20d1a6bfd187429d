// sampler_select: the shortest run of least keys that reaches a target, by radix over 64-bit keys in one block.
//
// Each pass splits the keys that are still in question by their next 8 bits, in shared memory; it ends early when a bin
// is taken whole. At most 8 passes, whatever the keys are. Sums are integers: the order of threads decides nothing.
#pragma once

#include "kernels/sampler_weights.cuh"

namespace mr::cuda {

struct SelectSpace {
  uint32_t low[256], high[256], count[256];
  unsigned long long least, greatest;
  uint64_t limit, target, chosen;  // chosen: the bits decided so far
  int32_t shift;                   // of the next digit; < 0: done
};

// Adds to a 64-bit sum in two words: the addition that wraps the low word carries.
__device__ __forceinline__ void add_mass(uint32_t* low, uint32_t* high, uint64_t mass) {
  const uint32_t part = static_cast<uint32_t>(mass);
  const uint32_t before = atomicAdd(low, part);
  const uint32_t carried = static_cast<uint32_t>(mass >> 32) + (before + part < before ? 1u : 0u);
  if (carried != 0) atomicAdd(high, carried);
}

// visit(f) calls f(key, mass) in some thread for each element; keys are distinct. Gives, in every thread, the greatest key
// of the shortest run of least keys whose masses reach `target` >= 1: all keys <= it form the run. All ones when the whole
// does not reach it.
template <class Visit>
__device__ uint64_t select_least(SelectSpace& s, uint64_t target, Visit visit) {
  __syncthreads();
  if (threadIdx.x == 0) {
    s.least = ~0ull;
    s.greatest = 0;
    s.target = target;
  }
  __syncthreads();
  unsigned long long least = ~0ull, greatest = 0;
  visit([&](uint64_t key, uint64_t) {
    least = key < least ? key : least;
    greatest = key > greatest ? key : greatest;
  });
  for (int lane = 16; lane > 0; lane /= 2) {
    const unsigned long long a = __shfl_xor_sync(0xffffffffu, least, lane), b = __shfl_xor_sync(0xffffffffu, greatest, lane);
    least = a < least ? a : least;
    greatest = b > greatest ? b : greatest;
  }
  if (threadIdx.x % 32 == 0) {
    atomicMin(&s.least, least);
    atomicMax(&s.greatest, greatest);
  }
  __syncthreads();
  if (s.least >= s.greatest) return s.greatest >= s.least ? s.greatest : ~0ull;  // one element, or none
  // Digits begin at the highest bit in which keys differ.
  const int top_bit = 63 - __clzll(static_cast<long long>(s.least ^ s.greatest));
  uint64_t prefix_mask = top_bit == 63 ? 0 : ~0ull << (top_bit + 1);  // bits decided so far
  uint64_t prefix = s.least & prefix_mask;
  int shift = top_bit >= 7 ? top_bit - 7 : 0;
  for (;;) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) s.low[i] = s.high[i] = s.count[i] = 0;
    __syncthreads();
    visit([&](uint64_t key, uint64_t mass) {
      if ((key & prefix_mask) != prefix) return;
      const int digit = static_cast<int>((key & ~prefix_mask) >> shift);
      add_mass(s.low + digit, s.high + digit, mass);
      atomicAdd(s.count + digit, 1u);
    });
    __syncthreads();
    if (threadIdx.x < 32) {  // lane l sums the digits 8l .. 8l+7
      const int lane = threadIdx.x;
      const uint64_t wanted = s.target;
      __syncwarp();  // every lane has read it before one of them changes it
      uint64_t own = 0;
      for (int i = 0; i < 8; ++i) own += static_cast<uint64_t>(s.high[lane * 8 + i]) << 32 | s.low[lane * 8 + i];
      uint64_t upto = own;
      for (int distance = 1; distance < 32; distance *= 2) {
        const uint64_t other = __shfl_up_sync(0xffffffffu, upto, distance);
        if (lane >= distance) upto += other;
      }
      const uint32_t reached = __ballot_sync(0xffffffffu, upto >= wanted);
      if (reached == 0) {
        if (lane == 0) {
          s.limit = ~0ull;  // only in the first pass: the whole does not reach the target
          s.shift = -1;
        }
      } else if (lane == __ffs(static_cast<int>(reached)) - 1) {
        uint64_t before = upto - own, mass = 0;
        int digit = lane * 8;
        for (;; ++digit) {
          mass = static_cast<uint64_t>(s.high[digit]) << 32 | s.low[digit];
          if (before + mass >= wanted) break;
          before += mass;
        }
        const uint64_t chosen = prefix | static_cast<uint64_t>(digit) << shift;
        s.limit = chosen | ((1ull << shift) - 1);
        const bool whole = shift == 0 || s.count[digit] == 1 || before + mass == wanted;
        s.shift = whole ? -1 : shift;
        s.target = wanted - before;
        s.chosen = chosen;
      }
    }
    __syncthreads();
    if (s.shift < 0) return s.limit;
    prefix = s.chosen;
    prefix_mask = ~0ull << shift;
    shift = shift >= 8 ? shift - 8 : 0;
    __syncthreads();
  }
}

}  // namespace mr::cuda
