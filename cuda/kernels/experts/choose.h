// choose: one launch before the grouped GEMMs of few rows: the router, the choice of experts, their plan, the norm of the
// experts' inputs, and the weight of the shared expert. All have the bits of launch_router, launch_route, launch_plan_experts,
// launch_rms_norm and launch_combine.
#pragma once

#include <cstdint>

#include "kernels/experts/route.h"
#include "kernels/norm.h"

namespace mr::cuda {

// SharedRouter is the router of a shared expert, whose weight is sigmoid(router . norm of the router's x) with the bits of launch_combine.
struct SharedRouter {
  float* weight = nullptr;        // (rows), or null: nothing is computed
  const float* router = nullptr;  // (dim)
  const float* norm = nullptr;    // (dim), or null
};

struct ChooseArgs {
  RouterArgs router;
  RouteArgs route;   // reads router.logits, and its plan is written for any number of rows
  RmsNormArgs norm;  // x null: the experts' inputs are there already
  int32_t tile = 0;  // pairs of a tile of the plan; of a single row each pair is a tile
  SharedRouter shared;
};

// Returns whether launch_choose takes the model's experts and this number of rows.
bool choose_supported(const mr_experts_desc& experts, int32_t rows);
cudaError_t launch_choose(const ChooseArgs& args, const Stream& on);

}  // namespace mr::cuda
