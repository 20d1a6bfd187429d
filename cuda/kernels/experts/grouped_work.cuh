// grouped_work: how persistent blocks of the grouped GEMMs by wgmma take items, and the slices of K that a warp adds in turn.
//
// An item is a block of panels of one tile of the plan. A block's first item is its own number, and in several_wgmma_pipeline.cuh, which
// looks ahead, its second is one grid further. It takes the others from a counter, the first of the plan's, because tiles differ in
// cost; the order in which blocks take items changes no bit.
#pragma once

#include "kernels/experts/grouped.h"
#include "kernels/instructions.cuh"

namespace mr::cuda {

// GroupedWork is an item and its tile. Past the last item it has no tile.
struct GroupedWork {
  int32_t item;
  ExpertTile tile;

  // Writes 16 bytes of shared memory, and reads them.
  __device__ __forceinline__ void write(uint32_t to) const {
    store_shared16(to, make_uint4(static_cast<uint32_t>(item), static_cast<uint32_t>(tile.expert), static_cast<uint32_t>(tile.first),
                                  static_cast<uint32_t>(tile.count)));
  }
  __device__ __forceinline__ static GroupedWork read(uint32_t from) {
    const uint4 v = load_shared16(from);
    return {static_cast<int32_t>(v.x), {static_cast<int32_t>(v.y), static_cast<int32_t>(v.z), static_cast<int32_t>(v.w)}};
  }
};

// Counts in one thread of a block, once for each of its items: `items` times in all blocks together, so the last of them sets the counter
// back. Returns how often blocks counted before, which is the number of a further item, less those that blocks have without counting.
__device__ __forceinline__ int32_t count_grouped_item(int32_t* counter) { return atomicAdd(counter, 1); }
__device__ __forceinline__ void end_grouped_items(int32_t* counter, int32_t counted, int32_t items) {
  if (counted == items - 1) *counter = 0;
}

// SliceCursor is the position in the split-K slices: which one the sums are of, and the unit where it ends. units: of a group.
template <int32_t units>
struct SliceCursor {
  int32_t slice = -1, end = 0;
  // Goes on to the next slice that is not empty, once `end` has been reached.
  __device__ __forceinline__ void next(int32_t groups) {
    const int32_t begin = end;
    while (end == begin && slice + 1 < kSlices) {
      ++slice;
      end = groups * (slice + 1) / kSlices * units;
    }
  }
};

}  // namespace mr::cuda
