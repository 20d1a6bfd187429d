// gather: an all-gather of rows between the GPUs of one model. It moves bits and adds nothing, so that results do not
// depend on the number of GPUs.
//
// The GPUs that hold one model together are its ranks. A rank's part is the same bytes of every row, and rows have the
// same layout on all ranks. All ranks must launch the same gathers in the same order, each on its own stream.
//
// Small parts are sent as packets, 4 bytes of data with 4 of the gather's number (the LL protocol of NCCL): a receiver
// sees from the packet itself that it has arrived, so no separate flag costs a trip. Large parts are written to their
// destination, and one number for each block of the grid follows them. When the gather ends, a rank has sent its part
// and received all others.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

constexpr int32_t kMostRanks = 8;

// GatherLinks is the memory through which ranks communicate. Each pointer but `stop` is in the memory of the rank that
// indexes it.
struct GatherLinks {
  int32_t ranks, rank;            // ranks 2 .. kMostRanks
  uint8_t* packets[kMostRanks];   // gather_packet_bytes(ranks), zeroed once, 16-byte aligned
  uint64_t* arrived[kMostRanks];  // (kMostRanks, kGatherBlocks), zeroed once: the number that each block last wrote
  // This rank's step counter, from 1 (BeginArgs::step), equal on all ranks. No kernel that may still run when the
  // gather begins may write it (launch.h).
  const uint64_t* step;
  const int32_t* stop;            // host memory that the GPU reads: if not 0, all waiting ends, and the results of running steps are void
};

constexpr int32_t kGatherBlocks = 64, kPacketPlaces = 3;

// GatherPart is the part of every row that a rank holds, in bytes: a multiple of 2, fast if all are multiples of 16. It
// must not be empty.
struct GatherPart {
  int64_t first, bytes;
};

// GatherArgs: gathers of a step are numbered upwards. Between a kernel that reads rows on one rank and the gather that
// overwrites them there must be another gather; only then is no rank still reading what a faster one overwrites. A
// gather of no rows moves nothing and serves as such a barrier.
struct GatherArgs {
  GatherLinks links;
  uint8_t* rows_of[kMostRanks];  // row 0 on each rank, 16-byte aligned
  int64_t stride;                // bytes from row to row, a multiple of 16
  int32_t rows;
  GatherPart parts[kMostRanks];
  int32_t index, most;           // the gather's number in its step, 0 .. most-1
  int32_t place;                 // slot of its packets, 0 .. kPacketPlaces-1; must differ from the gather before
};
cudaError_t launch_gather(const GatherArgs& args, const Stream& on);

int64_t gather_packet_bytes(int32_t ranks);

}  // namespace mr::cuda
