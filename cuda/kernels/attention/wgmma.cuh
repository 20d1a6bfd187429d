// attention/wgmma: the Hopper instructions that prefill attention needs beyond gemm/wgmma.cuh: products of tiles of
// queries, keys and values. Only for machine code of sm_90a.
//
// Queries, keys and values are in shared memory as parts of rows of 64 dims, 128 bytes each, swizzled as tensor copies do:
// first the first part of all rows, then their second. Fragments are those of attention/mma.cuh, one for each of
// the four warps.
#pragma once

#include "kernels/gemm/wgmma.cuh"

namespace mr::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Returns the dynamic shared memory of the launch.
__device__ __forceinline__ uint8_t* attention_memory() {
  extern __shared__ __align__(1024) uint8_t attention_bytes[];
  return attention_bytes;
}

// Arrives at barrier `id` (1..15) of `threads` threads without waiting.
__device__ __forceinline__ void named_arrive(int32_t id, int32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Keeps the compiler from moving reads and writes of sums across this point. It does not know otherwise that the wait
// completes the products.
template <int32_t count>
__device__ __forceinline__ void settle(float (&sums)[count]) {
#pragma unroll
  for (int32_t i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Describes values as the second operand of products that sum over their rows: 16 rows, each next part of their dims `half`
// bytes further.
__device__ __forceinline__ uint64_t summed_rows(uint32_t address, uint32_t half) {
  return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | static_cast<uint64_t>(half >> 4) << 16 | uint64_t{64} << 32 | uint64_t{1} << 62;
}

// d(64 queries, 128 or 64 keys) = q(64, 16 dims) * k(keys, 16 dims)^T, plus d if `add`. Asynchronous until wgmma_wait.
#define MR_SCORES(keys, sums, a, b, plus, type) \
  asm volatile( \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %" #plus ", 0;\nwgmma.mma_async.sync.aligned.m64n" #keys "k16.f32." type "." type \
      " {" MR_NUMBERS_##sums "}, %" #a ", %" #b ", add, 1, 1, 0, 0;\n}" \
      : MR_SUMS_##sums(d, 0) \
      : "l"(q), "l"(k), "n"(add ? 1 : 0))
template <class T, bool add>
__device__ __forceinline__ void score_products(float (&d)[64], uint64_t q, uint64_t k) {
  if constexpr (std::is_same_v<T, __half>) MR_SCORES(128, 64, 64, 65, 66, "f16");
  else MR_SCORES(128, 64, 64, 65, 66, "bf16");
}
template <class T, bool add>
__device__ __forceinline__ void score_products(float (&d)[32], uint64_t q, uint64_t k) {
  if constexpr (std::is_same_v<T, __half>) MR_SCORES(64, 32, 32, 33, 34, "f16");
  else MR_SCORES(64, 32, 32, 33, 34, "bf16");
}

// d(64 queries, 256, 128 or 64 dims) += w(64, 16 keys) * v(16 keys, dims). w: a fragment; v: summed_rows.
#define MR_VALUES(dims, sums, a0, a1, a2, a3, b, type) \
  asm volatile( \
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\nwgmma.mma_async.sync.aligned.m64n" #dims "k16.f32." type "." type " {" MR_NUMBERS_##sums \
      "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", add, 1, 1, 1;\n}" \
      : MR_SUMS_##sums(d, 0) \
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v))
template <class T>
__device__ __forceinline__ void value_products(float (&d)[128], const uint32_t (&w)[4], uint64_t v) {
  if constexpr (std::is_same_v<T, __half>) MR_VALUES(256, 128, 128, 129, 130, 131, 132, "f16");
  else MR_VALUES(256, 128, 128, 129, 130, 131, 132, "bf16");
}
template <class T>
__device__ __forceinline__ void value_products(float (&d)[64], const uint32_t (&w)[4], uint64_t v) {
  if constexpr (std::is_same_v<T, __half>) MR_VALUES(128, 64, 64, 65, 66, 67, 68, "f16");
  else MR_VALUES(128, 64, 64, 65, 66, 67, 68, "bf16");
}
template <class T>
__device__ __forceinline__ void value_products(float (&d)[32], const uint32_t (&w)[4], uint64_t v) {
  if constexpr (std::is_same_v<T, __half>) MR_VALUES(64, 32, 32, 33, 34, 35, 36, "f16");
  else MR_VALUES(64, 32, 32, 33, 34, 35, 36, "bf16");
}

#undef MR_VALUES
#undef MR_SCORES

#endif

}  // namespace mr::cuda
