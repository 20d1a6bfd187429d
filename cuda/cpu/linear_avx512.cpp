// Products on AVX-512 with VNNI: 32 rows by 6 tokens of int8 sums, or by 12 tokens of fp32, in registers.
#if defined(__x86_64__)

#include "prefetch.h"

#pragma GCC optimize("fp-contract=off")
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // the compiler's own intrinsics begin from undefined registers
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,prefer-vector-width=512")

#include <immintrin.h>
#include <stdint.h>

#include <utility>

#include "linear_format.h"
#include "linear_kernels.h"

namespace mr::cpu {

namespace {

constexpr int lanes = 16;

#include "linear_vector.inl"

constexpr bool high_scaled = true; // 240 * 127 * 32 is far below 2^31

#include "linear_avx512_vector.inl"
#include "linear_prepare.inl"
#include "linear_expand.inl"
#include "linear_dot.inl"

#include "linear_avx512_common.inl"
#include "linear_avx512_int8.inl"
#include "linear_avx512_f32.inl"
#include "linear_tiles.inl"
#include "linear_multiply.inl"
#include "linear_avx512_token.inl"

} // namespace

const Kernels kernels_avx512vnni[2] = {{prepare_f32, multiply_f32}, {prepare_int8, multiply_quants}};

} // namespace mr::cpu

#endif
