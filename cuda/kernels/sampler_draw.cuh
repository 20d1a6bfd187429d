// sampler_draw: one of the tokens that a filter keeps, by 64 random bits.
#pragma once

#include "kernels/sampler_filter.cuh"

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

// The token of this warp at which the running sum of kept masses, in ascending order of ids, exceeds `left`, which is below
// their sum: in the lane that has it, where found(id, x) is called.
template <class Found>
__device__ void draw_in_warp(const Part& part, const float* x, const Filter& filter, uint64_t left, Found found) {
  const int lane = threadIdx.x % 32;
  for (int32_t round = part.warp_begin; round < part.warp_end; round += 128) {
    const int32_t id = round + lane * 4;
    float logits[4] = {};
    uint64_t masses[4] = {}, own = 0;
    if (id < part.warp_end) {
      const float4 v = part.four(x, id);
      logits[0] = v.x, logits[1] = v.y, logits[2] = v.z, logits[3] = v.w;
      for (int i = 0; i < 4; ++i) {
        Weighed w;
        if (filter.keeps(id + i, logits[i], w)) own += masses[i] = w.mass;
      }
    }
    const uint64_t upto = warp_running(own), all = __shfl_sync(0xffffffffu, upto, 31);
    if (left >= all) {
      left -= all;
      continue;
    }
    if (left >= upto - own && left < upto) {
      uint64_t rest = left - (upto - own);
      int i = 0;
      for (; i < 3 && rest >= masses[i]; ++i) rest -= masses[i];
      found(id + i, i == 0 ? logits[0] : i == 1 ? logits[1] : i == 2 ? logits[2] : logits[3]);
    }
    return;
  }
}

// Draws by the notes of a tell() of kept masses in b, after which no other tell() was. found as above, in one thread of the team.
template <class Found>
__device__ void draw(const Team& team, const Part& part, const float* x, const Filter& filter, const Note* notes, uint64_t random,
                     Found found) {
  uint64_t left = __umul64hi(random, team.sum(notes, &Note::b));
  for (int32_t block = 0; block < team.rank; ++block) {
    if (left < notes[block].b) return;
    left -= notes[block].b;
  }
  if (left >= notes[team.rank].b) return;
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32);
  for (int32_t w = 0; w < warp; ++w) {
    if (left < team.warp(w).b) return;
    left -= team.warp(w).b;
  }
  if (left < team.warp(warp).b) draw_in_warp(part, x, filter, left, found);
}

}  // namespace mr::cuda
