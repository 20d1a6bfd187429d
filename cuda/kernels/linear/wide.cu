// wide: the launches of the decode class's wgmma kernels.
#include "kernels/linear/wide.h"

#include <algorithm>

#if MR_HOPPER
#include <cuda.h>

#include "kernels/linear/cluster_launch.h"
#include "kernels/linear/terms.h"
#include "kernels/linear/wide_rings.cuh"
#endif

namespace mr::cuda {

#if MR_HOPPER
namespace {

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

// How a kernel takes the tiles of a product: `rounds` of them a cluster, 0 where it does not run here.
struct WideRun {
  const PreparedWide* wide;
  int32_t token_tiles;
  int64_t items, rounds;
  bool given = false;

  int64_t time() const { return rounds == 0 ? INT64_MAX : rounds * (kWidePanels * kPanelRows + wide->kernel.tokens); }
};

WideRun run_of(const PreparedWide& wide, int32_t tiles, int32_t tokens) {
  if (wide.clusters == 0) return {&wide, 0, 0, 0};
  const int32_t token_tiles = (tokens + wide.kernel.tokens - 1) / wide.kernel.tokens;
  const int64_t items = int64_t{tiles} * token_tiles;
  return {&wide, token_tiles, items, (items + wide.clusters - 1) / wide.clusters};
}

WideRun choose(int32_t device, const ProductArgs& args, int32_t first, int32_t tiles) {
  const auto& forms = prepared[device][weight_format_index(args.targets[first].weight.type)][static_cast<int32_t>(args.act)];
  const int32_t form = args.tokens <= 8 ? 0 : args.tokens <= 16 ? 1 : args.tokens <= 32 ? 2 : 3;
  const WideRun usual = run_of(forms[form], tiles, args.tokens);
  if (args.tokens <= 64) return usual;
  // A kernel more in front costs some 4 us, which a second tile of the same tokens' sums repays.
  if (forms[kWideGiven].clusters > 0 && args.terms != nullptr) {
    WideRun run = run_of(forms[kWideGiven], tiles, args.tokens);
    run.given = true;
    return run;
  }
  const WideRun at_once = run_of(forms[kWideSingle], tiles, args.tokens);
  return at_once.rounds == 1 && at_once.time() < usual.time() ? at_once : usual;
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
        const cudaError_t error = prepare_clusters(out.kernel, kWideCluster, &out.clusters);
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

bool wide_available(int32_t device, int32_t type, Act act) {
  return prepared[device][weight_format_index(type)][static_cast<int32_t>(act)][0].clusters > 0;
}

int64_t wide_time(int32_t device, const ProductArgs& args, int32_t first, int32_t last) {
  return choose(device, args, first, prefill_params(args, first, last, kWidePanels).tiles).time();
}

cudaError_t launch_wide(int32_t device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on) {
  PrefillParams p = prefill_params(args, first, last, kWidePanels);
  const WideRun run = choose(device, args, first, p.tiles);
  if (run.rounds == 0) return cudaErrorNotSupported;
  if (run.items > INT32_MAX / 2) return cudaErrorInvalidValue;
  p.token_tiles = run.token_tiles;
  p.items = static_cast<int32_t>(run.items);
  p.item_stride = std::min(p.items, run.wide->clusters);
  const PackedWeight& weight = args.targets[first].weight;
  const int32_t tokens = run.wide->kernel.tokens;
  WideMaps maps{};
  cudaError_t error = map_tokens(args, tokens, &maps.tokens);
  if (error == cudaSuccess && run.given) {
    error = launch_terms({args.x, args.x_stride, args.tokens, static_cast<int32_t>(weight.cols), args.terms}, on);
    if (error == cudaSuccess) error = map_terms(args.terms, p.groups, args.tokens, tokens, &maps.terms);
  }
  if (error != cudaSuccess) return error;
  return ClusterLaunch(run.wide->kernel, p.item_stride, kWideCluster, on).run(p, maps);
}

#else

cudaError_t prepare_wide(int32_t) { return cudaSuccess; }
bool wide_available(int32_t, int32_t, Act) { return false; }
int64_t wide_time(int32_t, const ProductArgs&, int32_t, int32_t) { return INT64_MAX; }
cudaError_t launch_wide(int32_t, const ProductArgs&, int32_t, int32_t, const Stream&) { return cudaErrorNotSupported; }

#endif

}  // namespace mr::cuda
