// m128_wgmma: the launches of the decode class's wgmma kernels for many tokens.
#include "kernels/gemm/m128_wgmma.h"

#include <algorithm>

#include "kernels/gemm/skinny_wgmma.h"

#if MR_HOPPER
#include "kernels/gemm/cluster_launch.h"
#include "kernels/gemm/input_sums.h"
#include "kernels/gemm/m128_wgmma_reduction.cuh"
#include "kernels/gemm/round_times.h"
#endif

namespace mr::cuda {

#if MR_HOPPER
namespace {

PreparedClusters prepared[kMaxDevices][kWeightTypeCount][2][kM128Shares];

const PreparedClusters& prepared_of(M128Share share, int32_t device, const GemmArgs& args, int32_t first) {
  const int32_t type = weight_format_index(args.targets[first].weight.type);
  return prepared[device][type][static_cast<int32_t>(args.act)][static_cast<int32_t>(share)];
}

bool runs(const PreparedClusters& m128, const GemmArgs& args, int32_t first) {
  return m128.clusters > 0 && (!reads_input_sums(args.targets[first].weight.type) || args.input_sums != nullptr);
}

// Returns the clusters of tiles of a launch.
int64_t items_of(M128Share share, const GemmArgs& args, int64_t tiles) {
  const int64_t together = share == M128Share::kTokens ? kM128Cluster : 1;
  return (tiles + together - 1) / together * ((args.tokens + kM128Tokens - 1) / kM128Tokens);
}

// Estimates a launch as its rounds of tiles times round_times.h.
int64_t time_of(M128Share share, const PreparedClusters& m128, int32_t device, const GemmArgs& args, int32_t first, int64_t tiles) {
  if (!runs(m128, args, first)) return INT64_MAX;
  const int64_t rounds = (items_of(share, args, tiles) + m128.clusters - 1) / m128.clusters;
  const RoundKernel kernel = share == M128Share::kK ? RoundKernel::kHalfOfK : RoundKernel::kWholeOfK;
  return rounds * round_times(device).at(args.targets[first].weight.type, args.epilogue == Epilogue::kSwiGLU, kernel);
}

// M128Choice is the faster way to share, and its estimated time: INT64_MAX if no kernel runs.
struct M128Choice {
  M128Share share;
  int64_t time;
};

M128Choice choose(int32_t device, const GemmArgs& args, int32_t first, int32_t last) {
  const int64_t tiles = wgmma_params(args, first, last, kM128Panels).tiles;
  M128Choice best{M128Share::kK, INT64_MAX};
  for (int32_t i = 0; i < kM128Shares; ++i) {
    const M128Share share = static_cast<M128Share>(i);
    const int64_t time = time_of(share, prepared_of(share, device, args, first), device, args, first, tiles);
    if (time < best.time) best = {share, time};
  }
  return best;
}

}  // namespace

cudaError_t prepare_m128_wgmma(int32_t device) {
  if (!wgmma_available(device)) return cudaSuccess;
  return prepare_clusters(prepared[device], kM128Cluster, [](int32_t index, Act act, int32_t share) {
    return with_kernel_type(index, [&](auto type) { return m128_wgmma_kernel<type.value>(act, static_cast<M128Share>(share)); });
  });
}

int32_t m128_wgmma_clusters(M128Share share, int32_t device, int32_t type, Act act) {
  return prepared[device][weight_format_index(type)][static_cast<int32_t>(act)][static_cast<int32_t>(share)].clusters;
}

bool m128_wgmma_faster(int32_t device, const GemmArgs& args, int32_t first, int32_t last) {
  if (args.tokens <= 64) return false;
  const int64_t time = m128_wgmma_time(device, args, first, last);
  return time < INT64_MAX && time < skinny_wgmma_time(device, args, first, last);
}

int64_t m128_wgmma_time(int32_t device, const GemmArgs& args, int32_t first, int32_t last) {
  return choose(device, args, first, last).time;
}

cudaError_t launch_m128_wgmma(int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on) {
  return launch_m128_wgmma_as(choose(device, args, first, last).share, device, args, first, last, on);
}

cudaError_t launch_m128_wgmma_as(M128Share share, int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on) {
  const PreparedClusters& m128 = prepared_of(share, device, args, first);
  const int32_t type = args.targets[first].weight.type;
  if (!runs(m128, args, first)) return cudaErrorNotSupported;
  WgmmaParams p = wgmma_params(args, first, last, kM128Panels);
  p.token_tiles = (args.tokens + kM128Tokens - 1) / kM128Tokens;
  const int64_t items = items_of(share, args, p.tiles);
  if (items > INT32_MAX / 4) return cudaErrorInvalidValue;
  p.items = static_cast<int32_t>(items);
  p.item_stride = std::min(p.items, m128.clusters);
  const int32_t box = share == M128Share::kTokens ? kM128Tokens / kM128Cluster : kM128Tokens;  // tokens that a block loads
  M128Maps maps{};
  cudaError_t error = map_tokens(args, box, &maps.tokens);
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
    if (error == cudaSuccess) error = map_input_sums(args.input_sums, p.groups, args.tokens, box, &maps.input_sums);
  }
  return error == cudaSuccess ? ClusterLaunch(m128.kernel, p.item_stride, kM128Cluster, on).run(p, maps) : error;
}

#else

cudaError_t prepare_m128_wgmma(int32_t) { return cudaSuccess; }
int32_t m128_wgmma_clusters(M128Share, int32_t, int32_t, Act) { return 0; }
bool m128_wgmma_faster(int32_t, const GemmArgs&, int32_t, int32_t) { return false; }
int64_t m128_wgmma_time(int32_t, const GemmArgs&, int32_t, int32_t) { return INT64_MAX; }
cudaError_t launch_m128_wgmma(int32_t, const GemmArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }
cudaError_t launch_m128_wgmma_as(M128Share, int32_t, const GemmArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
