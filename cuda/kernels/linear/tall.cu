// tall: the launches of the decode class's wgmma kernels of float weights for many tokens.
#include "kernels/linear/tall.h"

#include <algorithm>

#include "kernels/linear/tall_kernel.cuh"
#include "kernels/linear/wide.h"

#if MR_HOPPER
#include "kernels/linear/cluster_launch.h"
#endif

namespace mr::cuda {

#if MR_HOPPER
namespace {

constexpr int32_t kMaxDevices = 64;

struct PreparedTall {
  PrefillKernel kernel;
  int32_t clusters;  // at once; 0: not here
};

PreparedTall prepared[kMaxDevices][2];  // by Act, which is the weights' type too

}  // namespace

cudaError_t prepare_tall(int32_t device) {
  if (!prefill_available(device)) return cudaSuccess;
  for (int32_t a = 0; a < 2; ++a) {
    PreparedTall& out = prepared[device][a];
    out = {static_cast<Act>(a) == Act::kF16 ? tall_kernel_f16() : tall_kernel_bf16(), 0};
    const cudaError_t error = prepare_clusters(out.kernel, kTallCluster, &out.clusters);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

bool tall_faster(int32_t device, const ProductArgs& args, int32_t first, int32_t last) {
  const int32_t clusters = prepared[device][static_cast<int32_t>(args.act)].clusters;
  const int32_t type = args.targets[first].weight.type;
  if (type != (args.act == Act::kF16 ? kF16 : kBF16) || args.tokens <= 64 || clusters == 0) return false;
  const int64_t tiles = prefill_params(args, first, last, kTallPanels).tiles;
  const int64_t items = tiles * ((args.tokens + kTallTokens - 1) / kTallTokens);
  return (items + clusters - 1) / clusters * (kTallPanels * kPanelRows + kTallTokens) < wide_time(device, args, first, last);
}

cudaError_t launch_tall(int32_t device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on) {
  const PreparedTall& tall = prepared[device][static_cast<int32_t>(args.act)];
  if (tall.clusters == 0) return cudaErrorNotSupported;
  PrefillParams p = prefill_params(args, first, last, kTallPanels);
  p.token_tiles = (args.tokens + tall.kernel.tokens - 1) / tall.kernel.tokens;
  if (int64_t{p.tiles} * p.token_tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
  p.items = p.tiles * p.token_tiles;
  p.item_stride = std::min(p.items, tall.clusters);
  TallMaps maps;
  cudaError_t error = map_tokens(args, tall.kernel.tokens, &maps.tokens);
  for (int32_t i = 0; i < p.count && error == cudaSuccess; ++i) error = map_panels(p.targets[i], p.panel_bytes, &maps.weights[i]);
  if (error != cudaSuccess) return error;
  return ClusterLaunch(tall.kernel, p.item_stride, kTallCluster, on).run(p, maps);
}

#else

cudaError_t prepare_tall(int32_t) { return cudaSuccess; }
bool tall_faster(int32_t, const ProductArgs&, int32_t, int32_t) { return false; }
cudaError_t launch_tall(int32_t, const ProductArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
