// The prefill kernels of Q8_0 weights.
#include "kernels/linear/prefill_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel prefill_kernel<kQ8_0>(Act act, int32_t form) {
  return act == Act::kF16 ? prefill_kernel_for<kQ8_0, __half>(form) : prefill_kernel_for<kQ8_0, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
