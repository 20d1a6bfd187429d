// int8 products on Intel's AMX: a tile of 16 tokens by 16 rows of exact int32 sums an instruction, a block of 32 inputs deep.
// Sums of blocks are added in fp32 by AVX-512, element by element and in the order of the other paths: their bits.
#include "amx.h"

#if MR_AMX

#pragma GCC optimize("fp-contract=off")
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // the compiler's own intrinsics begin from undefined registers
#pragma GCC target("amx-tile,amx-int8,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,prefer-vector-width=512")

#include <immintrin.h>
#include <stdint.h>

#include <utility>

#include "linear_format.h"
#include "linear_kernels.h"

namespace mr::cpu {

namespace {

constexpr int lanes = 16;

#include "linear_vector.inl"

constexpr bool high_scaled = false; // weights are signed bytes

#include "linear_avx512_vector.inl"
#include "linear_prepare.inl"
#include "linear_expand.inl"
#include "linear_dot.inl"
#include "linear_tiles.inl"
#include "linear_amx_int8.inl"

} // namespace

const Kernels kernels_amx = {prepare_tiles, multiply_tiles};

} // namespace mr::cpu

#endif
