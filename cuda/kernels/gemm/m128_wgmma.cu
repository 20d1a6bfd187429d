// m128_wgmma: the launches of the decode class's wgmma kernels for many tokens.
#include "kernels/gemm/m128_wgmma.h"

#include <algorithm>

#include "kernels/gemm/m128_wgmma_kernel.cuh"
#include "kernels/gemm/m128_wgmma_quant_pipeline.cuh"
#include "kernels/gemm/skinny_wgmma.h"

#if MR_HOPPER
#include "kernels/gemm/cluster_launch.h"
#endif

namespace mr::cuda {

#if MR_HOPPER
namespace {

struct PreparedM128 {
  WgmmaKernel kernel;
  int32_t clusters;  // clusters that the device holds at once; 0: the kernel does not run here
};

PreparedM128 prepared[kMaxDevices][kWeightTypeCount][2];

template <int32_t i = 0>
WgmmaKernel find_quants_kernel(int32_t type) {
  if constexpr (i < kWeightTypeCount) {
    constexpr int32_t T = kWeightFormats[i].type;
    if constexpr (quantised(T)) {
      if (T == type) return m128_wgmma_quant_kernel<kernel_type(T)>();
    }
    return find_quants_kernel<i + 1>(type);
  } else {
    return {};
  }
}

// Returns the kernel for a weight type, or null.
WgmmaKernel find_kernel(int32_t type, Act act) {
  if (type == kF16 && act == Act::kF16) return m128_wgmma_kernel_f16();
  if (type == kBF16 && act == Act::kBF16) return m128_wgmma_kernel_bf16();
  return act == Act::kF16 ? find_quants_kernel(type) : WgmmaKernel{};
}

const PreparedM128& prepared_of(int32_t device, const GemmArgs& args, int32_t first) {
  return prepared[device][weight_format_index(args.targets[first].weight.type)][static_cast<int32_t>(args.act)];
}

// Estimates the rounds of tiles of a launch in the unit of skinny_wgmma_time, whose tiles have half the rows and half
// the tokens. Measured on one H200, 8B, 96 to 256 tokens: a round of 128 rows of weights that fold takes as long as 2.0
// to 3.2 skinny rounds (2.8 to 3.1 with kSwiGLU). Other quantised weights are taken to be alike.
int64_t m128_wgmma_time(const PreparedM128& m128, const GemmArgs& args, int32_t first, int32_t last) {
  const int32_t type = args.targets[first].weight.type;
  const int64_t tiles = wgmma_params(args, first, last, kM128Panels).tiles;
  const int64_t items = tiles * ((args.tokens + kM128Tokens - 1) / kM128Tokens), rounds = (items + m128.clusters - 1) / m128.clusters;
  constexpr int64_t kRound = kM128Panels * kPanelRows + kM128Tokens, kSkinnyRound = kRound / 2;
  if (!quantised(type)) return rounds * kRound;
  return rounds * kSkinnyRound * (args.epilogue == Epilogue::kSwiGLU ? 305 : 290) / 100;
}

}  // namespace

cudaError_t prepare_m128_wgmma(int32_t device) {
  if (!wgmma_available(device)) return cudaSuccess;
  for (int32_t t = 0; t < kWeightTypeCount; ++t) {
    for (int32_t a = 0; a < 2; ++a) {
      PreparedM128& out = prepared[device][t][a];
      out = {find_kernel(kWeightFormats[t].type, static_cast<Act>(a)), 0};
      if (out.kernel.function == nullptr) continue;
      const cudaError_t error = prepare_clusters(out.kernel, kM128Cluster, &out.clusters);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

bool m128_wgmma_faster(int32_t device, const GemmArgs& args, int32_t first, int32_t last) {
  const PreparedM128& m128 = prepared_of(device, args, first);
  if (args.tokens <= 64 || m128.clusters == 0) return false;
  if (reads_input_sums(args.targets[first].weight.type) && args.input_sums == nullptr) return false;
  return m128_wgmma_time(m128, args, first, last) < skinny_wgmma_time(device, args, first, last);
}

cudaError_t launch_m128_wgmma(int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on) {
  const PreparedM128& m128 = prepared_of(device, args, first);
  const int32_t type = args.targets[first].weight.type;
  if (m128.clusters == 0 || (reads_input_sums(type) && args.input_sums == nullptr)) return cudaErrorNotSupported;
  WgmmaParams p = wgmma_params(args, first, last, kM128Panels);
  p.token_tiles = (args.tokens + kM128Tokens - 1) / kM128Tokens;
  if (int64_t{p.tiles} * p.token_tiles > INT32_MAX / 2) return cudaErrorInvalidValue;
  p.items = p.tiles * p.token_tiles;
  p.item_stride = std::min(p.items, m128.clusters);
  const ClusterLaunch launch(m128.kernel, p.item_stride, kM128Cluster, on);
  cudaError_t error = cudaSuccess;
  if (!quantised(type)) {
    M128Maps maps;
    error = map_tokens(args, kM128Tokens, &maps.tokens);
    for (int32_t i = 0; i < p.count && error == cudaSuccess; ++i) error = map_panels(p.targets[i], p.panel_bytes, &maps.weights[i]);
    return error == cudaSuccess ? launch.run(p, maps) : error;
  }
  M128QuantMaps maps{};
  error = map_tokens(args, kM128Tokens, &maps.tokens);
  for (int32_t plane = 0; plane < kPrefillPlanes; ++plane) {
    const int32_t bytes = prefill_plane(kWeightFormats[weight_format_index(type)], plane);
    for (int32_t i = 0; i < p.count && bytes > 0 && error == cudaSuccess; ++i)
      error = map_panels(p.targets[i], p.panel_bytes, &maps.weights[i][plane], kM128Panels / 2, bytes);
  }
  if (error == cudaSuccess && reads_input_sums(type)) {
    if (!args.summed) {
      const int32_t cols = static_cast<int32_t>(args.targets[first].weight.cols);
      error = launch_input_sums({args.x, args.x_stride, args.tokens, cols, args.input_sums}, on);
      p.tokens_early = 1;
    }
    if (error == cudaSuccess) error = map_input_sums(args.input_sums, p.groups, args.tokens, kM128Tokens, &maps.input_sums);
  }
  return error == cudaSuccess ? launch.run(p, maps) : error;
}

#else

cudaError_t prepare_m128_wgmma(int32_t) { return cudaSuccess; }
bool m128_wgmma_faster(int32_t, const GemmArgs&, int32_t, int32_t) { return false; }
cudaError_t launch_m128_wgmma(int32_t, const GemmArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
