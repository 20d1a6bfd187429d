// wide: the launches of the decode class's wgmma kernels.
#include "kernels/linear/wide.h"

#include <algorithm>

#if MR_HOPPER
#include <cuda.h>
#endif

namespace mr::cuda {

#if MR_HOPPER
namespace {

constexpr int32_t kMaxDevices = 64;

struct PreparedWide {
  PrefillKernel kernel;
  int32_t clusters;  // at once; 0: not here
};

PreparedWide prepared[kMaxDevices][kWeightTypeCount][2][kWideForms];

template <int32_t i = 0>
PrefillKernel find_kernel(int32_t type_index, Act act, int32_t form) {
  if constexpr (i < kWeightTypeCount) {
    return i == type_index ? wide_kernel<kWeightFormats[i].type>(act, form) : find_kernel<i + 1>(type_index, act, form);
  } else {
    return {};
  }
}

// The launch of `clusters` clusters; attributes has room for two.
cudaLaunchConfig_t launch_config(const PrefillKernel& kernel, int32_t clusters, const Stream& on, cudaLaunchAttribute* attributes) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters * kWideCluster));
  config.blockDim = dim3(static_cast<unsigned>(kernel.threads));
  config.dynamicSmemBytes = static_cast<size_t>(kernel.shared_bytes);
  config.stream = on.stream;
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {kWideCluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = on.dependent ? 2 : 1;
  return config;
}

}  // namespace

cudaError_t prepare_wide(int32_t device) {
  if (!prefill_available(device)) return cudaSuccess;
  for (int32_t t = 0; t < kWeightTypeCount; ++t) {
    for (int32_t a = 0; a < 2; ++a) {
      for (int32_t form = 0; form < kWideForms; ++form) {
        PreparedWide& out = prepared[device][t][a][form];
        out = {find_kernel(t, static_cast<Act>(a), form), 0};
        if (out.kernel.function == nullptr) continue;
        cudaError_t error = cudaFuncSetAttribute(out.kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, out.kernel.shared_bytes);
        if (error != cudaSuccess) return error;
        cudaLaunchAttribute attributes[2] = {};
        const cudaLaunchConfig_t config = launch_config(out.kernel, 1, Stream{}, attributes);
        error = cudaOccupancyMaxActiveClusters(&out.clusters, out.kernel.function, &config);
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

bool wide_available(int32_t device, int32_t type, Act act) {
  return prepared[device][weight_format_index(type)][static_cast<int32_t>(act)][0].clusters > 0;
}

cudaError_t launch_wide(int32_t device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on) {
  const int32_t form = args.tokens <= 8 ? 0 : args.tokens <= 16 ? 1 : args.tokens <= 32 ? 2 : 3;
  const int32_t type = weight_format_index(args.targets[first].weight.type);
  const PreparedWide& wide = prepared[device][type][static_cast<int32_t>(args.act)][form];
  PrefillParams p = prefill_params(args, first, last, kWidePanels);
  p.token_tiles = (args.tokens + wide.kernel.tokens - 1) / wide.kernel.tokens;
  if (int64_t{p.tiles} * p.token_tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
  p.items = p.tiles * p.token_tiles;
  p.item_stride = std::min(p.items, wide.clusters);
  CUtensorMap map;
  const cudaError_t error = map_tokens(args, wide.kernel.tokens, &map);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = launch_config(wide.kernel, p.item_stride, on, attributes);
  void* arguments[] = {&p, &map};
  return cudaLaunchKernelExC(&config, wide.kernel.function, arguments);
}

#else

cudaError_t prepare_wide(int32_t) { return cudaSuccess; }
bool wide_available(int32_t, int32_t, Act) { return false; }
cudaError_t launch_wide(int32_t, const ProductArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
