// ops/attention: the plain attention of engine.h, all f32: out = softmax(scale * q k^T) v over the keys that a row
// sees.
//
// One block for a row and head. In chunks of kChunk absolute keys, each thread has a key for the scores (dims
// ascending, fmaf), then a dim for the weighted values (keys ascending); chunks are merged in ascending order with a
// running maximum. Shared memory: the query, one chunk of weights, one output. It is a reference to compare with, and
// not fast.
#include <algorithm>

#include "kernels/act.cuh"
#include "kernels/math.cuh"
#include "kernels/ops/ops.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 256;
constexpr int kMostDims = 4096;
constexpr int kOwned = kMostDims / kThreads;

__global__ void __launch_bounds__(kThreads) row_and_head_per_block(OpAttentionArgs a) {
  __shared__ float query[kMostDims], weights[kChunk], scratch[kThreads / 32];
  grid_wait();
  grid_trigger();
  const int64_t tasks = a.batch * a.rows * a.heads, q_width = static_cast<int64_t>(a.heads) * a.cols;
  const int64_t kv_width = static_cast<int64_t>(a.kv_heads) * a.cols;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t head = task % a.heads, row = task / a.heads % a.rows, batch = task / a.heads / a.rows;
    const int64_t kv_head = head / (a.heads / a.kv_heads), visible = a.inner - a.rows + row + 1;
    const int64_t at = (batch * a.rows + row) * q_width + head * a.cols;
    const float* const keys = a.k + batch * a.inner * kv_width + kv_head * a.cols;
    const float* const values = a.v + batch * a.inner * kv_width + kv_head * a.cols;
    for (int d = threadIdx.x; d < a.cols; d += kThreads) query[d] = a.q[at + d];
    float out[kOwned];
#pragma unroll
    for (int i = 0; i < kOwned; ++i) out[i] = 0;
    float top = -INFINITY, sum = 0;
    __syncthreads();
    for (int64_t base = 0; base < visible; base += kChunk) {
      const int count = static_cast<int>(min(static_cast<int64_t>(kChunk), visible - base));
      float score = -INFINITY;
      if (static_cast<int>(threadIdx.x) < count) {
        const float* const key = keys + (base + threadIdx.x) * kv_width;
        float dot = 0;
        for (int d = 0; d < a.cols; ++d) dot = fmaf(query[d], key[d], dot);
        score = dot * a.scale;
      }
      float chunk_top = score;
      for (int lane = 16; lane > 0; lane /= 2) chunk_top = fmaxf(chunk_top, __shfl_xor_sync(0xffffffffu, chunk_top, lane));
      if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = chunk_top;
      __syncthreads();
      for (int w = 0; w < kThreads / 32; ++w) chunk_top = fmaxf(chunk_top, scratch[w]);
      __syncthreads();
      const float merged = fmaxf(top, chunk_top), base_score = merged == -INFINITY ? 0.0f : merged;
      const float decay = top == -INFINITY ? 0.0f : exp_f32(top - base_score);
      const float weight = exp_f32(score - base_score);
      weights[threadIdx.x] = weight;
      sum = fmaf(sum, decay, block_sum(weight, scratch));  // synchronises, so the weights are there
#pragma unroll
      for (int i = 0; i < kOwned; ++i) {
        const int d = threadIdx.x + i * kThreads;
        if (d >= a.cols) break;
        float x = out[i] * decay;
        for (int t = 0; t < count; ++t) x = fmaf(weights[t], values[(base + t) * kv_width + d], x);
        out[i] = x;
      }
      top = merged;
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int d = threadIdx.x + i * kThreads;
      if (d < a.cols) a.out[at + d] = out[i] / (sum == 0 ? 1.0f : sum);
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_op_attention(const OpAttentionArgs& args, const Stream& on) {
  if (args.batch < 0 || args.rows < 0 || args.inner < args.rows || args.heads < 1 || args.kv_heads < 1 ||
      args.heads % args.kv_heads != 0 || args.cols < 1 || args.cols > kMostDims)
    return cudaErrorInvalidValue;
  const int64_t tasks = args.batch * args.rows * args.heads;
  if (tasks == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(tasks, 1 << 20)));
  return launch(on, grid, dim3(kThreads), 0, row_and_head_per_block, args);
}

}  // namespace mr::cuda
