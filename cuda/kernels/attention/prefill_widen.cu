#include "kernels/attention/prefill_widen.cuh"

#include "kernels/attention/prefill_wgmma.h"

namespace mr::cuda {

#if MR_HOPPER

cudaError_t launch_prefill_widen(const PrefillWidenArgs& args, const Stream& on) {
  using namespace prefill;
  bool supported = false;
  const cudaError_t error = wgmma_supports(args.layout, &supported);
  if (error != cudaSuccess) return error;
  if (!supported || args.layout.kv != Kv::kF8 || args.span_count < 1 || args.block_count > args.wide.blocks) return cudaErrorInvalidValue;
  const WidePlanes planes(args.layout, args.wide);
  const WidenParams p(args, planes);
  return with_act(args.layout.act, [&](auto element) {
    const dim3 grid(static_cast<unsigned>(args.block_count), kWidenPlanes);
    return launch(on, grid, dim3(kWidenThreads), 0, widen_blocks<decltype(element)>, p);
  });
}

#else

cudaError_t launch_prefill_widen(const PrefillWidenArgs&, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
