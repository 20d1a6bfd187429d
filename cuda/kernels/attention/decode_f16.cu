// Decode attention over caches of f16.
#include "kernels/attention/decode_kernel.cuh"

namespace mr::cuda::decode {

template cudaError_t launch_cache<__half, false>(const Params& p, const Stream& on);

}  // namespace mr::cuda::decode
