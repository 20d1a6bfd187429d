// The decode class's kernels of F16 weights for many tokens.
#include "kernels/linear/tall_kernel.cuh"

namespace mr::cuda {

PrefillKernel tall_kernel_f16() { return tall_kernel_for<__half>(); }

}  // namespace mr::cuda
