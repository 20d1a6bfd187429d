// ops: the plain operations in f32. A row is reduced by one block: threads stride over the columns, then lanes, then
// warps are summed. Elementwise operations have four neighbouring elements a thread. Exponentials are those of the CPU
// engine. An output may be an input wherever engine.h allows it, because a thread writes only what no other thread
// still has to read.
// Test bounds: 2e-6 relative to the largest magnitude for sums, 1 ulp for elementwise operations.
#include <algorithm>
#include <cstdint>

#include "kernels/act.cuh"
#include "kernels/math.cuh"
#include "kernels/ops/ops.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1 << 20;

dim3 blocks_for(int64_t tasks, int64_t a_block) {
  return dim3(static_cast<unsigned>(std::min<int64_t>(kMostBlocks, (tasks + a_block - 1) / a_block)));
}

__device__ __forceinline__ float block_max(float x, float* scratch) {  // NaN if any is NaN
  bool nan = isnan(x);
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  nan = __syncthreads_or(nan);
  x = scratch[0];
  for (int w = 1; w < kThreads / 32; ++w) x = fmaxf(x, scratch[w]);
  __syncthreads();
  return nan ? NAN : x;
}

__global__ void __launch_bounds__(kThreads) softmax(const float* a, int64_t rows, int64_t cols, float* out) {
  __shared__ float scratch[kThreads / 32];
  grid_wait();
  grid_trigger();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* const x = a + row * cols;
    float* const y = out + row * cols;
    float top = -INFINITY;
    bool nan = false;
    for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
      nan = nan || isnan(x[i]);
      top = fmaxf(top, x[i]);
    }
    top = block_max(nan ? NAN : top, scratch);
    const float base = top == -INFINITY ? 0.0f : top;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
      y[i] = exp_f32(x[i] - base);
      sum += y[i];
    }
    sum = block_sum(sum, scratch);
    const float divisor = sum == 0 ? 1.0f : sum;
    for (int64_t i = threadIdx.x; i < cols; i += kThreads) y[i] = y[i] / divisor;
  }
}

__global__ void __launch_bounds__(kThreads) rms_norm(const float* a, const float* b, float eps, int64_t rows,
                                                     int64_t rows_a_batch, int64_t cols, float* out) {
  __shared__ float scratch[kThreads / 32];
  grid_wait();
  grid_trigger();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* const x = a + row * cols;
    const float* const weight = b + row / rows_a_batch * cols;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < cols; i += kThreads) sum = fmaf(x[i], x[i], sum);
    const float factor = 1.0f / sqrtf(block_sum(sum, scratch) / static_cast<float>(cols) + eps);
    for (int64_t i = threadIdx.x; i < cols; i += kThreads) out[row * cols + i] = x[i] * factor * weight[i];
  }
}

template <int32_t op>
__device__ __forceinline__ float element(float x, float y, float scale) {
  if constexpr (op == MR_OP_ADD) {
    return x + y;
  } else if constexpr (op == MR_OP_MUL) {
    return x * y;
  } else if constexpr (op == MR_OP_SCALE) {
    return x * scale;
  } else if constexpr (op == MR_OP_SILU) {
    return silu_f32(x);
  } else if constexpr (op == MR_OP_SWIGLU) {
    return silu_f32(x) * y;
  } else {
    static_assert(op == MR_OP_COPY);
    return x;
  }
}

template <int32_t op>
__device__ __forceinline__ void each_element(const float* a, const float* b, float scale, int64_t count, float* out, bool whole) {
  constexpr bool two = op == MR_OP_ADD || op == MR_OP_MUL || op == MR_OP_SWIGLU;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * 4;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4; i < count; i += stride) {
    if (whole && i + 4 <= count) {
      const float4 x = *reinterpret_cast<const float4*>(a + i);
      float4 y = make_float4(0, 0, 0, 0);
      if constexpr (two) y = *reinterpret_cast<const float4*>(b + i);
      *reinterpret_cast<float4*>(out + i) = make_float4(element<op>(x.x, y.x, scale), element<op>(x.y, y.y, scale),
                                                        element<op>(x.z, y.z, scale), element<op>(x.w, y.w, scale));
      continue;
    }
    const int64_t end = i + 4 < count ? i + 4 : count;
    for (int64_t k = i; k < end; ++k) out[k] = element<op>(a[k], two ? b[k] : 0.0f, scale);
  }
}

// One thread for four neighbouring elements, moved at once if every operand is 16-byte aligned (whole).
__global__ void __launch_bounds__(kThreads) elementwise(int32_t op, const float* a, const float* b, float scale, int64_t count, float* out,
                                                        bool whole) {
  grid_wait();
  grid_trigger();
  switch (op) {
    case MR_OP_ADD: return each_element<MR_OP_ADD>(a, b, scale, count, out, whole);
    case MR_OP_MUL: return each_element<MR_OP_MUL>(a, b, scale, count, out, whole);
    case MR_OP_SCALE: return each_element<MR_OP_SCALE>(a, b, scale, count, out, whole);
    case MR_OP_SILU: return each_element<MR_OP_SILU>(a, b, scale, count, out, whole);
    case MR_OP_SWIGLU: return each_element<MR_OP_SWIGLU>(a, b, scale, count, out, whole);
    case MR_OP_COPY: return each_element<MR_OP_COPY>(a, b, scale, count, out, whole);
  }
}

bool whole_quads(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// One thread for a pair of one row and head, in all batches, so that the angle is computed once.
__global__ void __launch_bounds__(kThreads) rope(const float* a, const double* frequencies, int32_t style, int64_t batch,
                                                 int64_t rows, int32_t heads, int32_t dims, int32_t first_position, float* out) {
  grid_wait();
  grid_trigger();
  const int32_t half = dims / 2;
  const int64_t width = static_cast<int64_t>(heads) * dims, pairs = rows * half;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < pairs; i += stride) {
    const int64_t row = i / half;
    const int32_t pair = static_cast<int32_t>(i % half);
    double sine, cosine;
    sincos_f64(static_cast<double>(first_position + row) * frequencies[pair], &sine, &cosine);
    const float s = static_cast<float>(sine), c = static_cast<float>(cosine);
    const int32_t d0 = style == MR_ROPE_NEOX ? pair : 2 * pair, d1 = style == MR_ROPE_NEOX ? pair + half : 2 * pair + 1;
    for (int64_t r = row; r < batch * rows; r += rows)
      for (int32_t head = 0; head < heads; ++head) {
        const int64_t at = r * width + static_cast<int64_t>(head) * dims;
        const float x = a[at + d0], y = a[at + d1];
        out[at + d0] = x * c - y * s;
        out[at + d1] = x * s + y * c;
      }
  }
}

}  // namespace

cudaError_t launch_op_softmax(const float* a, int64_t rows, int64_t cols, float* out, const Stream& on) {
  if (rows < 0 || cols < 1) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  return launch(on, blocks_for(rows, 1), dim3(kThreads), 0, softmax, a, rows, cols, out);
}

cudaError_t launch_op_rms_norm(const float* a, const float* b, float eps, int64_t rows, int64_t rows_a_batch, int64_t cols,
                               float* out, const Stream& on) {
  if (rows < 0 || cols < 1 || rows_a_batch < 1) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  return launch(on, blocks_for(rows, 1), dim3(kThreads), 0, rms_norm, a, b, eps, rows, rows_a_batch, cols, out);
}

cudaError_t launch_op_elementwise(int32_t op, const float* a, const float* b, float scale, int64_t count, float* out,
                                  const Stream& on) {
  if (count < 0) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  if (op != MR_OP_ADD && op != MR_OP_MUL && op != MR_OP_SCALE && op != MR_OP_SILU && op != MR_OP_SWIGLU && op != MR_OP_COPY)
    return cudaErrorInvalidValue;
  const bool whole = whole_quads(a) && whole_quads(b) && whole_quads(out);
  return launch(on, blocks_for(count, kThreads * 4), dim3(kThreads), 0, elementwise, op, a, b, scale, count, out, whole);
}

cudaError_t launch_op_rope(const float* a, const double* frequencies, int32_t style, int64_t batch, int64_t rows,
                           int32_t heads, int32_t dims, int32_t first_position, float* out, const Stream& on) {
  if (batch < 0 || rows < 0 || heads < 1 || dims < 2 || dims % 2 != 0) return cudaErrorInvalidValue;
  if (batch == 0 || rows == 0) return cudaSuccess;
  return launch(on, blocks_for(rows * (dims / 2), kThreads), dim3(kThreads), 0, rope, a, frequencies, style, batch, rows,
                heads, dims, first_position, out);
}

}  // namespace mr::cuda
