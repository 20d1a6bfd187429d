#include "src/activations.h"

#include <cmath>

namespace mr::cuda {
namespace {

constexpr float kLargestF16 = 65504;

// Quants of every type enter as f16 exactly; BF16 and F32 weights may pass its range.
bool suits_f16(const PackedWeight& weight) { return weight.type != kBF16 && weight.type != kF32; }

// A norm's outputs are bounded by its weights and the square root of the width.
bool suits_f16(const Shard& shard) {
  const float largest = std::sqrt(static_cast<float>(shard.desc().hidden)) * shard.largest_norm();
  if (!(largest < kLargestF16) || !suits_f16(shard.head())) return false;
  for (int32_t i = 0; i < shard.desc().layers; ++i) {
    const Layer& l = shard.layer(i);
    for (const PackedWeight* weight : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
      if (!suits_f16(*weight)) return false;
  }
  return true;
}

}  // namespace

Activations activations_of(const Shard& shard, const mr_runner_config& config) {
  const bool f16 = config.act_type != 0 ? config.act_type == MR_KV_F16 : suits_f16(shard);
  // Attention gives means of values; the products of gate and up are what passes 65 504 in real models. Divided by 64 they may
  // reach four million, and lose nothing above 2^-8.
  return {f16 ? Act::kF16 : Act::kBF16, f16 ? 64.0f : 1.0f};
}

}  // namespace mr::cuda
