// The decode class's wgmma kernels of BF16 weights.
#include "kernels/linear/wide_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel wide_kernel<kBF16>(Act act, int32_t form) {
  return act == Act::kF16 ? wide_kernel_for<kBF16, __half>(form) : wide_kernel_for<kBF16, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
