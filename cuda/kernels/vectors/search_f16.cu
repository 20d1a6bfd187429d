#include "kernels/vectors/search_kernel.cuh"

namespace mr::cuda {

SearchKernel search_kernel_f16(SearchPass pass, bool resident, bool hopper) {
  return resident ? search_kernel_for<__half, true>(pass, hopper) : search_kernel_for<__half, false>(pass, hopper);
}

}  // namespace mr::cuda
