// sampler/select: radix selection in one block: the shortest run of least keys whose masses reach a target.
//
// The candidate keys are split by their next 8 bits, in shared memory, until few are left; each of these is then
// compared with all others. At most 8 splits are needed, whatever the keys are. Sums are integers, so the order of
// threads changes nothing.
#pragma once

#include "kernels/sampler/weights.cuh"

namespace mr::cuda {

constexpr int kThreads = 512;  // of a block of choose
constexpr int kWarps = kThreads / 32;
constexpr int kFew = 256;      // keys that are not split any further
constexpr int kDigits = 256;

struct alignas(16) KeyedMass {
  uint64_t key, mass;
};

// KeyRange contains the keys of a selection.
struct KeyRange {
  uint64_t least, greatest;

  __device__ __forceinline__ bool known() const { return least <= greatest; }
};
__device__ __forceinline__ KeyRange any_keys() { return KeyRange{~0ull, 0}; }  // unknown: must be measured

// MassSums adds up masses in four words, each with 13 bits of every mass. A row's kMostVocab tokens do not overflow them,
// so nothing is carried and no addition waits for another. Only masses of 2^39 and above, half of the greatest one, need
// the last word.
template <int kSize>
struct MassSums {
  static constexpr int kBits = 13;
  static_assert(kMostVocab <= 1 << (32 - kBits), "the words do not overflow");
  uint32_t words[4][kSize];

  __device__ __forceinline__ void clear(int i) { words[0][i] = words[1][i] = words[2][i] = words[3][i] = 0; }
  __device__ __forceinline__ void add(int i, uint64_t mass) {
    constexpr uint32_t kPart = (1u << kBits) - 1;
    atomicAdd(&words[0][i], static_cast<uint32_t>(mass) & kPart);
    if (mass <= kPart) return;
    atomicAdd(&words[1][i], static_cast<uint32_t>(mass >> kBits) & kPart);
    atomicAdd(&words[2][i], static_cast<uint32_t>(mass >> 2 * kBits) & kPart);
    if (mass >> 3 * kBits != 0) atomicAdd(&words[3][i], static_cast<uint32_t>(mass >> 3 * kBits));
  }
  __device__ __forceinline__ uint64_t sum(int i) const {
    return words[0][i] + (static_cast<uint64_t>(words[1][i]) << kBits) + (static_cast<uint64_t>(words[2][i]) << 2 * kBits) +
           (static_cast<uint64_t>(words[3][i]) << 3 * kBits);
  }
};

struct SelectSpace {
  MassSums<kDigits> masses;  // 0 before and after each selection, as the next and few_count
  uint32_t count[kDigits];
  KeyRange warps[kWarps];
  uint64_t limit, target, chosen;  // chosen: the bits decided so far
  int32_t narrowed;                // 1: few are left; 0: more; -1: the total does not reach the target
  uint32_t few_count;
  KeyedMass few[kFew];
  uint64_t before[kThreads];

  // Must run before the first selection; threads see the result after their next barrier.
  __device__ __forceinline__ void clear() {
    clear_digits();
    if (threadIdx.x == 0) few_count = 0;
  }
  __device__ __forceinline__ void clear_digits() {
    static_assert(kDigits <= kThreads, "a digit a thread");
    const int i = threadIdx.x;
    if (i >= kDigits) return;
    masses.clear(i);
    count[i] = 0;
  }
};

// Question is what remains to be decided: the key has `prefix` in `bits`, and masses of keys with that prefix must
// reach the target.
struct Question {
  uint64_t bits, prefix, target;

  __device__ __forceinline__ bool has(uint64_t key) const { return (key & bits) == prefix; }
};

// Returns the least and the greatest key; if there are none, the range is unknown.
template <class Visit>
__device__ __forceinline__ KeyRange measure(SelectSpace& s, Visit visit) {
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
  if (threadIdx.x % 32 == 0) s.warps[threadIdx.x / 32] = KeyRange{least, greatest};
  __syncthreads();
  KeyRange all = any_keys();
#pragma unroll 4
  for (int w = 0; w < kWarps; ++w) {
    all.least = min(all.least, s.warps[w].least);
    all.greatest = max(all.greatest, s.warps[w].greatest);
  }
  return all;
}

// Narrows a question about all keys to one about at most kFew; returns false if the total does not reach the target.
template <class Visit>
__device__ __forceinline__ bool narrow(SelectSpace& s, Question& question, KeyRange keys, Visit visit) {
  if (!keys.known()) keys = measure(s, visit);
  if (!keys.known() || keys.least == keys.greatest) return true;  // none, or one
  // Digits start at the highest bit in which keys differ.
  const int top_bit = 63 - __clzll(static_cast<long long>(keys.least ^ keys.greatest));
  question.bits = top_bit == 63 ? 0 : ~0ull << (top_bit + 1);
  question.prefix = keys.least & question.bits;
  int shift = top_bit >= 7 ? top_bit - 7 : 0;
  for (;;) {
    visit([&](uint64_t key, uint64_t mass) {
      if (!question.has(key)) return;
      const int digit = static_cast<int>((key & ~question.bits) >> shift);
      s.masses.add(digit, mass);
      atomicAdd(s.count + digit, 1u);
    });
    __syncthreads();
    if (threadIdx.x < 32) {  // lane l sums the digits 8l .. 8l+7
      const int lane = threadIdx.x;
      const uint64_t wanted = question.target;
      uint64_t own = 0;
      for (int i = 0; i < 8; ++i) own += s.masses.sum(lane * 8 + i);
      const uint64_t upto = warp_running(own);
      const uint32_t reached = __ballot_sync(0xffffffffu, upto >= wanted);
      if (reached == 0) {
        if (lane == 0) s.narrowed = -1;  // possible only at the first digit
      } else if (lane == __ffs(static_cast<int>(reached)) - 1) {
        uint64_t before = upto - own;
        int digit = lane * 8;
        for (;; ++digit) {
          const uint64_t mass = s.masses.sum(digit);
          if (before + mass >= wanted) break;
          before += mass;
        }
        s.narrowed = s.count[digit] <= kFew ? 1 : 0;
        s.target = wanted - before;
        s.chosen = question.prefix | static_cast<uint64_t>(digit) << shift;
      }
    }
    __syncthreads();
    s.clear_digits();
    const int32_t narrowed = s.narrowed;
    question = Question{~0ull << shift, s.chosen, s.target};
    shift = shift >= 8 ? shift - 8 : 0;
    if (narrowed > 0) return true;  // the caller has a barrier before anything is counted again
    __syncthreads();
    if (narrowed < 0) return false;
  }
}

// Answers a question whose keys are all in s.few: the key at which their running sum, in ascending order, reaches the
// target. Several warps compare the same 32 keys, each with another part of the others.
__device__ __forceinline__ uint64_t place_few(SelectSpace& s, uint64_t target) {
  const uint32_t n = s.few_count, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t bits = n <= 32 ? 0 : n <= 64 ? 1 : n <= 128 ? 2 : 3;  // 1 << bits warps have a key a lane
  static_assert(kFew == 32 << 3 && kWarps == 1 << 4, "two warps or more for the same keys");
  const uint32_t group = warp >> bits, groups = kWarps >> bits, share = (n + groups - 1) >> (4 - bits);
  const uint32_t own = (warp & ((1u << bits) - 1)) * 32 + lane, end = min(n, (group + 1) * share);
  const uint64_t key = own < n ? s.few[own].key : 0;
  uint64_t before = 0;
#pragma unroll 4
  for (uint32_t i = group * share; i < end; ++i) {
    const KeyedMass other = s.few[i];
    before += other.key < key ? other.mass : 0;
  }
  s.before[threadIdx.x] = before;
  if (threadIdx.x == 0) s.limit = ~0ull;
  __syncthreads();
  if (group == 0 && own < n) {
    for (uint32_t i = 1; i < groups; ++i) before += s.before[(i << bits) * 32 + threadIdx.x];
    if (before < target && target - before <= s.few[own].mass) s.limit = key;
  }
  if (threadIdx.x == 0) s.few_count = 0;
  __syncthreads();
  return s.limit;
}

// visit(f) must call f(key, mass) in some thread for each of at most `most` elements, with distinct keys inside `keys`.
// Returns, in every thread, the greatest key of the shortest run of least keys whose masses reach `target` >= 1; all
// ones if the total does not.
template <class Visit>
__device__ uint64_t select_least(SelectSpace& s, uint64_t target, int32_t most, KeyRange keys, Visit visit) {
  Question question{0, 0, target};
  if (most > kFew && !narrow(s, question, keys, visit)) return ~0ull;
  visit([&](uint64_t key, uint64_t mass) {
    if (question.has(key)) s.few[atomicAdd(&s.few_count, 1u)] = KeyedMass{key, mass};
  });
  __syncthreads();
  return place_few(s, question.target);
}

}  // namespace mr::cuda
