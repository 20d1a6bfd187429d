// attention/prefill_wgmma: prefill attention by wgmma, for devices and caches that support it.
#pragma once

#include "kernels/attention/prefill_params.cuh"

namespace mr::cuda::prefill {

// Returns the width of the kernel that computes heads of a width of pad_head_dim: 64, 128 or 256; 0 if none does. It takes the dims that
// heads lack as zeros.
constexpr int32_t wgmma_width(int32_t padded_dim) {
  return padded_dim < 64 || padded_dim > 256 ? 0 : padded_dim == 64 ? 64 : padded_dim <= 128 ? 128 : 256;
}

// Returns whether launch_wgmma supports a layout on the current device. It depends on the device and the head width.
cudaError_t wgmma_supports(const KvLayout& layout, bool* supported);

// Launches the items of p, without merges.
cudaError_t launch_wgmma(const Params& p, const Stream& on);
cudaError_t launch_wgmma_f8(const Params& p, const Stream& on);  // the same, for a cache of 8 bits without p.args.wide

}  // namespace mr::cuda::prefill
