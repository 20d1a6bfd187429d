#include "kernels/vectors/search_kernel.cuh"

namespace mr::cuda {

SearchKernel search_kernel_bf16(SearchPass pass, bool resident, bool hopper) {
  return resident ? search_kernel_for<__nv_bfloat16, true>(pass, hopper) : search_kernel_for<__nv_bfloat16, false>(pass, hopper);
}

}  // namespace mr::cuda
