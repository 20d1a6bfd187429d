// elementwise: additions to the residual stream, SwiGLU, and conversion to the activation type. Rows of the embedding
// matrix are dequantised by gemm/repack.h.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/types.h"

namespace mr::cuda {

// residual[r, i] += y[r, i] (+ bias[i]). residual f32; y f32 or the activation type.
struct AddResidualArgs {
  float* residual;      // (rows, dim), row stride residual_stride
  const void* y;        // (rows, dim), row stride y_stride
  bool y_is_f32;        // otherwise of type act
  Act act;
  const float* bias;    // (dim), may be null
  int32_t rows, dim;
  int64_t residual_stride, y_stride;  // elements
};
cudaError_t launch_add_residual(const AddResidualArgs& args, const Stream& on);

// out[r, i] = activation(gate[r, i]) * up[r, i] * scale, with the up of MR_ACT_CLAMPED, computed in f32. gate, up: f32 or the activation type; out:
// activation type.
struct SwigluArgs {
  const void* gate;     // (rows, dim), row stride in_stride
  const void* up;       // (rows, dim), row stride up_stride
  bool in_is_f32;
  Act act;
  void* out;            // (rows, dim), row stride out_stride
  int32_t rows, dim;
  int64_t in_stride, up_stride, out_stride;  // elements
  float scale = 1;
  int32_t activation = 0;  // MR_ACT_*
};
cudaError_t launch_swiglu(const SwigluArgs& args, const Stream& on);

// x[r, i] = cap * tanh(x[r, i] * scale / cap), or x * scale if cap is 0.
struct ScaleArgs {
  float* x;        // (rows, dim), row stride `stride` in elements
  int32_t rows, dim;
  int64_t stride;
  float scale, cap;
};
cudaError_t launch_scale(const ScaleArgs& args, const Stream& on);

// out = x * scale in the activation type, to nearest even. A number beyond the largest f16 number becomes infinity or, if
// saturated and finite, the largest number that is stored (within_f16).
struct ToActArgs {
  const float* x;
  void* out;
  Act act;
  int64_t count;
  float scale = 1;
  bool saturated = false;
};
cudaError_t launch_to_act(const ToActArgs& args, const Stream& on);

}  // namespace mr::cuda
