// The vector kernels for AVX-512 F, BW, VL and DQ. No standard template is used below, so that no code for this path can end up
// in functions that other paths share.
#if defined(__x86_64__)
#pragma GCC optimize("fp-contract=off")
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // the compiler's own intrinsics begin from undefined registers
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#define MR_VEC_WIDTH 16
#include "millrace/vectors.h"
#include "vector_kernels_simd.h"

namespace mr::cpu {

constexpr VectorKernels vector_kernels_avx512 = vector_table();

}  // namespace mr::cpu
#endif
