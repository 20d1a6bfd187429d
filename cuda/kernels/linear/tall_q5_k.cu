// The decode class's kernel of Q5_K weights for many f16 tokens.
#include "kernels/linear/tall_quants_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel tall_quants_kernel<kQ5_K>() {
  return tall_quants_kernel_of<kQ5_K>();
}

}  // namespace mr::cuda
