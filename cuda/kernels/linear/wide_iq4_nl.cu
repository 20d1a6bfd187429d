// The decode class's wgmma kernels of IQ4_NL weights.
#include "kernels/linear/wide_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel wide_kernel<kIQ4_NL>(Act act, int32_t form) {
  return act == Act::kF16 ? wide_kernel_for<kIQ4_NL, __half>(form) : wide_kernel_for<kIQ4_NL, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
