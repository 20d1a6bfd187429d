// ops/matvec: out(cols) = a(cols, inner) * b(inner) in f32, a in its file's format.
//
// One warp for a row of a, 4 warps a block; grid: a block for every 4 rows, up to 2^20. Lane l has the inputs 4l ..
// 4l+3 of every 128, in four chains of fmaf by the index within four, each over ascending inputs. Chains are added as
// (0 + 1) + (2 + 3), then the lanes. The bits depend on inner alone. Four pieces of a row are loaded before the first
// is used, 2 KiB a warp in F32, because it is bound by memory. No shared memory; b is read from the caches. Error: at
// most (inner / 128 + 8) * 2^-24 * sum |a b|; test bound: that of matmul.
#include <algorithm>

#include "kernels/act.cuh"
#include "kernels/ops/ops.h"
#include "kernels/ops/weights.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kWarps = 4;
constexpr int32_t kAhead = 4;  // pieces of 128 inputs
constexpr int64_t kMostBlocks = 1 << 20;

template <int32_t T, bool whole>
__device__ void multiply_rows(const OpMatmulArgs& a, int64_t weight_bytes) {
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  const uint8_t* const x = reinterpret_cast<const uint8_t*>(a.b);
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < a.cols; row += stride) {
    const uint8_t* const weights = static_cast<const uint8_t*>(a.a) + row * weight_bytes;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int64_t k = lane * 4; k < a.inner; k += 128 * kAhead) {
      float4 w[kAhead], v[kAhead];
#pragma unroll
      for (int32_t i = 0; i < kAhead; ++i) w[i] = row_weights<T, whole>(weights, k + 128 * i, a.inner);
#pragma unroll
      for (int32_t i = 0; i < kAhead; ++i) v[i] = row_weights<kF32, whole>(x, k + 128 * i, a.inner);
#pragma unroll
      for (int32_t i = 0; i < kAhead; ++i) {
        sum.x = fmaf(w[i].x, v[i].x, sum.x);
        sum.y = fmaf(w[i].y, v[i].y, sum.y);
        sum.z = fmaf(w[i].z, v[i].z, sum.z);
        sum.w = fmaf(w[i].w, v[i].w, sum.w);
      }
    }
    const float total = warp_sum((sum.x + sum.y) + (sum.z + sum.w));
    if (lane == 0) a.out[row] = total;
  }
}

__global__ void __launch_bounds__(32 * kWarps) row_per_warp(OpMatmulArgs a, int64_t weight_bytes) {
  grid_wait();
  grid_trigger();
  with_weights(a.a_type, a.inner, [&](auto type, auto whole) { multiply_rows<type.value, whole.value>(a, weight_bytes); });
}

}  // namespace

cudaError_t launch_op_matvec(const OpMatmulArgs& args, const Stream& on) {
  if (!op_matmul_valid(args) || args.rows != 1) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(std::min((args.cols + kWarps - 1) / kWarps, kMostBlocks)));
  return launch(on, grid, dim3(32 * kWarps), 0, row_per_warp, args,
                static_cast<int64_t>(weight_file_bytes(args.a_type, 1, args.inner)));
}

}  // namespace mr::cuda
