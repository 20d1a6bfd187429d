// attention/prefill_mma: prefill attention by mma, for every device, head width and cache type.
#pragma once

#include "kernels/attention/prefill_params.cuh"

namespace mr::cuda::prefill {

constexpr int kTileRows = 128;  // packed rows of one PrefillTile

// Launches the items of p, without merges, for caches of T, or of 8 bits that are widened to T. most: bytes of shared memory that
// a block may have. Each has a source of its own, because nvcc compiles sources in parallel.
template <class T, bool kF8>
cudaError_t launch_mma(const Params& p, int most, const Stream& on);

}  // namespace mr::cuda::prefill
