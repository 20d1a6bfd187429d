// sampler_team: the blocks that take one job together, and how they tell each other what they found.
//
// On compute capability 9.0 and newer a team is a cluster; elsewhere it is one block. Every thread of a team takes every
// sync() of it: what decides whether a team goes on is the same in all its blocks, either a parameter of the job or what
// tell() gave. What is told is written into the other blocks' shared memory before a sync() and read from a block's own
// after it, so that a block may end after its last sync() while others still work.
#pragma once

#include "kernels/instructions.cuh"
#include "kernels/sampler_row.cuh"

namespace mr::cuda {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMostBlocks = 16;

struct Note {
  uint64_t a, b, c, d;
  uint32_t e, f, g, h;
};

struct TeamSpace {
  Note notes[2][kMostBlocks];  // by turn and block
  Note warps[kWarps];          // of the turn's, by warp
};

// Sums of a and b, and of c and d as one number of 128 bits; the least of each of the others.
struct Sums {
  __device__ __forceinline__ Note operator()(const Note& x, const Note& y) const {
    const uint64_t c = x.c + y.c;
    return Note{x.a + y.a, x.b + y.b, c, x.d + y.d + (c < x.c ? 1 : 0), min(x.e, y.e), min(x.f, y.f),
                min(x.g, y.g), min(x.h, y.h)};
  }
};

// The least of each of e to h.
struct Leasts {
  __device__ __forceinline__ Note operator()(const Note& x, const Note& y) const {
    return Note{0, 0, 0, 0, min(x.e, y.e), min(x.f, y.f), min(x.g, y.g), min(x.h, y.h)};
  }
};

// The sum of a, and the least of b and of c.
struct CountAndLeasts {
  __device__ __forceinline__ Note operator()(const Note& x, const Note& y) const {
    return Note{x.a + y.a, min(x.b, y.b), min(x.c, y.c)};
  }
};

__device__ __forceinline__ uint64_t warp_sum_u64(uint64_t x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}

__device__ __forceinline__ uint64_t warp_least_u64(uint64_t x) {
  const uint32_t high = static_cast<uint32_t>(x >> 32), least = __reduce_min_sync(0xffffffffu, high);
  const uint32_t low = __reduce_min_sync(0xffffffffu, high == least ? static_cast<uint32_t>(x) : 0xffffffffu);
  return static_cast<uint64_t>(least) << 32 | low;
}

// Running sums over the lanes of a warp.
__device__ __forceinline__ uint64_t warp_running(uint64_t x) {
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, x, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) x += other;
  }
  return x;
}

template <class Join>
__device__ __forceinline__ Note warp_join(Note x, int lanes, Join join) {
  for (int lane = lanes / 2; lane > 0; lane /= 2)
    x = join(x, Note{__shfl_xor_sync(0xffffffffu, x.a, lane), __shfl_xor_sync(0xffffffffu, x.b, lane),
                     __shfl_xor_sync(0xffffffffu, x.c, lane), __shfl_xor_sync(0xffffffffu, x.d, lane),
                     __shfl_xor_sync(0xffffffffu, x.e, lane), __shfl_xor_sync(0xffffffffu, x.f, lane),
                     __shfl_xor_sync(0xffffffffu, x.g, lane), __shfl_xor_sync(0xffffffffu, x.h, lane)});
  return x;
}

class Team {
 public:
  __device__ Team(TeamSpace& space, int32_t size_bits)
      : size(1 << size_bits), bits(size_bits), rank(static_cast<int32_t>(cluster_rank())), space_(space) {}

  const int32_t size, bits;  // size = 1 << bits
  const int32_t rank;

  // All threads of the team; what they wrote is visible to all.
  __device__ __forceinline__ void sync() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __syncwarp();
    cluster_sync();
#else
    __syncthreads();
#endif
  }

  // Where block `block` of the team has what this block has at p, in shared memory.
  template <class T>
  __device__ __forceinline__ T* at(T* p, int32_t block) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    T* out;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(out) : "l"(p), "r"(block));
    return out;
#else
    return p;
#endif
  }

  // Joins the notes of a block's warps, which have them in every lane, and tells them to all blocks. Gives the notes by
  // block, until the call after the next; those of this block's warps are in warp() until the next.
  template <class Join>
  __device__ __noinline__ const Note* tell(const Note& mine, Join join) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Note* const notes = space_.notes[turn_];
    turn_ ^= 1;
    if (lane == 0) space_.warps[warp] = mine;
    __syncthreads();
    if (warp == 0) {
      const Note block = warp_join(space_.warps[lane % kWarps], kWarps, join);
      if (lane < size) *at(notes + rank, lane) = block;
    }
    sync();
    return notes;
  }
  __device__ const Note& warp(int32_t index) const { return space_.warps[index]; }

  // One number of the notes of all blocks, as the sum or the least.
  __device__ __forceinline__ uint64_t sum(const Note* notes, uint64_t Note::* number) const {
    uint64_t all = 0;
    for (int32_t block = 0; block < size; ++block) all += notes[block].*number;
    return all;
  }
  __device__ __forceinline__ uint32_t least(const Note* notes, uint32_t Note::* number) const {
    return __reduce_min_sync(0xffffffffu, notes[threadIdx.x % 32 & (size - 1)].*number);
  }
  // Notes of all blocks as one.
  template <class Join>
  __device__ Note all(const Note* notes, Join join) const {
    Note note = notes[0];
    for (int32_t block = 1; block < size; ++block) note = join(note, notes[block]);
    return note;
  }

 private:
  TeamSpace& space_;
  int turn_ = 0;
};

// The part of a row that a block takes: neighbouring tokens, and of those neighbouring ones for each warp. Parts ascend with
// the blocks of a team, and may be empty. Borders decide no result.
struct Part {
  int32_t begin, end, vocab;     // begin is a multiple of 4 unless the part is empty
  int32_t warp_begin, warp_end;  // this warp's tokens

  // Tokens of each block's part but the last ones.
  __host__ __device__ static int32_t length(int32_t vocab, int32_t blocks) { return ((vocab + blocks - 1) / blocks + 3) / 4 * 4; }

  __device__ Part(int32_t tokens, const Team& team) : vocab(tokens) {
    const int32_t part = length(vocab, team.size), each = (part / 4 + kWarps - 1) / kWarps * 4;
    begin = min(vocab, part * team.rank);
    end = min(vocab, begin + part);
    warp_begin = min(end, begin + each * static_cast<int32_t>(threadIdx.x / 32));
    warp_end = min(end, warp_begin + each);
  }

  // Four tokens from `id` on, a multiple of 4; x: the part's logits. What is beyond the row is -inf.
  __device__ __forceinline__ float4 four(const float* x, int32_t id) const {
    float4 v = *reinterpret_cast<const float4*>(x + (id - begin));
    if (id + 3 >= vocab) {
      v.w = -INFINITY;
      if (id + 2 >= vocab) v.z = -INFINITY;
      if (id + 1 >= vocab) v.y = -INFINITY;
    }
    return v;
  }

  // Calls f(id, logit) for this thread's tokens, in ascending order.
  template <int kUnrolled = 2, class F>
  __device__ __forceinline__ void each(const float* x, F f) const {
#pragma unroll kUnrolled
    for (int32_t id = warp_begin + static_cast<int32_t>(threadIdx.x % 32); id < warp_end; id += 32) f(id, x[id - begin]);
  }
};

}  // namespace mr::cuda
