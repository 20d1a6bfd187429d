// branch: what ends a branch of a layer where it is more than a sum, and the inputs that layers have of each token.
#pragma once

#include <cstdint>

#include "kernels/launch.h"
#include "kernels/types.h"

namespace mr::cuda {

// x = (x + scale * y) * then, where y is the branch, or its RMS norm times `norm`. If out is not null, the norm that reads x next is
// applied too: out = out_scale times the RMS norm of x times out_norm, or out_scale * x, saturated, if out_norm is null. A row's bits
// depend on that row of x and branch alone, and those of out are those of launch_rms_norm (norm.h) and launch_to_act. x and branch are f32.
struct EndBranchArgs {
  float* x;             // (rows, dim): the residual stream
  const float* branch;  // (rows, dim); null: only the product with `then`
  int64_t x_stride, branch_stride;  // elements
  const float* norm;    // (dim), or null
  const float* then;    // one number in device memory, or null
  float eps, scale;
  int32_t rows, dim;
  void* out;              // (rows, dim) of type act, or null
  const float* out_norm;  // (dim), or null
  int64_t out_stride;     // elements
  Act act;
  float out_scale = 1;    // a power of two
};
cudaError_t launch_end_branch(const EndBranchArgs& args, const Stream& on);

// inputs[i w ..] = (norm(inputs[i w ..] / sqrt(hidden)) + sqrt(w) * embedding[i w ..]) / sqrt(2) of each layer i, with
// w = width: the layer inputs of millrace/model.h, in place of the products with their projection. f32.
struct LayerInputsArgs {
  float* inputs;           // (rows, layers * width)
  const float* embedding;  // the same shape: rows of the second embedding
  int64_t inputs_stride, embedding_stride;  // elements
  const float* norm;       // (width)
  float eps;
  int32_t rows, layers, width, hidden;
};
cudaError_t launch_layer_inputs(const LayerInputsArgs& args, const Stream& on);

}  // namespace mr::cuda
