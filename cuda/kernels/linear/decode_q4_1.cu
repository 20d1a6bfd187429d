// The decode kernels of Q4_1 weights.
#include "kernels/linear/decode_kernel.cuh"

namespace mr::cuda {

template <>
DecodeKernel decode_kernel<kQ4_1>(Act act, DecodeForm form) {
  return act == Act::kF16 ? decode_kernel_for<kQ4_1, __half>(form) : decode_kernel_for<kQ4_1, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
