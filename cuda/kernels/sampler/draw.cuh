// sampler/draw: draws one of the tokens that a filter keeps, by 64 random bits. Running sums go over pieces and then
// over the tokens of one piece, in ascending order of ids.
#pragma once

#include "kernels/sampler/filter.cuh"

namespace mr::cuda {

// 64 uniform bits: Philox4x32-10, key = seed, counter = (position, output_index, purpose 0, lane 0).
__device__ __forceinline__ uint64_t random_bits(uint64_t seed, uint32_t position, uint32_t output_index) {
  uint32_t c0 = position, c1 = output_index, c2 = 0, c3 = 0;
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return static_cast<uint64_t>(c0) << 32 | c1;
}

__device__ __forceinline__ uint64_t random_of(const SampleJob& job, const SlotParams& p) {
  return random_bits(p.seed, static_cast<uint32_t>(job.position), static_cast<uint32_t>(p.output_index));
}

// Place is where a running sum exceeds a number; left: the number minus the sum before that place.
struct Place {
  int32_t at;
  uint64_t left;
};

// Returns the first piece at which the running sum of sum_of(piece) exceeds left_of(total), which must be below the
// total. Every thread gets it; each warp computes it by itself.
template <class SumOf, class LeftOf>
__device__ __forceinline__ Place find_piece(SumOf sum_of, LeftOf left_of) {
  static_assert(kMostPieces == 4 * 32, "four pieces a lane");
  const int lane = threadIdx.x % 32;
  uint64_t own[4], sum = 0;
  for (int i = 0; i < 4; ++i) sum += own[i] = sum_of(lane * 4 + i);
  const uint64_t upto = warp_running(sum), left = left_of(__shfl_sync(0xffffffffu, upto, 31));
  const uint32_t beyond = __ballot_sync(0xffffffffu, upto > left);
  const int first = beyond == 0 ? 31 : __ffs(static_cast<int>(beyond)) - 1;
  uint64_t rest = left - (upto - sum);
  int i = 0;
  for (; i < 3 && rest >= own[i]; ++i) rest -= own[i];
  return Place{__shfl_sync(0xffffffffu, lane * 4 + i, first), __shfl_sync(0xffffffffu, rest, first)};
}

struct Drawn {
  int32_t token;
  float logit;
};

struct DrawSpace {
  uint64_t masses[kMostPieces];  // of kept tokens
  MassSums<kMostPieces> more;  // of further kept tokens
  uint64_t counts[kMostPieces];  // of tokens of the edge
  uint64_t warps[kWarps];
  Drawn drawn;

  // Must be called for each of kMostPieces, by one thread each.
  __device__ __forceinline__ void set(int32_t piece, uint64_t mass, uint64_t count) {
    masses[piece] = mass;
    more.clear(piece);
    counts[piece] = count;
  }
  __device__ __forceinline__ uint64_t mass_of_piece(int32_t piece) const {
    return masses[piece] + more.sum(piece);
  }
};

// Returns, in every thread, the token of a piece at which the running sum of value(id, x), in ascending order of ids,
// exceeds place.left, which must be below their sum.
template <class Value>
__device__ __forceinline__ Drawn find_token(DrawSpace& s, const SampleKernelArgs& k, const float* row, const Place& place,
                                                     Value value) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t end = min(k.a.vocab, (place.at + 1) * k.piece);
  uint64_t left = place.left;
#pragma unroll 1
  for (int32_t first = place.at * k.piece; first < end; first += 4 * kThreads) {  // once, in vocabularies up to 2^18
    const int32_t id = first + static_cast<int32_t>(threadIdx.x) * 4;
    uint64_t values[4] = {}, own = 0;
    float4 v{};
    if (id < end) {
      v = four_of(row, id, k.a.vocab);
      own += values[0] = value(id, v.x);
      own += values[1] = value(id + 1, v.y);
      own += values[2] = value(id + 2, v.z);
      own += values[3] = value(id + 3, v.w);
    }
    uint64_t upto = warp_running(own);
    if (lane == 31) s.warps[warp] = upto;
    __syncthreads();
    for (int w = 0; w < warp; ++w) upto += s.warps[w];
    if (left >= upto - own && left < upto) {
      uint64_t rest = left - (upto - own);
      int i = 0;
      for (; i < 3 && rest >= values[i]; ++i) rest -= values[i];
      s.drawn = Drawn{id + i, i < 2 ? (i == 0 ? v.x : v.y) : (i == 2 ? v.z : v.w)};
    }
    if (first + 4 * kThreads >= end) break;
    uint64_t all = 0;
    for (int w = 0; w < kWarps; ++w) all += s.warps[w];
    if (left < all) break;
    left -= all;
    __syncthreads();
  }
  __syncthreads();
  return s.drawn;
}

// Draws by the masses of s, which all threads must see.
__device__ __forceinline__ Drawn draw(DrawSpace& s, const SampleKernelArgs& k, const float* row, const Filter& given,
                                     uint64_t random) {
  const Filter filter = given;
  const Place place = find_piece([&](int32_t piece) { return s.mass_of_piece(piece); },
                                 [&](uint64_t all) { return __umul64hi(random, all); });
  return find_token(s, k, row, place, [&](int32_t id, float x) {
    Weighed w;
    return filter.keeps(id, x, w) ? w.mass : uint64_t{0};
  });
}

}  // namespace mr::cuda
