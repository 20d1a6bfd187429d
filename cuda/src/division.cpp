#include "src/division.h"

#include <algorithm>

#include "cpu/error.h"

namespace mr::cuda {
namespace {

constexpr int64_t kGrain = 16;  // rows: panels of weights, and parts of rows of activations in whole 16 bytes

RowRange by_grain(int64_t rows, int32_t rank, int32_t ranks) {
  const int64_t grains = (rows + kGrain - 1) / kGrain;
  const int64_t first = grains * rank / ranks * kGrain, end = grains * (rank + 1) / ranks * kGrain;
  return {std::min(rows, first), std::min(rows, end) - std::min(rows, first)};
}

RowRange by_heads(int64_t rows, int32_t rank, int32_t ranks) { return {rows / ranks * rank, rows / ranks}; }

}  // namespace

bool held_by_all(int32_t role) {
  switch (role) {
    case MR_ROLE_Q: case MR_ROLE_K: case MR_ROLE_V:
    case MR_ROLE_Q_BIAS: case MR_ROLE_K_BIAS: case MR_ROLE_V_BIAS:
    case MR_ROLE_O: case MR_ROLE_O_BIAS: case MR_ROLE_GATE: case MR_ROLE_UP: case MR_ROLE_DOWN: case MR_ROLE_OUTPUT:
    case MR_ROLE_EXPERT_GATE: case MR_ROLE_EXPERT_UP: case MR_ROLE_EXPERT_DOWN:
    case MR_ROLE_EXPERT_GATE_BIAS: case MR_ROLE_EXPERT_UP_BIAS: case MR_ROLE_EXPERT_DOWN_BIAS:
    case MR_ROLE_SHARED_GATE: case MR_ROLE_SHARED_UP: case MR_ROLE_SHARED_DOWN: return false;
    default: return true;
  }
}

RowRange rows_of(int32_t role, int64_t rows, int32_t rank, int32_t ranks) {
  if (held_by_all(role)) return {0, rows};
  switch (role) {
    case MR_ROLE_Q: case MR_ROLE_K: case MR_ROLE_V:
    case MR_ROLE_Q_BIAS: case MR_ROLE_K_BIAS: case MR_ROLE_V_BIAS: return by_heads(rows, rank, ranks);
    default: return by_grain(rows, rank, ranks);
  }
}

FilePart file_part(const uint64_t* held, int32_t ranks, int64_t members, uint64_t offset, uint64_t count) {
  const uint64_t of = static_cast<uint64_t>(members);
  uint64_t each = 0;  // bytes of a member in the file
  for (int32_t rank = 0; rank < ranks; ++rank) each += held[rank] / of;
  const uint64_t member = offset / each;
  uint64_t within = offset % each;
  int32_t rank = 0;
  for (; within >= held[rank] / of; ++rank) within -= held[rank] / of;
  return {rank, member * (held[rank] / of) + within, std::min(count, held[rank] / of - within)};
}

void check_division(const Description& desc, int32_t ranks) {
  if (ranks == 1) return;
  const auto wide = [&](const char* what, int32_t value) {
    if (by_grain(value, 0, ranks).count < 1)
      fail(MR_UNIMPLEMENTED, "model %s is %d: too little for %d GPUs, which take whole %lld of it", what, value, ranks,
           static_cast<long long>(kGrain));
  };
  wide("hidden", desc.hidden);
  wide("vocab", desc.vocab);
  for (int32_t i = 0; i < desc.layer_count(); ++i) {
    if (desc.mixer(i).kv_heads % ranks != 0)
      fail(MR_UNIMPLEMENTED, "model layer %d has %d kv_heads: %d GPUs divide a multiple of %d", i, desc.mixer(i).kv_heads, ranks, ranks);
    wide(desc.mlp(i).kind == MR_MLP_EXPERTS ? "expert width" : "MLP width", desc.mlp(i).width);
    if (desc.experts(i).shared_width != 0) wide("shared_width", desc.experts(i).shared_width);
  }
}

Description part_of(const Description& desc, int32_t rank, int32_t ranks) {
  Description part = desc;
  for (mr_layer_desc& layer : part.layers) {
    layer.mixer.heads /= ranks;
    layer.mixer.kv_heads /= ranks;
    layer.mlp.width = static_cast<int32_t>(rows_of(MR_ROLE_GATE, layer.mlp.width, rank, ranks).count);
  }
  return part;
}

}  // namespace mr::cuda
