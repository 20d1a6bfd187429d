// attention/prefill_wgmma: prefill attention by wgmma, for devices and caches that support it.
#pragma once

#include "kernels/attention/prefill_params.cuh"

namespace mr::cuda::prefill {

// Returns whether launch_wgmma supports a layout on the current device. It depends on the device and the head width.
cudaError_t wgmma_supports(const KvLayout& layout, bool* supported);

// Launches the items of p, without merges.
cudaError_t launch_wgmma(const Params& p, const Stream& on);
cudaError_t launch_wgmma_f8(const Params& p, const Stream& on);  // the same, for a cache of 8 bits without p.args.wide

}  // namespace mr::cuda::prefill
