// The prefill kernels of F16 weights.
#include "kernels/linear/prefill_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel prefill_kernel<kF16>(Act act, int32_t form) {
  return act == Act::kF16 ? prefill_kernel_for<kF16, __half>(form) : prefill_kernel_for<kF16, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
