// elementwise: SwiGLU, scales and conversions, computed in f32. One thread for 4 elements if shapes allow,
// otherwise one for each element. No two threads touch one element, so outputs may be inputs.
#include "kernels/act.cuh"
#include "kernels/elementwise.h"
#include "kernels/experts/gated.cuh"
#include "kernels/math.cuh"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;

template <int n>
__device__ __forceinline__ void load_many(const float* p, float* x) {
  if constexpr (n == 4) {
    const float4 v = *reinterpret_cast<const float4*>(p);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
  } else {
    x[0] = *p;
  }
}

template <int n>
__device__ __forceinline__ void store_many(Act act, uint16_t* p, const float* x) {
  if constexpr (n == 4) {
    *reinterpret_cast<uint2*>(p) = make_uint2(rounded_bits(act, x[0], x[1]), rounded_bits(act, x[2], x[3]));
  } else {
    *p = rounded_bits(act, x[0]);
  }
}

// Finds the row and first column of this thread's group of n elements; returns false past the last.
template <int n>
__device__ __forceinline__ bool place(int32_t rows, int32_t dim, int64_t* row, int32_t* column) {
  const int32_t groups = dim / n;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  *row = i / groups;
  *column = static_cast<int32_t>(i % groups) * n;
  return *row < rows;
}

__device__ __forceinline__ float gated(int32_t activation, float gate, float up) {
  switch (activation) {
    case MR_ACT_CLAMPED: return gated_product(activation, gate, up);
    case MR_ACT_GELU_TANH: return gelu_f32(gate) * up;
    default: return silu_f32(gate) * up;
  }
}

template <int n>
__global__ void __launch_bounds__(kThreads) swiglu(SwigluArgs a) {
  grid_wait();
  grid_trigger();
  int64_t row;
  int32_t column;
  if (!place<n>(a.rows, a.dim, &row, &column)) return;
  float gate[n], up[n];
  load_many<n>(a.gate + row * a.in_stride + column, gate);
  load_many<n>(a.up + row * a.up_stride + column, up);
  for (int i = 0; i < n; ++i) gate[i] = gated(a.activation, gate[i], up[i]) * a.scale;
  store_many<n>(a.act, static_cast<uint16_t*>(a.out) + row * a.out_stride + column, gate);
}

__global__ void __launch_bounds__(kThreads) scale_rows(ScaleArgs a) {
  grid_wait();
  grid_trigger();
  int64_t row;
  int32_t column;
  if (!place<1>(a.rows, a.dim, &row, &column)) return;
  float& x = a.x[row * a.stride + column];
  const float y = x * a.scale;
  x = a.cap == 0 ? y : a.cap * tanhf(y / a.cap);
}

__global__ void __launch_bounds__(kThreads) to_act(ToActArgs a) {
  grid_wait();
  grid_trigger();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.count) return;
  const float y = a.x[i] * a.scale;
  static_cast<uint16_t*>(a.out)[i] = a.saturated ? act_bits(a.act, y) : rounded_bits(a.act, y);
}

dim3 blocks_for(int64_t threads) { return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)); }

}  // namespace

cudaError_t launch_swiglu(const SwigluArgs& args, const Stream& on) {
  if (args.rows < 0 || args.dim < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const bool four = (args.dim | args.in_stride | args.up_stride | args.out_stride) % 4 == 0;
  const dim3 grid = blocks_for(static_cast<int64_t>(args.rows) * args.dim / (four ? 4 : 1));
  return launch(on, grid, dim3(kThreads), 0, four ? swiglu<4> : swiglu<1>, args);
}

cudaError_t launch_scale(const ScaleArgs& args, const Stream& on) {
  if (args.rows < 0 || args.dim < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  return launch(on, blocks_for(static_cast<int64_t>(args.rows) * args.dim), dim3(kThreads), 0, scale_rows, args);
}

cudaError_t launch_to_act(const ToActArgs& args, const Stream& on) {
  if (args.count < 0) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  return launch(on, blocks_for(args.count), dim3(kThreads), 0, to_act, args);
}

}  // namespace mr::cuda
