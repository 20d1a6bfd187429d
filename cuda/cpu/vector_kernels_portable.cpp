// The vector kernels in plain vectors of four floats, which every processor of the supported architectures has.
#pragma GCC optimize("fp-contract=off")
#if defined(__x86_64__)
#include <emmintrin.h>
#endif
#define MR_VEC_WIDTH 4
#include "millrace/vectors.h"
#include "vector_kernels_simd.h"

namespace mr::cpu {

constexpr VectorKernels vector_kernels_portable = vector_table();

}  // namespace mr::cpu
