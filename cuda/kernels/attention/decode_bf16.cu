// Decode attention over caches of bf16.
#include "kernels/attention/decode_kernel.cuh"

namespace mr::cuda::decode {

template cudaError_t launch_cache<__nv_bfloat16, false>(const Params& p, const Stream& on);

}  // namespace mr::cuda::decode
