// tall: the launches of the decode class's wgmma kernels for many tokens.
#include "kernels/linear/tall.h"

#include <algorithm>

#include "kernels/linear/tall_kernel.cuh"
#include "kernels/linear/tall_quants_rings.cuh"
#include "kernels/linear/wide.h"

#if MR_HOPPER
#include "kernels/linear/cluster_launch.h"
#endif

namespace mr::cuda {

#if MR_HOPPER
namespace {

struct PreparedTall {
  PrefillKernel kernel;
  int32_t clusters;  // at once; 0: not here
};

PreparedTall prepared[kMaxDevices][kWeightTypeCount][2];

template <int32_t i = 0>
PrefillKernel find_quants_kernel(int32_t type) {
  if constexpr (i < kWeightTypeCount) {
    constexpr int32_t T = kWeightFormats[i].type;
    if constexpr (tall_quants(T)) {
      if (T == type) return tall_quants_kernel<T>();
    }
    return find_quants_kernel<i + 1>(type);
  } else {
    return {};
  }
}

// What runs for a type of weights, if anything does.
PrefillKernel find_kernel(int32_t type, Act act) {
  if (type == kF16 && act == Act::kF16) return tall_kernel_f16();
  if (type == kBF16 && act == Act::kBF16) return tall_kernel_bf16();
  return act == Act::kF16 ? find_quants_kernel(type) : PrefillKernel{};
}

const PreparedTall& prepared_of(int32_t device, const ProductArgs& args, int32_t first) {
  return prepared[device][weight_format_index(args.targets[first].weight.type)][static_cast<int32_t>(args.act)];
}

bool wants_terms(int32_t type) { return type == kQ4_K || type == kQ5_K; }

// A launch's rounds of tiles, as wide_time counts them. Tiles of wide.h have half of the rows and of the tokens. A tall round of quantised
// weights takes as long as some of theirs: on one H200, 8B, 96 to 256 tokens, 2.0 to 3.2, and 2.8 to 3.1 where it ends pairs, of types
// whose blocks fold and are scaled once in 256 inputs; 3.1 to 3.8 and 3.4 to 3.9 of the others
// (bench/results/2026-11-26-NVIDIA-H200/tall-quants.txt).
int64_t tall_time(const PreparedTall& tall, const ProductArgs& args, int32_t first, int32_t last) {
  const int32_t type = args.targets[first].weight.type;
  const int64_t tiles = prefill_params(args, first, last, kTallPanels).tiles;
  const int64_t items = tiles * ((args.tokens + kTallTokens - 1) / kTallTokens), rounds = (items + tall.clusters - 1) / tall.clusters;
  constexpr int64_t kRound = kTallPanels * kPanelRows + kTallTokens, kWideRound = kRound / 2;
  if (!tall_quants(type)) return rounds * kRound;
  const bool pair = args.end == ProductEnd::kSwiGLU;
  return rounds * kWideRound * (wants_terms(type) ? (pair ? 305 : 290) : (pair ? 370 : 340)) / 100;
}

}  // namespace

cudaError_t prepare_tall(int32_t device) {
  if (!prefill_available(device)) return cudaSuccess;
  for (int32_t t = 0; t < kWeightTypeCount; ++t) {
    for (int32_t a = 0; a < 2; ++a) {
      PreparedTall& out = prepared[device][t][a];
      out = {find_kernel(kWeightFormats[t].type, static_cast<Act>(a)), 0};
      if (out.kernel.function == nullptr) continue;
      const cudaError_t error = prepare_clusters(out.kernel, kTallCluster, &out.clusters);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

bool tall_faster(int32_t device, const ProductArgs& args, int32_t first, int32_t last) {
  const PreparedTall& tall = prepared_of(device, args, first);
  if (args.tokens <= 64 || tall.clusters == 0) return false;
  if (wants_terms(args.targets[first].weight.type) && args.terms == nullptr) return false;
  return tall_time(tall, args, first, last) < wide_time(device, args, first, last);
}

cudaError_t launch_tall(int32_t device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on) {
  const PreparedTall& tall = prepared_of(device, args, first);
  const int32_t type = args.targets[first].weight.type;
  if (tall.clusters == 0 || (wants_terms(type) && args.terms == nullptr)) return cudaErrorNotSupported;
  PrefillParams p = prefill_params(args, first, last, kTallPanels);
  p.token_tiles = (args.tokens + kTallTokens - 1) / kTallTokens;
  if (int64_t{p.tiles} * p.token_tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
  p.items = p.tiles * p.token_tiles;
  p.item_stride = std::min(p.items, tall.clusters);
  const ClusterLaunch launch(tall.kernel, p.item_stride, kTallCluster, on);
  cudaError_t error = cudaSuccess;
  if (!tall_quants(type)) {
    TallMaps maps;
    error = map_tokens(args, kTallTokens, &maps.tokens);
    for (int32_t i = 0; i < p.count && error == cudaSuccess; ++i) error = map_panels(p.targets[i], p.panel_bytes, &maps.weights[i]);
    return error == cudaSuccess ? launch.run(p, maps) : error;
  }
  TallQuantsMaps maps{};
  error = map_tokens(args, kTallTokens, &maps.tokens);
  for (int32_t plane = 0; plane < kPrefillPlanes; ++plane) {
    const int32_t bytes = prefill_plane(kWeightFormats[weight_format_index(type)], plane);
    for (int32_t i = 0; i < p.count && bytes > 0 && error == cudaSuccess; ++i)
      error = map_panels(p.targets[i], p.panel_bytes, &maps.weights[i][plane], kTallPanels / 2, bytes);
  }
  if (error == cudaSuccess && wants_terms(type)) {
    error = launch_terms({args.x, args.x_stride, args.tokens, static_cast<int32_t>(args.targets[first].weight.cols), args.terms}, on);
    if (error == cudaSuccess) error = map_terms(args.terms, p.groups, args.tokens, kTallTokens, &maps.terms);
  }
  return error == cudaSuccess ? launch.run(p, maps) : error;
}

#else

cudaError_t prepare_tall(int32_t) { return cudaSuccess; }
bool tall_faster(int32_t, const ProductArgs&, int32_t, int32_t) { return false; }
cudaError_t launch_tall(int32_t, const ProductArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
