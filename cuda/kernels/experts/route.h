// route: which experts each token uses, and with which weights, as mr_experts_desc of millrace/model.h has it.
#pragma once

#include <cstdint>

#include "kernels/experts/plan.h"
#include "kernels/gemm/weight.h"
#include "kernels/launch.h"
#include "millrace/engine.h"

namespace mr::cuda {

// Returns whether launch_router reads weights of the type: F32, F16 and BF16.
bool router_supported(int32_t type);

// logits[r] = router . (norm of x[r] * scale) + bias, all in f32. A row's bits depend on that row of x alone.
struct RouterArgs {
  const float* x;       // (rows, hidden): the residual stream, row stride x_stride
  int64_t x_stride;     // elements
  const float* norm;    // (hidden), or null: x is read as it is
  float eps, scale;
  PackedWeight router;  // (hidden, experts)
  const float* bias;    // (experts), or null
  float* logits;        // (rows, experts)
  int32_t rows;
};
cudaError_t launch_router(const RouterArgs& args, const Stream& on);

// Chooses the experts of each row. A padding row has `count` in the place of every id. The ids of a single row are its plan:
// launch_route then writes it, and launch_plan_experts is not needed.
struct RouteArgs {
  mr_experts_desc experts;
  const float* logits;       // (rows, count)
  const float* choice_bias;  // (count), or null
  const float* scales;       // (count), or null: multiply the weights at last
  const int32_t* slot;       // (rows): below 0 is padding
  int32_t* ids;              // (rows, used), ascending in each row
  float* weights;            // (rows, used)
  int32_t rows;
  ExpertPlan plan;           // written if rows is 1: pairs, tiles and tile_count
  ExpertBytes bytes;         // of the experts of a single row
};
cudaError_t launch_route(const RouteArgs& args, const Stream& on);

}  // namespace mr::cuda
