// prefill_wgmma for caches of 8 bits whose blocks are not widened ahead.
#include "kernels/attention/prefill_wgmma.h"
#include "kernels/attention/prefill_wgmma_launch.cuh"

namespace mr::cuda::prefill {

#if MR_HOPPER
cudaError_t launch_wgmma_f8(const Params& p, const Stream& on) { return launch_any<true>(p, CacheMaps{}, on); }
#else
cudaError_t launch_wgmma_f8(const Params&, const Stream&) { return cudaErrorNotSupported; }
#endif

}  // namespace mr::cuda::prefill
