// uniform: a model whose layers are all alike, as most tests want it.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/shape.h"

namespace mr::cuda {

// Each layer has a norm, attention over all positions with one rotation, a norm and SwiGLU.
struct UniformShape {
  int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
  int32_t context;     // largest position + 1
  int32_t rope_dims;   // rotated leading dims of a head, even; 0 = none
  int32_t rope_style;  // MR_ROPE_*
  float rope_base, rope_scale;
  std::vector<double> divisors;  // of the rope_dims/2 frequencies; empty = ones
  float norm_eps;
  float attn_scale;  // scores are multiplied by it
  int32_t qkv_bias, o_bias, qk_norm, tied_head;  // bools
};

inline Description description_of(const UniformShape& s) {
  mr_layer_desc layer{};
  layer.struct_size = sizeof layer;
  mr_mixer_desc& m = layer.mixer;
  m.kind = MR_MIX_ATTENTION;
  if (s.qkv_bias != 0) m.flags |= MR_MIX_QKV_BIAS;
  if (s.o_bias != 0) m.flags |= MR_MIX_OUT_BIAS;
  if (s.qk_norm != 0) m.flags |= MR_MIX_QK_NORM;
  m.heads = s.heads;
  m.kv_heads = s.kv_heads;
  m.key_dim = m.value_dim = s.head_dim;
  m.scale = s.attn_scale;
  layer.mlp.kind = MR_MLP_DENSE;
  layer.mlp.width = s.ffn;
  const Rope rope{s.rope_dims, s.rope_style, s.rope_base, s.rope_scale, 1, s.divisors};
  return Description{s.hidden, s.vocab, s.context, s.tied_head != 0, s.norm_eps, 1, 1, 1, 0, {rope},
                     std::vector<mr_layer_desc>(static_cast<size_t>(s.layers), layer)};
}

}  // namespace mr::cuda
