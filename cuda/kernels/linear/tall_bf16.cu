// The decode class's kernels of BF16 weights for many tokens.
#include "kernels/linear/tall_kernel.cuh"

namespace mr::cuda {

PrefillKernel tall_kernel_bf16() { return tall_kernel_for<__nv_bfloat16>(); }

}  // namespace mr::cuda
