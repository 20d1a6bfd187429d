// route: a block for each row (route_row.cuh).
#include "kernels/experts/route_row.cuh"

#include <algorithm>

namespace mr::cuda {
namespace {

__global__ void __launch_bounds__(kMostRouteThreads) route_rows(const __grid_constant__ RouteArgs a) {
  grid_wait();
  grid_trigger();
  route_row(a, blockIdx.x);
}

}  // namespace

cudaError_t launch_route(const RouteArgs& args, const Stream& on) {
  const mr_experts_desc& e = args.experts;
  if (args.rows < 0 || e.count < 1 || e.count > 4 * kMostRouteThreads || e.used < 1 || e.used > e.count) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const size_t bytes = route_shared_bytes(e);
  constexpr size_t kPlain = 40 << 10;  // of dynamic memory that every kernel may have, with some static memory
  if (bytes > kPlain) {
    const cudaError_t error = cudaFuncSetAttribute(route_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error != cudaSuccess) return error;
  }
  // Four threads for an expert, to share its counting.
  const int32_t threads = std::min((e.count + 31) / 32 * 32 * 4, kMostRouteThreads);
  return launch(on, dim3(static_cast<unsigned>(args.rows)), dim3(static_cast<unsigned>(threads)), bytes, route_rows, args);
}

}  // namespace mr::cuda
