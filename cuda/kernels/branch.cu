// branch: a block for each row, or for each row and layer. Thread t has the elements t, t + threads, ...; the number of
// threads depends on the width alone, and so does the order of a sum: a thread's elements, then lanes, then warps.
#include "kernels/branch.h"

#include <algorithm>
#include <cmath>

#include "kernels/act.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kMostThreads = 512;
int32_t threads_of(int32_t width) { return std::min((width + 31) / 32 * 32, kMostThreads); }

__global__ void __launch_bounds__(kMostThreads) end_rows(const __grid_constant__ EndBranchArgs a) {
  __shared__ float scratch[kMostThreads / 32];
  grid_wait();
  grid_trigger();
  float* const x = a.x + blockIdx.x * a.x_stride;
  const float* const branch = a.branch + blockIdx.x * a.branch_stride;
  const int32_t threads = blockDim.x;
  float factor = 1;
  if (a.norm != nullptr) {
    float sum = 0;
    for (int32_t i = threadIdx.x; i < a.dim; i += threads) sum = fmaf(branch[i], branch[i], sum);
    factor = 1.0f / sqrtf(block_sum(sum, scratch) / static_cast<float>(a.dim) + a.eps);
  }
  const float then = a.then == nullptr ? 1.0f : *a.then;
  for (int32_t i = threadIdx.x; i < a.dim; i += threads) {
    float sum = x[i];
    if (a.branch != nullptr) sum += a.scale * (a.norm == nullptr ? branch[i] : branch[i] * factor * a.norm[i]);
    x[i] = sum * then;
  }
}

__global__ void __launch_bounds__(kMostThreads) inputs_of_layers(const __grid_constant__ LayerInputsArgs a, float from_hidden,
                                                                 float from_embedding, float both) {
  __shared__ float scratch[kMostThreads / 32];
  grid_wait();
  grid_trigger();
  const int64_t first = static_cast<int64_t>(blockIdx.y) * a.width;
  float* const inputs = a.inputs + blockIdx.x * a.inputs_stride + first;
  const float* const embedding = a.embedding + blockIdx.x * a.embedding_stride + first;
  const int32_t threads = blockDim.x;
  float sum = 0;
  for (int32_t i = threadIdx.x; i < a.width; i += threads) {
    const float product = inputs[i] * from_hidden;
    sum = fmaf(product, product, sum);
  }
  const float factor = 1.0f / sqrtf(block_sum(sum, scratch) / static_cast<float>(a.width) + a.eps);
  for (int32_t i = threadIdx.x; i < a.width; i += threads)
    inputs[i] = (inputs[i] * from_hidden * factor * a.norm[i] + embedding[i] * from_embedding) * both;
}

}  // namespace

cudaError_t launch_end_branch(const EndBranchArgs& args, const Stream& on) {
  if (args.rows < 0 || args.dim < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  return launch(on, dim3(static_cast<unsigned>(args.rows)), dim3(static_cast<unsigned>(threads_of(args.dim))), 0, end_rows, args);
}

cudaError_t launch_layer_inputs(const LayerInputsArgs& args, const Stream& on) {
  if (args.rows < 0 || args.layers < 1 || args.width < 1 || args.hidden < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.layers));
  return launch(on, grid, dim3(static_cast<unsigned>(threads_of(args.width))), 0, inputs_of_layers, args,
                1 / std::sqrt(static_cast<float>(args.hidden)), std::sqrt(static_cast<float>(args.width)), 1 / std::sqrt(2.0f));
}

}  // namespace mr::cuda
