// Decode attention over caches of 8 bits, widened to f16.
#include "kernels/attention/decode_kernel.cuh"

namespace mr::cuda::decode {

template cudaError_t launch_cache<__half, true>(const Params& p, const Stream& on);

}  // namespace mr::cuda::decode
