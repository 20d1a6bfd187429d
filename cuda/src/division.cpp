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
    case MR_ROLE_O: case MR_ROLE_O_BIAS: case MR_ROLE_GATE: case MR_ROLE_UP: case MR_ROLE_DOWN: case MR_ROLE_OUTPUT: return false;
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
    wide("MLP width", desc.mlp(i).width);
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
