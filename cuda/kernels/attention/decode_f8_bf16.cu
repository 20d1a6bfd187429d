// Decode attention over caches of 8 bits, widened to bf16.
#include "kernels/attention/decode_kernel.cuh"

namespace mr::cuda::decode {

template cudaError_t launch_cache<__nv_bfloat16, true>(const Params& p, const Stream& on);

}  // namespace mr::cuda::decode
