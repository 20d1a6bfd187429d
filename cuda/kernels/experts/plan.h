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
