// prefill_widen, and prefill_wgmma over the blocks that it has widened.
#include "kernels/attention/prefill_wgmma.h"
#include "kernels/attention/prefill_wgmma_launch.cuh"
#include "kernels/attention/prefill_widen.cuh"

namespace mr::cuda {

#if MR_HOPPER

cudaError_t prefill::launch_wgmma_wide(const Params& p, const Stream& on) {
  KvLayout wide = p.args.common.layout;
  wide.kv = Kv::kAct;
  const WidePlanes planes(wide, p.args.wide);
  Params with = p;
  with.wide_scales = planes.scales;
  CacheMaps maps;
  cudaError_t error = map_cache(wide, planes.keys, &maps.keys);
  if (error == cudaSuccess) error = map_cache(wide, planes.values, &maps.values);
  return error == cudaSuccess ? launch_any<Source::kWide>(with, maps, on) : error;
}

cudaError_t launch_prefill_widen(const PrefillWidenArgs& args, const Stream& on) {
  using namespace prefill;
  bool supported = false;
  const cudaError_t error = wgmma_supports(args.layout, &supported);
  if (error != cudaSuccess) return error;
  if (!supported || args.layout.kv != Kv::kF8 || args.span_count < 1 || args.block_count > args.wide.blocks) return cudaErrorInvalidValue;
  const WidePlanes planes(args.layout, args.wide);
  WidenParams p{args, reinterpret_cast<uint4*>(planes.keys), reinterpret_cast<uint4*>(planes.values), planes.scales, 3};
  while (8 << p.row_shift < args.layout.padded_dim) ++p.row_shift;
  return with_act(args.layout.act, [&](auto element) {
    const dim3 grid(static_cast<unsigned>(args.block_count), kWidenPlanes);
    return launch(on, grid, dim3(kWidenThreads), 0, widen_blocks<decltype(element)>, p);
  });
}

#else

cudaError_t prefill::launch_wgmma_wide(const Params&, const Stream&) { return cudaErrorNotSupported; }
cudaError_t launch_prefill_widen(const PrefillWidenArgs&, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
