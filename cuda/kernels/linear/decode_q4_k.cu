// The decode kernels of Q4_K weights.
#include "kernels/linear/decode_kernel.cuh"

namespace mr::cuda {

template <>
DecodeKernel decode_kernel<kQ4_K>(Act act, DecodeForm form) {
  return act == Act::kF16 ? decode_kernel_for<kQ4_K, __half>(form) : decode_kernel_for<kQ4_K, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
