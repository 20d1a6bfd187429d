// tall: the launches of the decode class's wgmma kernels for many tokens.
#include "kernels/linear/tall.h"

#include <algorithm>

#include "kernels/linear/tall_kernel.cuh"
#include "kernels/linear/tall_quants_kernel.cuh"
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

PreparedTall prepared[kMaxDevices][kWeightTypeCount][2];  // by the weights' type and Act

// What runs for a type of weights, if anything does.
PreparedTall tall_of(int32_t type, Act act) {
  if (type == kF16 && act == Act::kF16) return {tall_kernel_f16(), 0};
  if (type == kBF16 && act == Act::kBF16) return {tall_kernel_bf16(), 0};
  if (act == Act::kF16) return {tall_quants_kernel(type), 0};
  return {};
}

const PreparedTall& prepared_of(int32_t device, const ProductArgs& args, int32_t first) {
  return prepared[device][weight_format_index(args.targets[first].weight.type)][static_cast<int32_t>(args.act)];
}

bool is_float(int32_t type) { return type == kF16 || type == kBF16; }
bool wants_terms(int32_t type) { return type == kQ4_K || type == kQ5_K; }

}  // namespace

cudaError_t prepare_tall(int32_t device) {
  if (!prefill_available(device)) return cudaSuccess;
  for (int32_t t = 0; t < kWeightTypeCount; ++t) {
    for (int32_t a = 0; a < 2; ++a) {
      PreparedTall& out = prepared[device][t][a];
      out = tall_of(kWeightFormats[t].type, static_cast<Act>(a));
      if (out.kernel.function == nullptr) continue;
      const cudaError_t error = prepare_clusters(out.kernel, kTallCluster, &out.clusters);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

bool tall_faster(int32_t device, const ProductArgs& args, int32_t first, int32_t last) {
  const PreparedTall& tall = prepared_of(device, args, first);
  const int32_t type = args.targets[first].weight.type;
  if (tall.clusters == 0 || args.tokens <= (is_float(type) ? 64 : 32) || (wants_terms(type) && args.terms == nullptr)) return false;
  if (!is_float(type)) return true;
  const int64_t tiles = prefill_params(args, first, last, kTallPanels).tiles;
  const int64_t items = tiles * ((args.tokens + kTallTokens - 1) / kTallTokens);
  return (items + tall.clusters - 1) / tall.clusters * (kTallPanels * kPanelRows + kTallTokens) < wide_time(device, args, first, last);
}

cudaError_t launch_tall(int32_t device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on) {
  const PreparedTall& tall = prepared_of(device, args, first);
  const int32_t type = args.targets[first].weight.type;
  if (tall.clusters == 0 || (wants_terms(type) && args.terms == nullptr)) return cudaErrorNotSupported;
  PrefillParams p = prefill_params(args, first, last, kTallPanels);
  p.token_tiles = (args.tokens + tall.kernel.tokens - 1) / tall.kernel.tokens;
  if (int64_t{p.tiles} * p.token_tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
  p.items = p.tiles * p.token_tiles;
  p.item_stride = std::min(p.items, tall.clusters);
  const ClusterLaunch launch(tall.kernel, p.item_stride, kTallCluster, on);
  if (is_float(type)) {
    TallMaps maps;
    cudaError_t error = map_tokens(args, kTallTokens, &maps.tokens);
    for (int32_t i = 0; i < p.count && error == cudaSuccess; ++i) error = map_panels(p.targets[i], p.panel_bytes, &maps.weights[i]);
    return error == cudaSuccess ? launch.run(p, maps) : error;
  }
  TallQuantsMaps maps{};
  const int32_t group = kWeightFormats[weight_format_index(type)].group_bytes();
  cudaError_t error = map_tokens(args, kTallQuantsTokens, &maps.tokens);
  for (int32_t i = 0; i < p.count && group <= 2048 && error == cudaSuccess; ++i)
    error = map_panels(p.targets[i], p.panel_bytes, &maps.weights[i], 4, group);
  if (error == cudaSuccess && wants_terms(type)) {
    error = launch_terms({args.x, args.x_stride, args.tokens, static_cast<int32_t>(args.targets[first].weight.cols), args.terms}, on);
    if (error == cudaSuccess) error = map_terms(args.terms, p.groups, args.tokens, kTallQuantsTokens, &maps.terms);
  }
  return error == cudaSuccess ? launch.run(p, maps) : error;
}

#else

cudaError_t prepare_tall(int32_t) { return cudaSuccess; }
bool tall_faster(int32_t, const ProductArgs&, int32_t, int32_t) { return false; }
cudaError_t launch_tall(int32_t, const ProductArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
