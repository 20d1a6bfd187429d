// qk_rows: the norms of Q and of K, each over all its heads.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

// Adds the biases to Q and K and norms each over all its heads, in place. A row's bits depend on that row alone.
//
// With `parts` the heads are divided: qkv has those of part `part`, which are overwritten, and the products of all parts are in `parts`
// with their biases: in each row one part after another, each q_width columns of Q and then k_width of K. The bits are those of all
// heads in place.
struct NormQkRowsArgs {
  float* qkv;        // (rows, stride): all heads of Q, of K, of V one after another
  int64_t stride;    // elements
  int32_t rows, q_width, k_width;  // k_width 0: there is no K
  const float *q_bias, *k_bias;    // null if absent, and with parts
  const float *q_norm, *k_norm;    // (q_width), (k_width), each times part_count
  float eps;
  bool copies_keys;  // K with its bias is also written to V before its norm
  const float* parts = nullptr;  // (rows, parts_stride), or null
  int64_t parts_stride = 0;      // elements
  int32_t part = 0, part_count = 1;
};
cudaError_t launch_norm_qk_rows(const NormQkRowsArgs& args, const Stream& on);

}  // namespace mr::cuda
