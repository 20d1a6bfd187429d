// The decode class's wgmma kernels of Q5_0 weights.
#include "kernels/linear/wide_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel wide_kernel<kQ5_0>(Act act, int32_t form) {
  return act == Act::kF16 ? wide_kernel_for<kQ5_0, __half>(form) : wide_kernel_for<kQ5_0, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
