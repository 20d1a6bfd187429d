// The decode kernels of F32 weights.
#include "kernels/linear/decode_kernel.cuh"

namespace mr::cuda {

template <>
DecodeKernel decode_kernel<kF32>(Act act, DecodeForm form) {
  return act == Act::kF16 ? decode_kernel_for<kF32, __half>(form) : decode_kernel_for<kF32, __nv_bfloat16>(form);
}

}  // namespace mr::cuda
