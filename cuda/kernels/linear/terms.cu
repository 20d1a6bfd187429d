// terms: one warp takes a block of 256 inputs of eight tokens, by the tensor cores, as the other kernels sum them.
#include "kernels/linear/terms.h"

#include "kernels/linear/folded.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kThreads = 128;

__global__ void __launch_bounds__(kThreads) sum_inputs(TermsArgs a) {
  grid_wait();
  grid_trigger();
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, blocks = (a.cols + 255) / 256;
  const int32_t warp = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x) / 32;
  const int32_t block = warp % blocks, token = warp / blocks * 8 + lane / 4;
  const bool there = token < a.tokens;
  const uint32_t* const row = reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(a.x) + int64_t{2} * token * a.x_stride);
  uint32_t x[8][4];
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) {
#pragma unroll
    for (int32_t eight = 0; eight < 4; ++eight) {
      const int32_t at = block * 256 + i * 32 + eight * 8 + lane % 4 * 2;
      x[i][eight] = there && at < a.cols ? row[at / 2] : 0;
    }
  }
  InputSums sums;
  sums.clear();
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) sums.add(x[i], i, lane);
  uint32_t terms[3];
  sums.split(terms);
  if (!there) return;
  uint32_t* const to = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(a.terms) + (int64_t{token} * blocks + block) * kTermBytes) + lane % 4;
#pragma unroll
  for (int32_t i = 0; i < 3; ++i) to[i * 4] = terms[i];
  to[12] = 0;
}

}  // namespace

cudaError_t launch_terms(const TermsArgs& args, const Stream& on) {
  if (args.tokens < 0 || args.cols < 1) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  const int64_t warps = int64_t{(args.tokens + 7) / 8} * ((args.cols + 255) / 256);
  if (warps > INT32_MAX / 32) return cudaErrorInvalidValue;
  return launch(on, dim3(static_cast<unsigned>((warps * 32 + kThreads - 1) / kThreads)), dim3(kThreads), 0, sum_inputs, args);
}

}  // namespace mr::cuda
