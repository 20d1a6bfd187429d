#include "src/step_bytes.h"

#include <algorithm>

#include "kernels/types.h"

namespace mr::cuda {
namespace {

uint64_t bytes_of(const PackedWeight& weight) {
  return weight.data == nullptr ? 0 : weight_packed_bytes(weight.type, weight.rows, weight.cols);
}

}  // namespace

uint64_t step_bytes(const Model& model, Kv kv, const StepPlan& plan) {
  if (plan.tokens.empty()) return 0;
  const Description& d = model.desc();
  uint64_t bytes = static_cast<uint64_t>(d.layer_count()) * 2 * sizeof(float) * static_cast<uint64_t>(d.hidden);
  for (int32_t rank = 0; rank < model.ranks(); ++rank) {
    const Shard& shard = model.shard(rank);
    for (int32_t i = 0; i < d.layer_count(); ++i) {
      const Layer& l = shard.layer(i);
      for (const PackedWeight* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &l.input_gate, &l.input_down, &l.router,
                                    &l.shared_gate, &l.shared_up, &l.shared_down, &l.mix_in, &l.mix_gate, &l.delta_beta, &l.delta_alpha,
                                    &l.mix_out, &l.q_down, &l.q_up, &l.kv_down})
        bytes += bytes_of(*w);
      bytes += (bytes_of(l.k_up) + bytes_of(l.v_up)) * static_cast<uint64_t>(d.mixer(i).heads);  // matrices of each head
    }
    bytes += bytes_of(shard.input_projection());
    if (!plan.samples.empty() || !plan.scores.empty()) bytes += bytes_of(shard.head());
  }
  const Shard& first = model.shard(0);
  bytes += plan.tokens.size() * ((bytes_of(first.embedding()) + bytes_of(first.input_embedding())) / static_cast<uint64_t>(d.vocab));
  for (int32_t i = 0; i < d.layer_count(); ++i) {
    const mr_mixer_desc& m = d.mixer(i);
    if (!keeps_keys(m)) continue;
    const uint64_t width = static_cast<uint64_t>(by_latent(m) ? cached_width(d, m) : m.key_dim);
    const uint64_t head = kv == Kv::kF8 ? width + sizeof(float) : width * kActBytes, planes = by_latent(m) ? 1 : 2;
    for (const mr_segment& s : plan.segments) {
      const int32_t positions = s.first_position + s.count;
      bytes += planes * static_cast<uint64_t>(m.kv_heads) * head *
               static_cast<uint64_t>(m.window == 0 ? positions : std::min(positions, m.window + s.count - 1));
    }
  }
  for (const mr_segment& s : plan.segments)
    if (s.first_position != 0) bytes += static_cast<uint64_t>(state_floats(d)) * sizeof(float);
  return bytes;
}

}  // namespace mr::cuda
