// attention/mma: shared by the mma attention kernels: rows of the cache in shared memory, and the softmax of scores in
// fragments.
//
// Fragments, with lane = 4 g + t: A (16 x 16) holds rows g and g + 8, columns {2t, 2t+1} and {2t+8, 2t+9}; B (16 x 8)
// holds column g, rows as A's columns; C (16 x 8) holds rows g and g + 8, columns {2t, 2t+1}. A row of C depends on the
// same row of A alone, which keeps rows independent. Rows of keys and values in shared memory have 16 bytes of padding,
// so that the eight rows of one 8 x 8 matrix are in different banks.
#pragma once

#include <cmath>

#include "kernels/act.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/instructions.cuh"
#include "kernels/math.cuh"

namespace mr::cuda {

// Copies the first `bytes` of 16 bytes and zeros the rest; `bytes` is clamped to 0 .. 16. Nothing else is read.
__device__ __forceinline__ void copy_part(uint32_t to, const void* from, int bytes) {
  copy16_or_zero(to, from, min(max(bytes, 0), 16));
}
// Copies 16 bytes, or zeros if not `valid`; then `from` is not read.
__device__ __forceinline__ void copy_valid(uint32_t to, const void* from, bool valid) { copy16_or_zero(to, from, valid ? 16 : 0); }

// Bytes of a row of keys, values or queries in shared memory.
template <int kDim>
constexpr int kSharedRow = kDim * 2 + 16;

// Turns the scores of rows g and g + 8 into weights, 2^(score * scale - top), and rescales `out` if a greater score
// appeared; scale > 0. A row that has seen no key yet gets weights of 0.
template <int kColumns, int kOut>
__device__ __forceinline__ void weigh_scores(float (&scores)[kColumns][4], float scale, RowSoftmax (&row)[2],
                                             float (&out)[kOut][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float greatest = scores[0][2 * r];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) greatest = fmaxf(greatest, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
    const float top = fmaxf(row[r].top, quad_max(greatest) * scale), base = base_of(top);
    const float decay = exp2_approx(row[r].top - base);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float weight = exp2_approx(fmaf(scores[j][2 * r + i], scale, -base));
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

// Packs the weights of 16 neighbouring columns into a fragment.
template <class T>
__device__ __forceinline__ void pack_weights(const float (&low)[4], const float (&high)[4], uint32_t (&a)[4]) {
  a[0] = ActOps<T>::pack(low[0], low[1]);
  a[1] = ActOps<T>::pack(low[2], low[3]);
  a[2] = ActOps<T>::pack(high[0], high[1]);
  a[3] = ActOps<T>::pack(high[2], high[3]);
}

// Shared memory of the current device that a block, or an SM, may have, in bytes.
inline cudaError_t device_attribute(cudaDeviceAttr attribute, int* value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error != cudaSuccess ? error : cudaDeviceGetAttribute(value, attribute, device);
}
inline cudaError_t shared_limit(int* bytes) { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, bytes); }
inline cudaError_t shared_an_sm(int* bytes) { return device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, bytes); }

// Lets blocks of the kernel have `bytes` of shared memory, and an SM as many blocks as fit.
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
    case 512: return f(Dim<512>{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace mr::cuda
