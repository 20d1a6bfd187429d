// The prefill kernels of F32 weights.
#include "kernels/linear/prefill_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel prefill_kernel<kF32>(Act act, int32_t form) {
  return act == Act::kF16 ? prefill_kernel_for<kF32, __half>(form) : prefill_kernel_for<kF32, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
