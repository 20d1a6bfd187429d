// combine: the branch of a mixture, from the outputs of its experts for each row.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

// branch = (sum over a row's experts, by ascending id, of weight * (y + bias)), normed if end_norm is not null, plus the
// shared expert's y: times sigmoid(shared_router . norm of x) if that is not null, and normed if shared_end_norm is not
// null. The branch is written to `branch`, or, if that is null, added to x. Padding rows are left as they are. All f32. A
// row's bits depend on that row alone. The kernel reads ids and x before its dependency wait: at least two kernels that are not short
// (launch.h) lie between it and the kernels that wrote them.
struct CombineArgs {
  const int32_t* ids;      // (rows, ids_stride); the experts' number or more is padding
  const float* weights;    // the same, or null: y is the sum over a row's experts already, and `used` is 1
  int32_t ids_stride;      // at least used
  int32_t used, experts;
  const float* y;          // (rows * used, dim), row stride y_stride
  const float* bias;       // (experts, dim), or null
  const float* end_norm;   // (dim), or null
  const float* shared;     // (rows, dim), row stride shared_stride, or null
  const float* shared_router;    // (dim), or null
  const float* norm;       // (dim): of x, for shared_router; null: x as it is
  const float* shared_end_norm;  // (dim), or null
  float* x;                // (rows, dim), row stride x_stride: the residual stream
  float* branch;           // (rows, dim), row stride x_stride, or null
  int64_t y_stride, shared_stride, x_stride;  // elements
  float eps;
  int32_t rows, dim;
};
cudaError_t launch_combine(const CombineArgs& args, const Stream& on);

}  // namespace mr::cuda
