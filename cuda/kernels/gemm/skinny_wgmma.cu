// skinny_wgmma: the launches of the decode class's wgmma kernels for up to 128 tokens.
#include "kernels/gemm/skinny_wgmma.h"

#include <algorithm>

#if MR_HOPPER
#include <cuda.h>

#include "kernels/gemm/cluster_launch.h"
#include "kernels/gemm/input_sums.h"
#include "kernels/gemm/round_times.h"
#include "kernels/gemm/skinny_wgmma_pipeline.cuh"
#endif

namespace mr::cuda {

#if MR_HOPPER
namespace {

PreparedClusters prepared[kMaxDevices][kWeightTypeCount][2][kSkinnyForms];

// SkinnyRun is how a kernel processes the tiles of a GEMM: in `rounds` of them for each cluster; 0 if it does not run
// here.
struct SkinnyRun {
  int32_t form, token_tiles;
  int64_t items, rounds, time;
};

const PreparedClusters& prepared_of(int32_t form, int32_t device, const GemmArgs& args, int32_t first) {
  return prepared[device][weight_format_index(args.targets[first].weight.type)][static_cast<int32_t>(args.act)][form];
}

SkinnyRun run_of(int32_t form, int32_t device, const GemmArgs& args, int32_t first, int32_t tiles) {
  const PreparedClusters& skinny = prepared_of(form, device, args, first);
  if (skinny.clusters == 0 || (form == kSkinnyWithSums && args.input_sums == nullptr)) return {form, 0, 0, 0, INT64_MAX};
  const int32_t token_tiles = (args.tokens + skinny.kernel.tokens - 1) / skinny.kernel.tokens;
  const int64_t items = int64_t{tiles} * token_tiles, rounds = (items + skinny.clusters - 1) / skinny.clusters;
  const RoundKernel kernel = form == kSkinnySingle ? RoundKernel::kSkinnySingle : RoundKernel::kSkinny;
  const bool pair = args.epilogue == Epilogue::kSwiGLU;
  return {form, token_tiles, items, rounds, rounds * round_times(device).at(args.targets[first].weight.type, pair, kernel)};
}

SkinnyRun choose(int32_t device, const GemmArgs& args, int32_t first, int32_t tiles) {
  const bool eight = args.tokens <= 8 && prepared_of(0, device, args, first).clusters > 0;
  const int32_t form = eight ? 0 : args.tokens <= 16 ? 1 : args.tokens <= 32 ? 2 : kSkinnySixtyFour;
  const SkinnyRun usual = run_of(form, device, args, first, tiles);
  if (args.tokens <= kMostUnsummed) return usual;
  // One more kernel in front costs about 4 us, which a second tile over the same token sums repays.
  const SkinnyRun with_sums = run_of(kSkinnyWithSums, device, args, first, tiles);
  if (with_sums.rounds > 0) return with_sums;
  const SkinnyRun at_once = run_of(kSkinnySingle, device, args, first, tiles);
  return at_once.rounds == 1 && at_once.time < usual.time ? at_once : usual;
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
  return choose(device, args, first, wgmma_params(args, first, last, kSkinnyPanels).tiles).time;
}

int32_t skinny_wgmma_clusters(int32_t device, int32_t type, Act act, int32_t form) {
  return prepared[device][weight_format_index(type)][static_cast<int32_t>(act)][form].clusters;
}

cudaError_t launch_skinny_wgmma(int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on) {
  const int32_t form = choose(device, args, first, wgmma_params(args, first, last, kSkinnyPanels).tiles).form;
  return launch_skinny_wgmma_as(form, device, args, first, last, on);
}

cudaError_t launch_skinny_wgmma_as(int32_t form, int32_t device, const GemmArgs& args, int32_t first, int32_t last, const Stream& on) {
  WgmmaParams p = wgmma_params(args, first, last, kSkinnyPanels);
  const SkinnyRun run = run_of(form, device, args, first, p.tiles);
  const PreparedClusters& skinny = prepared_of(form, device, args, first);
  if (run.rounds == 0 || (form == kSkinnySingle && run.rounds > 1)) return cudaErrorNotSupported;
  if (run.items > INT32_MAX / 2) return cudaErrorInvalidValue;
  p.token_tiles = run.token_tiles;
  p.items = static_cast<int32_t>(run.items);
  p.item_stride = std::min(p.items, skinny.clusters);
  SkinnyMaps maps{};
  cudaError_t error = map_tokens(args, skinny.kernel.tokens, &maps.tokens);
  if (error == cudaSuccess && form == kSkinnyWithSums) {
    const int32_t cols = static_cast<int32_t>(args.targets[first].weight.cols);
    if (!args.summed) error = launch_input_sums({args.x, args.x_stride, args.tokens, cols, args.input_sums}, on);
    if (error == cudaSuccess) error = map_input_sums(args.input_sums, p.groups, args.tokens, skinny.kernel.tokens, &maps.input_sums);
  }
  if (error != cudaSuccess) return error;
  return ClusterLaunch(skinny.kernel, p.item_stride, kSkinnyCluster, on).run(p, maps);
}

#else

cudaError_t prepare_skinny_wgmma(int32_t) { return cudaSuccess; }
bool skinny_wgmma_available(int32_t, int32_t, Act) { return false; }
int64_t skinny_wgmma_time(int32_t, const GemmArgs&, int32_t, int32_t) { return INT64_MAX; }
cudaError_t launch_skinny_wgmma(int32_t, const GemmArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }
cudaError_t launch_skinny_wgmma_as(int32_t, int32_t, const GemmArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }
int32_t skinny_wgmma_clusters(int32_t, int32_t, Act, int32_t) { return 0; }

#endif

}  // namespace mr::cuda
