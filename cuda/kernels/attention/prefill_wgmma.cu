#include "kernels/attention/prefill_wgmma.h"

#include "kernels/attention/prefill_wgmma_launch.cuh"

namespace mr::cuda::prefill {

#if MR_HOPPER

cudaError_t wgmma_supports(const KvLayout& layout, bool* supported) {
  *supported = false;
  if (wgmma_width(layout.padded_dim) == 0) return cudaSuccess;
  int major = 0, minor = 0;
  cudaError_t error = device_attribute(cudaDevAttrComputeCapabilityMajor, &major);
  if (error == cudaSuccess) error = device_attribute(cudaDevAttrComputeCapabilityMinor, &minor);
  *supported = major == 9 && minor == 0;
  return error;
}

cudaError_t launch_wgmma(const Params& p, const Stream& on) {
  const AttentionArgs& c = p.args.common;
  KvLayout layout = c.layout;
  const void *keys = c.keys, *values = c.values;
  if (p.args.wide.memory != nullptr) {
    layout.kv = Kv::kAct;
    const WidePlanes planes(layout, p.args.wide);
    keys = planes.keys, values = planes.values;
  }
  if (layout.kv == Kv::kF8) return launch_wgmma_f8(p, on);
  CacheMaps maps;
  cudaError_t error = map_cache(layout, keys, &maps.keys);
  if (error == cudaSuccess) error = map_cache(layout, values, &maps.values);
  return error == cudaSuccess ? launch_any<false>(p, maps, on) : error;
}

#else

cudaError_t wgmma_supports(const KvLayout&, bool* supported) {
  *supported = false;
  return cudaSuccess;
}
cudaError_t launch_wgmma(const Params&, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda::prefill
