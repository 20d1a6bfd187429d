// The prefill kernels of Q6_K weights.
#include "kernels/linear/prefill_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel prefill_kernel<kQ6_K>(Act act, int32_t form) {
  return act == Act::kF16 ? prefill_kernel_for<kQ6_K, __half>(form) : prefill_kernel_for<kQ6_K, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
