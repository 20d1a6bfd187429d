// plan: the rows of a mixture by expert, and the tiles of rows that the grouped GEMMs compute.
//
// A row uses `used` experts; pair p is row p / used with its expert number p % used. The plan lists pairs by expert, those
// of one expert by ascending pair, and cuts each expert's list into tiles of at most `tile` pairs, which are about equal. It depends on
// the ids alone. Grids do not depend on it: a kernel is launched for the most tiles that there may be, and reads how many there
// are, so launches can be replayed by a CUDA graph.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

constexpr int32_t kMostChosenRows = 16;  // of launch_choose (choose.h)
constexpr int32_t kPlanCounters = kMostChosenRows + 1;

struct ExpertTile {
  int32_t expert, first, count;  // pairs [first, first + count) of the list
};

// ExpertPlan is in device memory that the caller owns.
struct ExpertPlan {
  int32_t* pairs;       // (pairs): the list
  int32_t* first;       // (experts): where each expert's pairs begin
  int32_t* count;       // (experts): how many they are
  ExpertTile* tiles;    // (expert_tiles(...)), by ascending expert
  int32_t* tile_count;  // (1)
  int32_t* done;        // (kPlanCounters): zero before and after a kernel; blocks count in it
};

// Most tiles of a plan.
inline int32_t expert_tiles(int32_t experts, int32_t pairs, int32_t tile) {
  return std::min(pairs, pairs / tile + std::min(experts, pairs));
}

// Returns the pairs of an expert's tiles but the last: about equal, because two tiles of 128 and 12 pairs cost more than two of 96 and
// 44, and a multiple of 32, as the products of many_rows_wgmma.cuh are.
__host__ __device__ inline int32_t equal_tile(int32_t count, int32_t most) {
  const int32_t tiles = count > most ? (count + most - 1) / most : 1, equal = (count + tiles - 1) / tiles;
  const int32_t padded = (equal + 31) / 32 * 32;
  return padded < most ? padded : most;
}

// Where a launch counts the bytes of the experts that it reads. Rows of a layer may be planned in several pieces; an expert
// counts in the first piece that reads it.
struct ExpertBytes {
  uint64_t* total = nullptr;  // increased; null: nothing is counted
  uint64_t each = 0;          // bytes of an expert
  int32_t* read = nullptr;    // (experts): whether a piece has read it; null: the layer has one piece
  bool first = true;          // the layer's first piece, which finds nothing in `read`
};

struct PlanExpertsArgs {
  const int32_t* ids;  // (pairs), ascending and different in each row; outside [0, experts) the pair is not listed
  int32_t pairs, experts, tile;
  ExpertPlan plan;
  ExpertBytes bytes{};  // of the experts that have pairs
};
cudaError_t launch_plan_experts(const PlanExpertsArgs& args, const Stream& on);

}  // namespace mr::cuda
