// sampler_histogram: counts or masses of a team's tokens by bin, and the bin at which their running sum reaches a target.
//
// A block adds in columns, so that tokens of one bin meet few others at one address, whatever the row is. Then each block
// sums up its share of the bins over the team and tells all blocks.
#pragma once

#include "kernels/sampler_team.cuh"

namespace mr::cuda {

constexpr int kBins = 256;
constexpr int kColumns = 16;

struct HistogramSpace {
  uint32_t low[kBins * kColumns], high[kBins * kColumns];
};
struct BinSpace {
  uint64_t shares[kBins];           // (blocks, kBins / blocks)  of this block's bins
  uint64_t bins[kBins + kBins / 8]; // see place()
  __device__ static int place(int bin) { return bin + bin / 8; }  // lanes that read every eighth bin meet no other's bank
};

// Adds to a 64-bit sum in two words: the addition that wraps the low word carries.
__device__ __forceinline__ void add_mass(uint32_t* low, uint32_t* high, uint64_t mass) {
  const uint32_t part = static_cast<uint32_t>(mass);
  const uint32_t before = atomicAdd(low, part);
  const uint32_t carried = static_cast<uint32_t>(mass >> 32) + (before + part < before ? 1u : 0u);
  if (carried != 0) atomicAdd(high, carried);
}

// Zeroes a block's bins. A barrier of the block must follow before it adds.
__device__ __forceinline__ void clear_bins(HistogramSpace& s) {
  uint4* const words = reinterpret_cast<uint4*>(&s);
  constexpr int kWords = static_cast<int>(sizeof(HistogramSpace) / sizeof(uint4));
  for (int i = threadIdx.x; i < kWords; i += kThreads) words[i] = uint4{0, 0, 0, 0};
}

__device__ __forceinline__ void add_to_bin(HistogramSpace& s, int bin, uint64_t value) {
  const int at = bin * kColumns + static_cast<int>(threadIdx.x % kColumns);
  add_mass(s.low + at, s.high + at, value);
}
__device__ __forceinline__ void count_in_bin(HistogramSpace& s, int bin) {
  atomicAdd(s.low + bin * kColumns + threadIdx.x % kColumns, 1u);
}

struct Bin {
  bool reached;     // false: all bins together are less than the target
  int32_t index;
  uint64_t before;  // sum of the bins before it
};

// The first bin at which the running sum over the team's bins reaches the target.
__device__ __noinline__ Bin find_bin(const HistogramSpace& s, BinSpace& b, const Team& team, uint64_t target) {
  __syncthreads();
  const int thread = threadIdx.x, lane = thread % 32;
  const int share_bits = 8 - team.bits, shared = 1 << share_bits;  // bins of a block's share
  static_assert(kBins == 1 << 8 && kThreads == 2 * kBins && kColumns == 16, "two threads a bin, of eight columns each");
  uint64_t sum = 0;
  for (int i = 0; i < 8; ++i) {
    const int at = thread * 8 + (i + thread / 4) % 8;
    sum += static_cast<uint64_t>(s.high[at]) << 32;
    sum += s.low[at];
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  if (thread % 2 == 0) {
    const int bin = thread / 2;
    *team.at(b.shares + team.rank * shared + (bin & (shared - 1)), bin >> share_bits) = sum;
  }
  team.sync();
  if (thread < kBins) {  // one thread a bin of the share and block
    const int bin = thread >> team.bits, block = thread & (team.size - 1);
    sum = b.shares[block * shared + bin];
    for (int distance = team.size / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    *team.at(b.bins + BinSpace::place(team.rank * shared + bin), block) = sum;
  }
  team.sync();
  uint64_t own[8], all = 0;  // lane l sums the bins 8l .. 8l+7
  for (int i = 0; i < 8; ++i) all += own[i] = b.bins[BinSpace::place(lane * 8 + i)];
  const uint64_t upto = warp_running(all);
  const uint32_t reached = __ballot_sync(0xffffffffu, upto >= target);
  if (reached == 0) return Bin{false, kBins - 1, 0};
  const int first = __ffs(static_cast<int>(reached)) - 1;
  uint64_t before = upto - all;
  int index = 7;
  for (int i = 0; i < 7; ++i) {
    if (index < 7) continue;
    if (before + own[i] >= target) index = i;
    else before += own[i];
  }
  return Bin{true, first * 8 + __shfl_sync(0xffffffffu, index, first), __shfl_sync(0xffffffffu, before, first)};
}

}  // namespace mr::cuda
