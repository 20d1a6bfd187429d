// gather: rows of which several GPUs hold a part each, made whole on all of them. Bits are moved and nothing is added, so that
// what was divided does not show in any result.
//
// The GPUs that hold one model together are its ranks. A rank's part is the same bytes of every row, and rows lie alike on
// all ranks. All ranks launch the same gathers in the same order, each on its own stream.
//
// Small parts travel as packets, 4 bytes of data beside 4 of the gather's number: whoever waits for a packet sees by itself that it
// has come, and no trip is spent on saying so. Large parts are written to where they belong, and one number for each block of the
// grid follows them. Either way a rank has sent its part when the gather ends, and has those of all others.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

constexpr int32_t kMostRanks = 8;

// What ranks send each other through; every pointer but `stop` lies in the memory of the rank it is indexed by.
struct GatherLinks {
  int32_t ranks, rank;            // ranks 2 .. kMostRanks
  uint8_t* packets[kMostRanks];   // gather_packet_bytes(ranks), zeroed once, 16-byte aligned
  uint64_t* arrived[kMostRanks];  // (kMostRanks, kGatherBlocks), zeroed once: the number that each block of a rank last wrote
  // This rank's: counts steps from 1 (BeginArgs::step), alike on all ranks. No kernel writes it that may still run when the gather
  // begins (launch.h).
  const uint64_t* step;
  const int32_t* stop;            // host memory that the GPU reads: not 0 ends all waiting, and what steps under way compute is void
};

constexpr int32_t kGatherBlocks = 64, kPacketPlaces = 3;

// The part of every row that a rank holds, in bytes: multiples of 2, and fast where all are multiples of 16. None may be empty.
struct GatherPart {
  int64_t first, bytes;
};

// Gathers of a step are numbered upwards. Between a kernel that reads rows on one rank and the gather that writes them anew lies
// another gather: then no rank is still reading what a faster one overwrites. A gather of no rows moves nothing, and is good for
// that.
struct GatherArgs {
  GatherLinks links;
  uint8_t* rows_of[kMostRanks];  // where row 0 lies on each rank, 16-byte aligned
  int64_t stride;                // bytes from row to row, a multiple of 16
  int32_t rows;
  GatherPart parts[kMostRanks];
  int32_t index, most;           // the gather's number in its step, 0 .. most-1
  int32_t place;                 // of its packets, 0 .. kPacketPlaces-1; not that of the gather before
};
cudaError_t launch_gather(const GatherArgs& args, const Stream& on);

int64_t gather_packet_bytes(int32_t ranks);

}  // namespace mr::cuda
