#include "kernels/attention/prefill_wgmma.h"

#include <algorithm>

#include "kernels/attention/mma.cuh"
#include "kernels/attention/prefill_wgmma_kernel.cuh"

namespace mr::cuda::prefill {

#if MR_HOPPER

namespace {

template <class T, int32_t dim>
cudaError_t run(const Params& p, const CacheMaps& maps, const Stream& on) {
  constexpr int32_t kBytes = UnitLayout<dim>::bytes;
  const cudaError_t error = reserve_shared(prefill_attention_wgmma<T, dim>, kBytes);
  if (error != cudaSuccess) return error;
  const int64_t units = int64_t{p.args.item_count} * p.columns();
  if (units > INT32_MAX / 2) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(units, p.args.sm_count)));
  return launch(on, grid, dim3(kBlockThreads), kBytes, prefill_attention_wgmma<T, dim>, p, maps);
}

}  // namespace

cudaError_t wgmma_supports(const KvLayout& layout, bool* supported) {
  *supported = false;
  if (layout.kv != Kv::kAct || (layout.padded_dim != 64 && layout.padded_dim != 128 && layout.padded_dim != 256)) return cudaSuccess;
  int major = 0, minor = 0;
  cudaError_t error = device_attribute(cudaDevAttrComputeCapabilityMajor, &major);
  if (error == cudaSuccess) error = device_attribute(cudaDevAttrComputeCapabilityMinor, &minor);
  *supported = major == 9 && minor == 0;
  return error;
}

cudaError_t launch_wgmma(const Params& p, const Stream& on) {
  const AttentionArgs& c = p.args.common;
  CacheMaps maps;
  cudaError_t error = map_cache(c.layout, c.keys, &maps.keys);
  if (error == cudaSuccess) error = map_cache(c.layout, c.values, &maps.values);
  if (error != cudaSuccess) return error;
  return with_act(c.layout.act, [&](auto element) {
    typedef decltype(element) T;
    switch (c.layout.padded_dim) {
      case 64: return run<T, 64>(p, maps, on);
      case 128: return run<T, 128>(p, maps, on);
      default: return run<T, 256>(p, maps, on);
    }
  });
}

#else

cudaError_t wgmma_supports(const KvLayout&, bool* supported) {
  *supported = false;
  return cudaSuccess;
}
cudaError_t launch_wgmma(const Params&, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda::prefill
