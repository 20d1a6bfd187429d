// input_sums: one warp sums a block of 256 inputs of eight tokens on the tensor cores, with the additions of the other
// kernels.
#include "kernels/gemm/input_sums.h"

#include "kernels/gemm/input_sums.cuh"

namespace mr::cuda {
namespace {

// Large blocks leave SMs to the GEMM that follows, which starts before this kernel ends. Larger ones take longer.
constexpr int32_t kThreads = 256;

__global__ void __launch_bounds__(kThreads, 1) sum_inputs(InputSumsArgs a) {
  // The wait must not come later: m128_wgmma_quant_pipeline.cuh reads tokens early, and relies on the kernel that wrote
  // them having ended before this kernel triggers its dependents.
  grid_wait();
  grid_trigger();
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32, blocks = a.cols / 256;
  const int32_t warp = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x) / 32;
  const int32_t block = warp % blocks, token = warp / blocks * 8 + lane / 4;
  const int64_t from = int64_t{min(token, a.tokens - 1)} * a.x_stride + block * 256;
  uint8_t* const to = static_cast<uint8_t*>(a.input_sums) + (int64_t{token} * blocks + block) * kInputSumBytes;
  sum_blocks(static_cast<const __half*>(a.x) + from, to, token < a.tokens, lane);
}

}  // namespace

cudaError_t launch_input_sums(const InputSumsArgs& args, const Stream& on) {
  if (args.tokens < 0 || args.cols < 1 || args.cols % 256 != 0) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  const int64_t warps = int64_t{(args.tokens + 7) / 8} * (args.cols / 256);
  if (warps > INT32_MAX / 32) return cudaErrorInvalidValue;
  return launch(on, dim3(static_cast<unsigned>((warps * 32 + kThreads - 1) / kThreads)), dim3(kThreads), 0, sum_inputs, args);
}

}  // namespace mr::cuda
