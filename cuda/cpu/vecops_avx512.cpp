// The vector operations for AVX-512 F, BW, VL and DQ. No standard template is used below, so that no code for this path
// can end up in functions that other paths share.
#if defined(__x86_64__)
#include "prefetch.h"

#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")
#define MR_VEC_WIDTH 16
#include "attention_kernels.h"
#include "delta_kernels.h"
#include "sampler_kernels.h"
#include "vecops_kernels.h"
#include "vecops_table.h"

namespace mr::cpu {

constexpr VecOps vec_ops_avx512 = table();

}  // namespace mr::cpu
#endif
