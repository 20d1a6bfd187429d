// sampler/found: appends the tokens that warps find to a list of their job, in any order.
#pragma once

#include "kernels/sampler/row.cuh"

namespace mr::cuda {

// Found is a job's list in global memory as a warp sees it. Tokens without room are counted, but not all of them: a
// warp that finds the list full stops. Then `*listed` is above `room`.
struct Found {
  uint32_t* listed;
  uint64_t* tokens;
  uint32_t room;
  bool full = false;

  // Appends a token of each lane with `is`; all lanes of a warp must call it.
  __device__ __forceinline__ void list(bool is, uint64_t token) {
    const uint32_t which = __ballot_sync(0xffffffffu, is);
    if (which == 0 || full) return;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t first = 0;
    if (lane == 0) first = atomicAdd(listed, static_cast<uint32_t>(__popc(which)));
    first = __shfl_sync(0xffffffffu, first, 0);
    const uint32_t place = first + __popc(which & ((1u << lane) - 1));
    if (is && place < room) tokens[place] = token;
    full = first >= room;
  }
};

}  // namespace mr::cuda
