// skinny_wgmma: the launches of the decode class's wgmma kernels for up to 128 tokens.
#include "kernels/gemm/skinny_wgmma.h"

#include <algorithm>

#if MR_HOPPER
#include <cuda.h>

#include "kernels/gemm/cluster_launch.h"
#include "kernels/gemm/input_sums.h"
#include "kernels/gemm/skinny_wgmma_pipeline.cuh"
#endif

namespace mr::cuda {

#if MR_HOPPER
namespace {

PreparedClusters prepared[kMaxDevices][kWeightTypeCount][2][kSkinnyForms];

// SkinnyRun is how a kernel processes the tiles of a GEMM: in `rounds` of them for each cluster; 0 if it does not run
// here.
struct SkinnyRun {
  const PreparedClusters* kernel_at;
  int32_t token_tiles;
  int64_t items, rounds;
  bool with_sums = false;

  int64_t time() const { return rounds == 0 ? INT64_MAX : rounds * (kSkinnyPanels * kPanelRows + kernel_at->kernel.tokens); }
};

SkinnyRun run_of(const PreparedClusters& kernel_at, int32_t tiles, int32_t tokens) {
  if (kernel_at.clusters == 0) return {&kernel_at, 0, 0, 0};
  const int32_t token_tiles = (tokens + kernel_at.kernel.tokens - 1) / kernel_at.kernel.tokens;
  const int64_t items = int64_t{tiles} * token_tiles;
  return {&kernel_at, token_tiles, items, (items + kernel_at.clusters - 1) / kernel_at.clusters};
}

SkinnyRun choose(int32_t device, const GemmArgs& args, int32_t first, int32_t tiles) {
  const auto& forms = prepared[device][weight_format_index(args.targets[first].weight.type)][static_cast<int32_t>(args.act)];
  const int32_t form = args.tokens <= 8 && forms[0].clusters > 0 ? 0 : args.tokens <= 16 ? 1 : args.tokens <= 32 ? 2 : 3;
  const SkinnyRun usual = run_of(forms[form], tiles, args.tokens);
  if (args.tokens <= kMostUnsummed) return usual;
  // One more kernel in front costs about 4 us, which a second tile over the same token sums repays.
  if (forms[kSkinnyWithSums].clusters > 0 && args.input_sums != nullptr) {
    SkinnyRun run = run_of(forms[kSkinnyWithSums], tiles, args.tokens);
    run.with_sums = true;
    return run;
  }
  const SkinnyRun at_once = run_of(forms[kSkinnySingle], tiles, args.tokens);
  return at_once.rounds == 1 && at_once.time() < usual.time() ? at_once : usual;
}

}  // namespace

cudaError_t prepare_skinny_wgmma(int32_t device) {
  if (!wgmma_available(device)) return cudaSuccess;
  return prepare_clusters(prepared[device], kSkinnyCluster, [](int32_t index, Act act, int32_t form) {
    return with_kernel_type(index, [&](auto type) { return skinny_wgmma_kernel<type.value>(act, form); });
  });
}

bool skinny_wgmma_available(int32_t device, int32_t type, Act act) {
  return prepared[device][weight_format_index(type)][static_cast<int32_t>(act)][1].clusters > 0;
}

int64_t skinny_wgmma_time(int32_t device, const GemmArgs& args, int32_t first, int32_t last) {
  return choose(device, args, first, wgmma_params(args, first, last, kSkinnyPanels).tiles).time();
}

cudaError_t launch_skinny_wgmma(int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on) {
  WgmmaParams p = wgmma_params(args, first, last, kSkinnyPanels);
  const SkinnyRun run = choose(device, args, first, p.tiles);
  if (run.rounds == 0) return cudaErrorNotSupported;
  if (run.items > INT32_MAX / 2) return cudaErrorInvalidValue;
  p.token_tiles = run.token_tiles;
  p.items = static_cast<int32_t>(run.items);
  p.item_stride = std::min(p.items, run.kernel_at->clusters);
  const PackedWeight& weight = args.targets[first].weight;
  const int32_t tokens = run.kernel_at->kernel.tokens;
  SkinnyMaps maps{};
  cudaError_t error = map_tokens(args, tokens, &maps.tokens);
  if (error == cudaSuccess && run.with_sums) {
    const int32_t cols = static_cast<int32_t>(weight.cols);
    if (!args.summed) error = launch_input_sums({args.x, args.x_stride, args.tokens, cols, args.input_sums}, on);
    if (error == cudaSuccess) error = map_input_sums(args.input_sums, p.groups, args.tokens, tokens, &maps.input_sums);
  }
  if (error != cudaSuccess) return error;
  return ClusterLaunch(run.kernel_at->kernel, p.item_stride, kSkinnyCluster, on).run(p, maps);
}

#else

cudaError_t prepare_skinny_wgmma(int32_t) { return cudaSuccess; }
bool skinny_wgmma_available(int32_t, int32_t, Act) { return false; }
int64_t skinny_wgmma_time(int32_t, const GemmArgs&, int32_t, int32_t) { return INT64_MAX; }
cudaError_t launch_skinny_wgmma(int32_t, const GemmArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
