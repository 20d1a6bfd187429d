// The decode class's wgmma kernels of Q4_1 weights.
#include "kernels/linear/wide_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel wide_kernel<kQ4_1>(Act act, int32_t form) {
  return act == Act::kF16 ? wide_kernel_for<kQ4_1, __half>(form) : wide_kernel_for<kQ4_1, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
