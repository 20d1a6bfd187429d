// gate: products with gates. gate_norm has a warp for each head of a row: lane l has the groups of four columns l, l + 32, ...; the sum of
// squares runs over a lane's groups, then over lanes. A group beyond the first is read twice, the second time from L1. gate_output has a
// thread for each group of four columns.
//
// gate_norm moves 10 bytes an element, gate_output 8. Test bounds: half a step of the output type, plus 2^-19.
#include "kernels/math.cuh"
#include "kernels/norm_row.cuh"
#include "kernels/states/groups.cuh"
#include "kernels/states/states.h"

namespace mr::cuda {
namespace {

constexpr int32_t kWarps = 4, kThreads = 256, kWarp = 32;

__device__ __forceinline__ float4 silu(float4 x) { return {silu_f32(x.x), silu_f32(x.y), silu_f32(x.z), silu_f32(x.w)}; }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exp_f32(-x)); }
__device__ __forceinline__ float4 sigmoid(float4 x) { return {sigmoid(x.x), sigmoid(x.y), sigmoid(x.z), sigmoid(x.w)}; }

template <bool whole>
__global__ void __launch_bounds__(kWarps * kWarp) norm_of_heads(const __grid_constant__ GateNormArgs a) {
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int32_t lane = threadIdx.x % kWarp, dim = a.value_dim;
  const float4 first_weight = load_columns<whole>(a.norm + lane * 4, dim - lane * 4);
  grid_wait();
  grid_trigger();
  if (item >= int64_t{a.rows} * a.heads) return;
  const int64_t row = item / a.heads, at = item % a.heads * dim;
  const float *const o = a.o + row * a.o_stride + at, *const gates = a.gate + row * a.gate_stride + at;
  uint16_t* const out = static_cast<uint16_t*>(a.out) + row * a.out_stride + at;
  const float4 first = load_columns<whole>(o + lane * 4, dim - lane * 4);
  const float4 first_gate = load_columns<whole>(gates + lane * 4, dim - lane * 4);
  float sum = norm_square(first, 0);
  for (int32_t d = (lane + kWarp) * 4; d < dim; d += kWarp * 4) sum = norm_square(load_columns<whole>(o + d, dim - d), sum);
  const float factor = norm_factor(warp_sum(sum), dim, a.eps);
  const auto finish = [&](int32_t d, float4 x, float4 gate, float4 weight) {
    const float4 normed = product(product(x, factor), weight);
    store_columns<whole>(a.act, out + d, dim - d, product(product(normed, silu(gate)), a.out_scale));
  };
  finish(lane * 4, first, first_gate, first_weight);
  for (int32_t d = (lane + kWarp) * 4; d < dim; d += kWarp * 4)
    finish(d, load_columns<whole>(o + d, dim - d), load_columns<whole>(gates + d, dim - d), load_columns<whole>(a.norm + d, dim - d));
}

template <bool whole>
__global__ void __launch_bounds__(kThreads) output_times_gate(const __grid_constant__ GateOutputArgs a) {
  const int32_t i = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x), groups = (a.dim + 3) / 4;
  grid_wait();
  grid_trigger();
  if (i >= a.heads * groups) return;
  const int32_t head = i / groups, d = i % groups * 4, n = a.dim - d;
  uint16_t* const out = static_cast<uint16_t*>(a.out) + blockIdx.x * a.out_stride + int64_t{head} * a.dim + d;
  const float4 gate = sigmoid(load_columns<whole>(a.q + blockIdx.x * a.q_stride + (2 * int64_t{head} + 1) * a.dim + d, n));
  uint16_t x[4] = {};
  if constexpr (whole) {
    *reinterpret_cast<uint2*>(x) = *reinterpret_cast<const uint2*>(out);
  } else {
#pragma unroll
    for (int32_t k = 0; k < 4; ++k)
      if (k < n) x[k] = out[k];
  }
  const float4 y = product(float4{act_f32(a.act, x[0]), act_f32(a.act, x[1]), act_f32(a.act, x[2]), act_f32(a.act, x[3])}, gate);
  store_columns<whole>(a.act, out, n, y);
}

}  // namespace

cudaError_t launch_gate_norm(const GateNormArgs& args, const Stream& on) {
  if (args.rows < 0 || args.heads < 1 || args.value_dim < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const bool whole = (args.value_dim | args.o_stride | args.gate_stride | args.out_stride) % 4 == 0 && aligned(args.o, 16) &&
                     aligned(args.gate, 16) && aligned(args.norm, 16) && aligned(args.out, 8);
  const int64_t items = int64_t{args.rows} * args.heads;
  return launch(on, dim3(static_cast<unsigned>((items + kWarps - 1) / kWarps)), dim3(kWarps * kWarp), 0,
                whole ? norm_of_heads<true> : norm_of_heads<false>, args);
}

cudaError_t launch_gate_output(const GateOutputArgs& args, const Stream& on) {
  if (args.rows < 0 || args.heads < 1 || args.dim < 1) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const bool whole = (args.dim | args.out_stride | args.q_stride) % 4 == 0 && aligned(args.q, 16) && aligned(args.out, 8);
  const int64_t groups = int64_t{args.heads} * ((args.dim + 3) / 4);
  const dim3 grid(static_cast<unsigned>(args.rows), static_cast<unsigned>((groups + kThreads - 1) / kThreads));
  return launch(on, grid, dim3(kThreads), 0, whole ? output_times_gate<true> : output_times_gate<false>, args);
}

}  // namespace mr::cuda
