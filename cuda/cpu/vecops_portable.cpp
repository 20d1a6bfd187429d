// The vector operations in plain vectors of four floats, which every processor of the supported architectures has.
#pragma GCC optimize("fp-contract=off")
#define MR_VEC_WIDTH 4
#include "attention_kernels.h"
#include "delta_kernels.h"
#include "sampler_kernels.h"
#include "vecops_kernels.h"
#include "vecops_table.h"

namespace mr::cpu {

constexpr VecOps vec_ops_portable = table();

}  // namespace mr::cpu
