#include "src/activations.h"

#include <algorithm>
#include <cmath>

namespace mr::cuda {
namespace {

constexpr double kLargestF16 = 65504;

// Returns the least power of two, at least 1, that brings the outputs of norms within f16's range. Weights that are not numbers
// fail every row, whatever the power.
float norm_scale(const Shard& shard) {
  int32_t widest = shard.desc().hidden;
  for (const mr_layer_desc& layer : shard.desc().layers) widest = std::max(widest, layer.mixer.query_latent);
  const double largest = std::sqrt(static_cast<double>(widest)) * static_cast<double>(shard.largest_norm());
  float scale = 1;
  while (std::isfinite(largest) && !(largest / static_cast<double>(scale) < kLargestF16)) scale *= 2;
  return scale;
}

}  // namespace

Activations::Activations(const Shard& shard, const mr_runner_config& config)
    : requested_(config.act_type), norm_scale_(norm_scale(shard)) {}

Act Activations::act_of(std::initializer_list<const PackedWeight*> matrices) const {
  bool all_f16 = true;
  for (const PackedWeight* matrix : matrices) {
    if (matrix->type < 0) continue;
    if (quantised(matrix->type)) return Act::kF16;
    all_f16 = all_f16 && matrix->type == kF16;
  }
  const bool f16 = requested_ != 0 ? requested_ == MR_KV_F16 : all_f16;
  return f16 ? Act::kF16 : Act::kBF16;
}

}  // namespace mr::cuda
