// The decode class's kernel of Q4_K weights for many f16 tokens.
#include "kernels/linear/tall_quants_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel tall_quants_kernel<kQ4_K>() {
  return tall_quants_kernel_of<kQ4_K>();
}

}  // namespace mr::cuda
