#include "kernels/vectors/search_half.cuh"
#include "kernels/vectors/search_kernel.cuh"

namespace mr::cuda {

SearchKernel search_kernel_f16(SearchPass pass, bool resident, bool hopper, bool pieces, int32_t compared) {
#if MR_HOPPER
  if (hopper && resident && pieces && pass != SearchPass::kSettle) {
    const void* const kernel =
        compared == 8 ? reinterpret_cast<const void*>(&search_half<8>) : reinterpret_cast<const void*>(&search_half<4>);
    return {kernel, kSearchThreads + 128};
  }
#endif
  (void)pieces;
  (void)compared;
  return resident ? search_kernel_for<__half, true>(pass, hopper) : search_kernel_for<__half, false>(pass, hopper);
}

}  // namespace mr::cuda
