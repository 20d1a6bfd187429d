// router: the logits of the experts, a block for a panel of experts and some rows (router_block.cuh).
#include "kernels/experts/router_block.cuh"

namespace mr::cuda {
namespace {

constexpr int32_t kFewRows = 16;  // up to these rows a block has one each, to occupy more SMs

template <int32_t T, int32_t kRows, int32_t kWarps, bool whole>
__global__ void __launch_bounds__(kWarps * 32, 1) router_logits(const __grid_constant__ RouterArgs a) {
  router_block<T, kRows, kWarps, whole>(a, dynamic_memory());
}

template <int32_t T, bool whole>
cudaError_t launch_of(const RouterArgs& args, const Stream& on) {
  constexpr int32_t kMany = 8, kManyWarps = 8;
  const auto panels = static_cast<unsigned>((args.router.rows + kPanelRows - 1) / kPanelRows);
  const dim3 alone(panels, static_cast<unsigned>(args.rows)), together(panels, static_cast<unsigned>((args.rows + kMany - 1) / kMany));
  if (args.rows <= kFewRows) {
    constexpr size_t bytes = whole ? kRouterRowBytes<T> : 0;
    const auto kernel = router_logits<T, 1, kColumnSlices, whole>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    return error != cudaSuccess ? error : launch(on, alone, dim3(kColumnSlices * 32), bytes, kernel, args);
  }
  return launch(on, together, dim3(kManyWarps * 32), 0, router_logits<T, kMany, kManyWarps, whole>, args);
}

template <int32_t T>
cudaError_t launch_type(const RouterArgs& args, const Stream& on) {
  const uintptr_t either = reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.norm);
  const bool whole = args.router.cols % kUnitCols == 0 && args.x_stride % 4 == 0 && either % 16 == 0;
  return whole ? launch_of<T, true>(args, on) : launch_of<T, false>(args, on);
}

}  // namespace

bool router_supported(int32_t type) { return type == kF32 || type == kF16 || type == kBF16; }

cudaError_t launch_router(const RouterArgs& args, const Stream& on) {
  if (args.rows < 0 || !weight_supported(args.router.type, args.router.rows, args.router.cols)) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  switch (args.router.type) {
    case kF32: return launch_type<kF32>(args, on);
    case kF16: return launch_type<kF16>(args, on);
    case kBF16: return launch_type<kBF16>(args, on);
    default: return cudaErrorNotSupported;
  }
}

}  // namespace mr::cuda
