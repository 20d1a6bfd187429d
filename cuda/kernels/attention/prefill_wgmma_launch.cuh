// attention/prefill_wgmma_launch: launches prefill_wgmma for keys and values of 16 or 8 bits. Each has a source of its own, because nvcc
// compiles sources side by side, and six of these kernels take half a minute.
#pragma once

#include <algorithm>

#include "kernels/attention/mma.cuh"
#include "kernels/attention/prefill_wgmma_kernel.cuh"

namespace mr::cuda::prefill {

template <class T, int32_t dim, bool f8>
cudaError_t launch_dim(const Params& p, const CacheMaps& maps, const Stream& on) {
  constexpr int32_t kBytes = f8 ? UnitLayout<dim>::f8_bytes : UnitLayout<dim>::bytes;
  const cudaError_t error = reserve_shared(prefill_attention_wgmma<T, dim, f8>, kBytes);
  if (error != cudaSuccess) return error;
  const int64_t units = int64_t{p.args.item_count} * p.columns();
  if (units > INT32_MAX / 2) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(units, p.args.sm_count)));
  return launch(on, grid, dim3(kBlockThreads), kBytes, prefill_attention_wgmma<T, dim, f8>, p, maps);
}

template <bool f8>
cudaError_t launch_any(const Params& p, const CacheMaps& maps, const Stream& on) {
  const KvLayout& layout = p.args.common.layout;
  return with_act(layout.act, [&](auto element) {
    typedef decltype(element) T;
    switch (wgmma_width(layout.padded_dim)) {
      case 64: return launch_dim<T, 64, f8>(p, maps, on);
      case 128: return launch_dim<T, 128, f8>(p, maps, on);
      default: return launch_dim<T, 256, f8>(p, maps, on);
    }
  });
}

}  // namespace mr::cuda::prefill
