// The decode class's kernel of Q8_0 weights for many f16 tokens.
#include "kernels/linear/tall_quants_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel tall_quants_kernel<kQ8_0>() {
  return tall_quants_kernel_of<kQ8_0>();
}

}  // namespace mr::cuda
