// grouped: the parameters of the grouped GEMM kernels, and the table from which experts.cu chooses.
#pragma once

#include "kernels/experts/experts.h"
#include "kernels/gemm/gemv.h"

namespace mr::cuda {

struct GroupedParams {
  GemvParams gemm;  // its targets, cols, groups, panel_bytes, x, x_stride, x_scale and pair_share
  int64_t matrix_bytes;  // of an expert's matrix
  ExpertPlan plan;
  int32_t parts;         // of a tile: few_rows divides larger tiles than its own
  int32_t x_share, activation;
};

// GroupedForm is the kernel's class and the pairs of a tile, and whether its targets are gate and up.
enum class GroupedForm : int32_t { kFewSingle1 = 0, kFewPair1, kFewSingle8, kFewPair8, kManySingle, kManyPair };
constexpr int32_t kGroupedForms = 6;

// Defined once for each type, see instances/.
template <int32_t T>
GemvKernel few_rows_kernel(Act act, GroupedForm form);
template <int32_t T>
GemvKernel many_rows_kernel(Act act, GroupedForm form);

}  // namespace mr::cuda
