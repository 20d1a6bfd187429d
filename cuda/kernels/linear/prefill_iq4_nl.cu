// The prefill kernels of IQ4_NL weights.
#include "kernels/linear/prefill_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel prefill_kernel<kIQ4_NL>(Act act, int32_t form) {
  return act == Act::kF16 ? prefill_kernel_for<kIQ4_NL, __half>(form) : prefill_kernel_for<kIQ4_NL, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
