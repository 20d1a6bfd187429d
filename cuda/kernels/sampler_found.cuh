// sampler_found: tokens that a block finds and puts into a list of its job, in any order.
#pragma once

#include "kernels/sampler_row.cuh"

namespace mr::cuda {

// Tokens of a block, which go to a list of the job in one go.
template <int kRoom>
struct Found {
  uint32_t count, place;
  uint64_t tokens[kRoom];
};

// Puts a token of each lane where `is`; called in all lanes of a warp at once. What has no room is only counted.
template <int kRoom>
__device__ __forceinline__ void find(Found<kRoom>& found, bool is, int32_t id, float logit) {
  const uint32_t which = __ballot_sync(0xffffffffu, is);
  if (which == 0) return;
  const uint32_t lane = threadIdx.x % 32;
  uint32_t place = 0;
  if (lane == 0) place = atomicAdd(&found.count, static_cast<uint32_t>(__popc(which)));
  place = __shfl_sync(0xffffffffu, place, 0) + __popc(which & ((1u << lane) - 1));
  if (is && place < kRoom) found.tokens[place] = token_of(logit, id);
}

// Of a list that has no room for all nothing is looked at but that.
template <int kRoom>
__device__ void append(Found<kRoom>& found, uint32_t* listed, uint64_t* list) {
  __syncthreads();
  if (threadIdx.x == 0) found.place = found.count == 0 ? kRoom : atomicAdd(listed, found.count);
  __syncthreads();
  const uint32_t place = found.place, count = found.count;
  if (place > kRoom || count > kRoom - place) return;
  for (uint32_t i = threadIdx.x; i < count; i += kPieceThreads) list[place + i] = found.tokens[i];
}

}  // namespace mr::cuda
