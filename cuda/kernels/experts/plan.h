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

struct PlanExpertsArgs {
  const int32_t* ids;  // (pairs), ascending and different in each row; outside [0, experts) the pair is not listed
  int32_t pairs, experts, tile;
  ExpertPlan plan;
  uint64_t* bytes = nullptr;  // increased by bytes_each for each expert that has pairs; null: nothing is counted
  uint64_t bytes_each = 0;
};
cudaError_t launch_plan_experts(const PlanExpertsArgs& args, const Stream& on);

}  // namespace mr::cuda
