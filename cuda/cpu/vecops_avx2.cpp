// The vector operations for AVX2, FMA and F16C. No standard template is used below, so that no code for this path can
// end up in functions that other paths share.
#if defined(__x86_64__)
#include "prefetch.h"

#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx2,fma,f16c")
#define MR_VEC_WIDTH 8
#include "attention_kernels.h"
#include "delta_kernels.h"
#include "sampler_kernels.h"
#include "vecops_kernels.h"
#include "vecops_table.h"

namespace mr::cpu {

constexpr VecOps vec_ops_avx2 = table();

}  // namespace mr::cpu
#endif
