// The vector kernels for AVX2, FMA and F16C. No standard template is used below, so that no code for this path can end up in
// functions that other paths share.
#if defined(__x86_64__)
#pragma GCC optimize("fp-contract=off")
#pragma GCC target("avx2,fma,f16c")
#define MR_VEC_WIDTH 8
#include "millrace/vectors.h"
#include "vector_kernels_simd.h"

namespace mr::cpu {

constexpr VectorKernels vector_kernels_avx2 = vector_table();

}  // namespace mr::cpu
#endif
