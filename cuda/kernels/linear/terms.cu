// terms: one warp takes a block of 256 inputs of eight tokens, by the tensor cores, as the other kernels sum them.
#include "kernels/linear/terms.h"

#include "kernels/linear/folded.cuh"

namespace mr::cuda {
namespace {

// Large blocks leave multiprocessors to the product behind, which begins meanwhile.
constexpr int32_t kThreads = 512;

__device__ __forceinline__ uint32_t load_global4(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__global__ void __launch_bounds__(kThreads, 1) sum_inputs(TermsArgs a) {
  // Not before: tall_quants_rings.cuh reads tokens early because whatever wrote them has ended when this kernel lets others begin.
  grid_wait();
  grid_trigger();
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, blocks = a.cols / 256;
  const int32_t warp = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x) / 32;
  const int32_t block = warp % blocks, token = warp / blocks * 8 + lane / 4;
  // Lanes past the last token read the last one's, so that all loads of a lane are under way at once.
  const int64_t from = int64_t{min(token, a.tokens - 1)} * a.x_stride + block * 256 + lane % 4 * 2;
  const uint32_t* const row = reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(a.x) + 2 * from);
  uint32_t x[8][4];
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) {
#pragma unroll
    for (int32_t eight = 0; eight < 4; ++eight) x[i][eight] = load_global4(row + (i * 32 + eight * 8) / 2);
  }
  InputSums sums;
  sums.clear();
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) sums.add(x[i], i, lane);
  uint32_t terms[3];
  sums.split(terms);
  if (token >= a.tokens) return;
  uint32_t* const to = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(a.terms) + (int64_t{token} * blocks + block) * kTermBytes) + lane % 4;
#pragma unroll
  for (int32_t i = 0; i < 3; ++i) to[i * 4] = terms[i];
  to[12] = 0;
}

}  // namespace

cudaError_t launch_terms(const TermsArgs& args, const Stream& on) {
  if (args.tokens < 0 || args.cols < 1 || args.cols % 256 != 0) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  const int64_t warps = int64_t{(args.tokens + 7) / 8} * (args.cols / 256);
  if (warps > INT32_MAX / 32) return cudaErrorInvalidValue;
  return launch(on, dim3(static_cast<unsigned>((warps * 32 + kThreads - 1) / kThreads)), dim3(kThreads), 0, sum_inputs, args);
}

}  // namespace mr::cuda
