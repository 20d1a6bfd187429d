// Prefill attention by mma over caches of 8 bits, widened to bf16.
#include "kernels/attention/prefill_mma_kernel.cuh"

namespace mr::cuda::prefill {

template cudaError_t launch_mma<__nv_bfloat16, true>(const Params& p, int most, const Stream& on);

}  // namespace mr::cuda::prefill
