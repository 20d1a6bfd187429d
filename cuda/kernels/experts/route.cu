// route: a warp for each row (route_row.cuh).
#include "kernels/experts/route_row.cuh"

#include <algorithm>

namespace mr::cuda {
namespace {

constexpr int32_t kMostWarps = 4, kMostExperts = 4096;

// `bytes` of shared memory for each warp.
__global__ void __launch_bounds__(kMostWarps * 32) route_rows(const __grid_constant__ RouteArgs a, uint32_t bytes) {
  grid_wait();
  grid_trigger();
  const uint32_t warp = threadIdx.x / 32;
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / 32) + warp;
  if (row < a.rows) route_row(a, row, a.slot[row] < 0, dynamic_memory() + warp * bytes);
}

}  // namespace

cudaError_t launch_route(const RouteArgs& args, const Stream& on) {
  const mr_experts_desc& e = args.experts;
  if (args.rows < 0 || e.count < 1 || e.count > kMostExperts || e.used < 1 || e.used > e.count) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const size_t each = route_shared_bytes(e);
  constexpr size_t kPlain = 40 << 10;  // of dynamic memory that every kernel may have
  if (each > kPlain) {
    const cudaError_t error = cudaFuncSetAttribute(route_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(each));
    if (error != cudaSuccess) return error;
  }
  const int32_t warps = std::clamp(static_cast<int32_t>(kPlain / each), 1, std::min(kMostWarps, args.rows));
  return launch(on, dim3(static_cast<unsigned>((args.rows + warps - 1) / warps)), dim3(static_cast<unsigned>(warps * 32)),
                each * static_cast<size_t>(warps), route_rows, args, static_cast<uint32_t>(each));
}

}  // namespace mr::cuda
