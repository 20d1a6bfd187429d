#include "kernels/gemm/mma_agreement.h"

#include "kernels/gemm/wgmma.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kThreads = 128;  // one warpgroup; each thread has 4 sums of 64 rows by 8 tokens
constexpr int32_t kSpreads = 4;    // ranges of magnitudes, one for each block
constexpr int32_t kBlocks = 8 * kSpreads;

// Sums that differed in any launch, by `spoilt`. It is never cleared, because a GPU does not change its answer.
__device__ unsigned unlike[2];

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int32_t kCols = 64;   // inputs of a unit
constexpr int32_t kUnits = 16;  // units that are accumulated

// Returns the n-th test number, of either sign, with a magnitude from 2^-spread to 2^(spread + 1).
__device__ __forceinline__ float number(uint32_t n, int32_t spread) {
  n ^= n >> 16;
  n *= 0x7feb352du;
  n ^= n >> 15;
  n *= 0x846ca68bu;
  n ^= n >> 16;
  const int32_t exponent = static_cast<int32_t>((n >> 11) % static_cast<uint32_t>(2 * spread + 1)) - spread;
  const float size = ldexpf(1.0f + static_cast<float>(n & 0x3ffu) * 0x1p-10f, exponent);
  return (n >> 10 & 1) != 0 ? -size : size;
}

#endif

template <class E>
__global__ void __launch_bounds__(kThreads) compare_mma_and_wgmma(bool spoilt) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ __align__(1024) E tokens[8 * kCols];
  __shared__ __align__(4) E rows[64][kCols + 2];
  const int32_t thread = static_cast<int32_t>(threadIdx.x), warp = thread / 32, row = thread % 32 / 4, pair = thread % 4 * 2;
  const int32_t block = static_cast<int32_t>(blockIdx.x), spread = block % kSpreads * 3;
  const auto token_at = [&](int32_t token, int32_t col) -> E& { return tokens[token * kCols + ((col / 8) ^ token) * 8 + col % 8]; };
  const auto bits_of = [](const E& first) { return *reinterpret_cast<const uint32_t*>(&first); };  // two neighbours
  float by_mma[4] = {}, by_wgmma[4] = {};
  uint32_t differ = 0;
#pragma unroll 1
  for (int32_t unit = 0; unit < kUnits; ++unit) {
    const uint32_t seed = static_cast<uint32_t>(block * kUnits + unit) * (64 + 8) * kCols;
    for (int32_t i = thread; i < 64 * kCols; i += kThreads) rows[i / kCols][i % kCols] = E(number(seed + i, spread));
    for (int32_t i = thread; i < 8 * kCols; i += kThreads) token_at(i / kCols, i % kCols) = E(number(seed + 64 * kCols + i, spread));
    shared_fence();
    __syncthreads();
    uint32_t a[kCols / 16][4];
    for (int32_t step = 0; step < kCols / 16; ++step) {
      const E* const upper = &rows[warp * 16 + row][step * 16 + pair];
      const E* const lower = &rows[warp * 16 + row + 8][step * 16 + pair];
      a[step][0] = bits_of(upper[0]), a[step][1] = bits_of(lower[0]), a[step][2] = bits_of(upper[8]), a[step][3] = bits_of(lower[8]);
      mma16816<E>(by_mma, a[step], bits_of(token_at(row, step * 16 + pair)), bits_of(token_at(row, step * 16 + 8 + pair)));
    }
    __syncthreads();
    if (spoilt && block == 0 && unit == 3 && thread == 0) token_at(5, 37) = E(3.0f);
    shared_fence();
    __syncthreads();
    wgmma_fence();
#pragma unroll
    for (int32_t step = 0; step < kCols / 16; ++step)
      wgmma_m64<E>(by_wgmma, a[step], swizzled_rows(shared_address(tokens) + static_cast<uint32_t>(step * 32)));
    wgmma_commit();
    wgmma_wait<0>();
    for (int32_t i = 0; i < 4; ++i) differ += __float_as_uint(by_mma[i]) != __float_as_uint(by_wgmma[i]) ? 1 : 0;
    __syncthreads();
  }
  if (differ != 0) atomicAdd(unlike + (spoilt ? 1 : 0), differ);
#else
  (void)spoilt;
#endif
}

}  // namespace

cudaError_t mma_and_wgmma_agree(cudaStream_t stream, bool spoilt, bool* alike) {
  *alike = false;
  compare_mma_and_wgmma<__half><<<kBlocks, kThreads, 0, stream>>>(spoilt);
  compare_mma_and_wgmma<__nv_bfloat16><<<kBlocks, kThreads, 0, stream>>>(spoilt);
  unsigned found[2] = {1, 1};
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) error = cudaMemcpyFromSymbolAsync(found, unlike, sizeof found, 0, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  *alike = error == cudaSuccess && found[spoilt ? 1 : 0] == 0;
  return error;
}

}  // namespace mr::cuda
