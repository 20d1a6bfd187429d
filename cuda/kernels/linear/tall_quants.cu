// The decode class's kernels of quantised weights for many tokens.
#include "kernels/linear/tall_quants_kernel.cuh"

namespace mr::cuda {

PrefillKernel tall_quants_kernel(int32_t type) {
  switch (type) {
    case kQ8_0: return tall_quants_kernel_of<kQ8_0>();
    case kQ4_0: return tall_quants_kernel_of<kQ4_0>();
    case kQ5_0: return tall_quants_kernel_of<kQ5_0>();
    case kIQ4_NL: return tall_quants_kernel_of<kIQ4_NL>();
    case kQ4_K: return tall_quants_kernel_of<kQ4_K>();
    case kQ5_K: return tall_quants_kernel_of<kQ5_K>();
    case kQ6_K: return tall_quants_kernel_of<kQ6_K>();
    default: return {};
  }
}

}  // namespace mr::cuda
