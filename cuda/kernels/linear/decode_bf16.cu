// The decode kernels of BF16 weights.
#include "kernels/linear/decode_kernel.cuh"

namespace mr::cuda {

template <>
DecodeKernel decode_kernel<kBF16>(Act act, DecodeForm form) {
  return act == Act::kF16 ? decode_kernel_for<kBF16, __half>(form) : decode_kernel_for<kBF16, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
