// norm: RMS norm of the f32 residual stream: into the activation type, and as f32 for callers of the engine.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/types.h"

namespace mr::cuda {

// out[r] = x[s] / sqrt(mean(x[s]^2) + eps) * scale * weight, where s = gather == nullptr ? r : gather[r]. A row with gather[r]
// < 0 becomes zeros. A row's bits depend on that row of x alone.
struct RmsNormArgs {
  const float* x;         // (*, dim), row stride x_stride
  const float* weight;    // (dim)
  const int32_t* gather;  // (rows) or null
  void* out;              // (rows, dim) of type act, row stride out_stride
  Act act;
  int32_t rows, dim;
  int64_t x_stride, out_stride;  // elements; x_stride a multiple of 4, out_stride of 4
  float eps;
  float scale = 1;  // a power of two
  // Where the sums of out go that a GEMM reads (gemm/input_sums.h), row after row, or null. Only for f16, without a gather, and if
  // dim is a multiple of 256 and out_stride one of 8.
  void* input_sums = nullptr;
};
cudaError_t launch_rms_norm(const RmsNormArgs& args, const Stream& on);

// out[r] = the same norm of x[gather[r]], not rounded; NaN where nan_flags[gather[r]] is not MR_ROW_OK.
struct HiddenRowsArgs {
  const float* x;            // (*, dim), row stride x_stride
  const float* weight;       // (dim)
  const int32_t* gather;     // (rows)
  const int32_t* nan_flags;  // (*)
  float* out;                // (rows, dim)
  int32_t rows, dim;
  int64_t x_stride;          // elements
  float eps;
};
cudaError_t launch_hidden_rows(const HiddenRowsArgs& args, const Stream& on);

}  // namespace mr::cuda
