// The decode kernels of IQ4_NL weights.
#include "kernels/linear/decode_kernel.cuh"

namespace mr::cuda {

template <>
DecodeKernel decode_kernel<kIQ4_NL>(Act act, DecodeForm form) {
  return act == Act::kF16 ? decode_kernel_for<kIQ4_NL, __half>(form) : decode_kernel_for<kIQ4_NL, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
