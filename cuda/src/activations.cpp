#include "src/activations.h"

#include <cmath>

namespace mr::cuda {
namespace {

constexpr float kLargestF16 = 65504;

// Quants of every type enter as f16 exactly; BF16 and F32 weights may pass its range.
bool suits_f16(const PackedWeight& weight) { return weight.data == nullptr || (weight.type != kBF16 && weight.type != kF32); }

// A norm's outputs are bounded by its weights and the square root of the width. What enters a product without a norm is not.
bool suits_f16(const Shard& shard) {
  const Description& d = shard.desc();
  const float largest = std::sqrt(static_cast<float>(d.hidden)) * shard.largest_norm();
  if (!(largest < kLargestF16) || !suits_f16(shard.head()) || d.layer_input_width != 0) return false;
  for (int32_t i = 0; i < d.layer_count(); ++i) {
    if ((d.mixer(i).flags & MR_MIX_NO_NORM) != 0 || (d.mlp(i).flags & MR_MLP_NO_NORM) != 0) return false;
    const Layer& l = shard.layer(i);
    for (const PackedWeight* weight : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &l.expert_gate, &l.expert_up, &l.expert_down,
                                       &l.shared_gate, &l.shared_up, &l.shared_down})
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
