// branch: a block for each row, or for each row and layer. Thread t has the elements t, t + threads, ...; the number of
// threads depends on the width alone, and so does the order of a sum: a thread's elements, then lanes, then warps.
#include "kernels/branch.h"

#include <algorithm>
#include <cmath>

#include "kernels/act.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kMostThreads = 512;
// Elements of a thread that are in registers at once. With few rows a block has an SM for itself, and all of a row of 6 144 is requested
// together; with many rows it is better to have three blocks on an SM. Neither changes a bit.
constexpr int32_t kKeptOfFew = 12, kKeptOfMany = 4, kFewRows = 256;
int32_t threads_of(int32_t width) { return std::min((width + 31) / 32 * 32, kMostThreads); }

// A thread's elements of a row from `first` on, zeros after its end. All are requested before one is used.
template <int32_t kKept>
struct Elements {
  float of[kKept];

  __device__ __forceinline__ void load(const float* row, int32_t first, int32_t dim) {
#pragma unroll
    for (int32_t k = 0; k < kKept; ++k) {
      const int32_t i = first + k * static_cast<int32_t>(blockDim.x);
      of[k] = i < dim ? row[i] : 0.0f;
    }
  }
};

template <int32_t kKept>
__global__ void __launch_bounds__(kMostThreads, kKept == kKeptOfMany ? 3 : 1) end_rows(const __grid_constant__ EndBranchArgs a) {
  __shared__ float scratch[kMostThreads / 32];
  const int32_t begin = threadIdx.x, threads = blockDim.x, together = kKept * threads;
  Elements<kKept> x, branch = {}, norm = {};
  if (a.norm != nullptr) norm.load(a.norm, begin, a.dim);  // weights, which no kernel writes
  const float then = a.then == nullptr ? 1.0f : *a.then;
  grid_wait();
  grid_trigger();
  float* const row = a.x + blockIdx.x * a.x_stride;
  const float* const of_branch = a.branch + blockIdx.x * a.branch_stride;
  if (a.branch != nullptr) branch.load(of_branch, begin, a.dim);
  x.load(row, begin, a.dim);
  float factor = 1;
  if (a.norm != nullptr) {
    float sum = 0;
    for (int32_t first = begin;;) {
#pragma unroll
      for (int32_t k = 0; k < kKept; ++k) sum = fmaf(branch.of[k], branch.of[k], sum);
      first += together;
      if (first >= a.dim) break;
      branch.load(of_branch, first, a.dim);
    }
    factor = 1.0f / sqrtf(block_sum(sum, scratch) / static_cast<float>(a.dim) + a.eps);
    if (begin + together < a.dim) branch.load(of_branch, begin, a.dim);
  }
  for (int32_t first = begin; first < a.dim;) {
#pragma unroll
    for (int32_t k = 0; k < kKept; ++k) {
      const int32_t i = first + k * threads;
      float sum = x.of[k];
      if (a.branch != nullptr) sum += a.scale * (a.norm == nullptr ? branch.of[k] : branch.of[k] * factor * norm.of[k]);
      if (i < a.dim) row[i] = sum * then;
    }
    first += together;
    x.load(row, first, a.dim);
    if (a.branch != nullptr) branch.load(of_branch, first, a.dim);
    if (a.norm != nullptr) norm.load(a.norm, first, a.dim);
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
  const auto kernel = args.rows <= kFewRows ? end_rows<kKeptOfFew> : end_rows<kKeptOfMany>;
  return launch(on, dim3(static_cast<unsigned>(args.rows)), dim3(static_cast<unsigned>(threads_of(args.dim))), 0, kernel, args);
}

cudaError_t launch_layer_inputs(const LayerInputsArgs& args, const Stream& on) {
  if (args.rows < 0 || args.layers < 1 || args.width < 1 || args.hidden < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>(args.layers));
  return launch(on, grid, dim3(static_cast<unsigned>(threads_of(args.width))), 0, inputs_of_layers, args,
                1 / std::sqrt(static_cast<float>(args.hidden)), std::sqrt(static_cast<float>(args.width)), 1 / std::sqrt(2.0f));
}

}  // namespace mr::cuda
