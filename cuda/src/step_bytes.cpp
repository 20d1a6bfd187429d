#include "src/step_bytes.h"

#include "kernels/types.h"

namespace mr::cuda {
namespace {

uint64_t bytes_of(const PackedWeight& weight) { return weight_packed_bytes(weight.type, weight.rows, weight.cols); }

}  // namespace

uint64_t step_bytes(const Model& model, const KvLayout& kv, const StepPlan& plan) {
  if (plan.tokens.empty()) return 0;
  const UniformShape& d = model.desc();
  uint64_t bytes = static_cast<uint64_t>(d.layers) * 2 * sizeof(float) * static_cast<uint64_t>(d.hidden);
  for (int32_t rank = 0; rank < model.ranks(); ++rank) {
    const Shard& shard = model.shard(rank);
    for (int32_t i = 0; i < d.layers; ++i) {
      const Layer& l = shard.layer(i);
      for (const PackedWeight* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) bytes += bytes_of(*w);
    }
    if (!plan.samples.empty() || !plan.scores.empty()) bytes += bytes_of(shard.head());
  }
  bytes += plan.tokens.size() * (bytes_of(model.shard(0).embedding()) / static_cast<uint64_t>(d.vocab));
  const uint64_t width = static_cast<uint64_t>(d.head_dim), head = kv.kv == Kv::kF8 ? width + sizeof(float) : width * kActBytes;
  const uint64_t position = 2 * static_cast<uint64_t>(d.layers) * static_cast<uint64_t>(d.kv_heads) * head;
  for (const mr_segment& s : plan.segments)
    bytes += position * (static_cast<uint64_t>(s.first_position) + static_cast<uint64_t>(s.count));
  return bytes;
}

}  // namespace mr::cuda
