// attention_prefill_wgmma: prefill attention by Hopper's matrix products, where the device and the cache are of that kind.
#pragma once

#include "kernels/attention_prefill_params.cuh"

namespace mr::cuda::prefill {

// Whether launch_wgmma computes a layout's attention on the current device: a matter of the device, the elements and the head's width.
cudaError_t wgmma_takes(const KvLayout& layout, bool* takes);

// The items of p, without merges.
cudaError_t launch_wgmma(const Params& p, const Stream& on);

}  // namespace mr::cuda::prefill
