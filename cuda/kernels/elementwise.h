// elementwise: SwiGLU, scales, and conversion to the activation type. Rows of the embedding
// matrix are dequantised by gemm/repack.h.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/types.h"

namespace mr::cuda {

// out[r, i] = activation(gate[r, i]) * up[r, i] * scale, with the up of MR_ACT_CLAMPED, computed in f32. out: the activation type.
struct SwigluArgs {
  const float* gate;    // (rows, dim), row stride in_stride
  const float* up;      // (rows, dim), row stride up_stride
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
