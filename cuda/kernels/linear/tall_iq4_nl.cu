// The decode class's kernel of IQ4_NL weights for many f16 tokens.
#include "kernels/linear/tall_quants_kernel.cuh"

namespace mr::cuda {

template <>
PrefillKernel tall_quants_kernel<kIQ4_NL>() {
  return tall_quants_kernel_of<kIQ4_NL>();
}

}  // namespace mr::cuda
