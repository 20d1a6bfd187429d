// The decode class's wgmma kernels of F32 weights.
#include "kernels/linear/wide_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel wide_kernel<kF32>(Act act, int32_t form) {
  return act == Act::kF16 ? wide_kernel_for<kF32, __half>(form) : wide_kernel_for<kF32, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
