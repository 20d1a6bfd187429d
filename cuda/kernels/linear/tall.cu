// tall: the launches of the decode class's wgmma kernels of float weights for many tokens.
#include "kernels/linear/tall.h"

#include <algorithm>

#include "kernels/linear/tall_kernel.cuh"
#include "kernels/linear/wide.h"

namespace mr::cuda {

#if MR_HOPPER
namespace {

constexpr int32_t kMaxDevices = 64;

struct PreparedTall {
  PrefillKernel kernel;
  int32_t clusters;  // at once; 0: not here
};

PreparedTall prepared[kMaxDevices][2];  // by Act, which is the weights' type too

// The launch of `clusters` clusters; attributes has room for two.
cudaLaunchConfig_t launch_config(const PrefillKernel& kernel, int32_t clusters, const Stream& on,
                                 cudaLaunchAttribute* attributes) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * kTallCluster));
  config.blockDim = dim3(static_cast<unsigned>(kernel.threads));
  config.dynamicSmemBytes = static_cast<size_t>(kernel.shared_bytes);
  config.stream = on.stream;
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kTallCluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = on.dependent ? 2 : 1;
  return config;
}

}  // namespace

cudaError_t prepare_tall(int32_t device) {
  if (!prefill_available(device)) return cudaSuccess;
  for (int32_t a = 0; a < 2; ++a) {
    PreparedTall& out = prepared[device][a];
    out = {static_cast<Act>(a) == Act::kF16 ? tall_kernel_f16() : tall_kernel_bf16(), 0};
    const PrefillKernel& kernel = out.kernel;
    cudaError_t error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attributes[2] = {};
    const cudaLaunchConfig_t config = launch_config(kernel, 1, Stream{}, attributes);
    error = cudaOccupancyMaxActiveClusters(&out.clusters, kernel.function, &config);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

bool tall_faster(int32_t device, const ProductArgs& args, int32_t first, int32_t last) {
  const int32_t clusters = prepared[device][static_cast<int32_t>(args.act)].clusters;
  const int32_t type = args.targets[first].weight.type;
  if (type != (args.act == Act::kF16 ? kF16 : kBF16) || args.tokens <= 64 || clusters == 0) return false;
  // Both run as many clusters at once; a block of a tall tile has twice the columns.
  const auto rounds = [&](int32_t panels, int32_t tokens) {
    const int64_t items = int64_t{prefill_params(args, first, last, panels).tiles} * ((args.tokens + tokens - 1) / tokens);
    return (items + clusters - 1) / clusters;
  };
  return rounds(kTallPanels, kTallTokens) * 2 < rounds(kWidePanels, 64);
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
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = launch_config(tall.kernel, p.item_stride, on, attributes);
  void* arguments[] = {&p, &maps};
  return cudaLaunchKernelExC(&config, tall.kernel.function, arguments);
}

#else

cudaError_t prepare_tall(int32_t) { return cudaSuccess; }
bool tall_faster(int32_t, const ProductArgs&, int32_t, int32_t) { return false; }
cudaError_t launch_tall(int32_t, const ProductArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
