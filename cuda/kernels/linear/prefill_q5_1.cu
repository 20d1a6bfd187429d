// The prefill kernels of Q5_1 weights.
#include "kernels/linear/prefill_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel prefill_kernel<kQ5_1>(Act act, int32_t form) {
  return act == Act::kF16 ? prefill_kernel_for<kQ5_1, __half>(form) : prefill_kernel_for<kQ5_1, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
