// attention_mma: what both attention kernels are made of: asynchronous copies of cache rows into shared memory, and warp
// matrix products m16n8k16 on the activation type with f32 sums.
//
// Fragments, with lane = 4 g + t: A (16 x 16) holds rows g and g + 8, columns {2t, 2t+1} and {2t+8, 2t+9}; B (16 x 8)
// holds column g, rows as A's columns; C (16 x 8) holds rows g and g + 8, columns {2t, 2t+1}. A row of C depends on the
// same row of A alone. Rows of keys and values in shared memory are 16 bytes longer than a head, so that the eight rows
// of one 8 x 8 matrix lie in different banks.
#pragma once

#include <cmath>

#include "kernels/act.cuh"
#include "kernels/math.cuh"

namespace mr::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The first `bytes` of 16 bytes, zeros behind them; more than 16 are 16, less than none are none. Nothing else is read.
__device__ __forceinline__ void copy_async_part(uint32_t to, const void* from, int bytes) {
  bytes = min(max(bytes, 0), 16);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// 16 bytes, or zeros when not `valid`; then `from` is not read.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// 4 bytes, or zeros when not `valid`; then `from` is not read.
__device__ __forceinline__ void copy_async_word(uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                             __nv_bfloat16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes of shared memory, at an address that is a multiple of 16; and two floats, of 8.
__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ void store_shared(uint32_t address, const uint4& x) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ float2 load_shared_pair(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ float load_shared_float(uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}

// An 8 x 8 matrix of 16-bit elements, lane 4 g + t holding row g, columns {2t, 2t+1}, transposed.
__device__ __forceinline__ uint32_t transpose(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Bytes of a row of keys, values or queries in shared memory.
template <int kDim>
constexpr int kSharedRow = kDim * 2 + 16;

// One row's softmax over keys seen so far, relative to the greatest score, in powers of 2.
struct RowSoftmax {
  float top;  // begins as -infinity
  float sum;  // of this lane's columns; begins as 0
};

// Turns the scores of rows g and g + 8 into weights, 2^(score * scale - top), and scales `out` down where a greater score
// appeared; scale > 0. At least one score a row is finite, or the row has seen one before.
template <int kColumns, int kOut>
__device__ __forceinline__ void weigh_scores(float (&scores)[kColumns][4], float scale, RowSoftmax (&row)[2],
                                             float (&out)[kOut][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float greatest = scores[0][2 * r];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) greatest = fmaxf(greatest, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 1));
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 2));
    const float top = fmaxf(row[r].top, greatest * scale), decay = exp2_approx(row[r].top - top);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float weight = exp2_approx(fmaf(scores[j][2 * r + i], scale, -top));
        scores[j][2 * r + i] = weight;
        sum += weight;
      }
    row[r].sum = fmaf(row[r].sum, decay, sum);
    row[r].top = top;
#pragma unroll
    for (int n = 0; n < kOut; ++n) {
      out[n][2 * r] *= decay;
      out[n][2 * r + 1] *= decay;
    }
  }
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// A fragment of weights from the scores of 16 neighbouring columns.
template <class T>
__device__ __forceinline__ void pack_weights(const float (&low)[4], const float (&high)[4], uint32_t (&a)[4]) {
  a[0] = ActOps<T>::pack(low[0], low[1]);
  a[1] = ActOps<T>::pack(low[2], low[3]);
  a[2] = ActOps<T>::pack(high[0], high[1]);
  a[3] = ActOps<T>::pack(high[2], high[3]);
}

// Shared memory of the current device that a block may have, and that an SM has, in bytes.
inline cudaError_t device_attribute(cudaDeviceAttr attribute, int* value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error != cudaSuccess ? error : cudaDeviceGetAttribute(value, attribute, device);
}
inline cudaError_t shared_limit(int* bytes) { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, bytes); }
inline cudaError_t shared_an_sm(int* bytes) { return device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, bytes); }

// Lets blocks of the kernel have `bytes` of shared memory, and an SM as many of them as fit.
template <class Kernel>
inline cudaError_t reserve_shared(Kernel* kernel, int bytes) {
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

// Calls f with the padded head dim as a compile-time constant.
template <int n>
struct Dim {
  static constexpr int value = n;
};
template <class F>
inline cudaError_t with_head_dim(int32_t padded_dim, F&& f) {
  switch (padded_dim) {
    case 32: return f(Dim<32>{});
    case 64: return f(Dim<64>{});
    case 80: return f(Dim<80>{});
    case 96: return f(Dim<96>{});
    case 128: return f(Dim<128>{});
    case 256: return f(Dim<256>{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace mr::cuda
