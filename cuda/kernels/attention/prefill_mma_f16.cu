// Prefill attention by mma over caches of f16.
#include "kernels/attention/prefill_mma_kernel.cuh"

namespace mr::cuda::prefill {

template cudaError_t launch_mma<__half, false>(const Params& p, int most, const Stream& on);

}  // namespace mr::cuda::prefill
