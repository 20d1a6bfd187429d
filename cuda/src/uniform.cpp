#include "src/uniform.h"

#include <cstring>

#include "cpu/error.h"

namespace mr::cuda {
namespace {

[[noreturn]] void refuse(int32_t layer, const char* block) {
  fail(MR_UNIMPLEMENTED, "model layer %d has %s, which this engine has no kernels for", layer, block);
}

void check_layer(const mr_layer_desc& layer, int32_t index) {
  const mr_mixer_desc& m = layer.mixer;
  const auto has = [&](uint32_t flags) { return (m.flags & flags) != 0; };
  if (m.window != 0) refuse(index, "a sliding window");
  if (m.score_cap != 0) refuse(index, "a cap of scores");
  if (m.temperature_scale != 0) refuse(index, "an attention temperature");
  if (m.kv_layer != 0) refuse(index, "the keys of another layer");
  if (m.rope < 0) refuse(index, "no rotation");
  if (has(MR_MIX_QK_ROW_NORM)) refuse(index, "norms over whole rows of Q and K");
  if (has(MR_MIX_V_NORM)) refuse(index, "a norm of V");
  if (has(MR_MIX_VALUE_IS_KEY)) refuse(index, "values that are its keys");
  if (has(MR_MIX_NO_NORM) || (layer.mlp.flags & MR_MLP_NO_NORM) != 0) refuse(index, "a branch without a norm");
  if (has(MR_MIX_END_NORM) || (layer.mlp.flags & MR_MLP_END_NORM) != 0) refuse(index, "a norm after a branch");
  if (layer.mlp.activation != MR_ACT_SILU) refuse(index, "an activation other than SiLU");
  if (layer.output_scale != 0) refuse(index, "a scale of its output");
}

void check_model(const Description& d) {
  const char* what = d.embedding_scale != 1 ? "embedding_scale" : d.residual_scale != 1 ? "residual_scale"
                   : d.layer_input_width != 0 ? "layer_input_width" : d.logit_scale != 1 ? "logit_scale" : d.logit_cap != 0 ? "logit_cap" : nullptr;
  if (what != nullptr) fail(MR_UNIMPLEMENTED, "model %s is set, which this engine has no kernels for", what);
}

}  // namespace

UniformShape uniform_shape(const Description& d) {
  check_model(d);
  const mr_layer_desc& first = d.layers.front();
  for (int32_t i = 0; i < d.layer_count(); ++i) {
    const mr_layer_desc& layer = d.layers[static_cast<size_t>(i)];
    check_layer(layer, i);
    if (std::memcmp(&layer.mixer, &first.mixer, sizeof layer.mixer) != 0 || std::memcmp(&layer.mlp, &first.mlp, sizeof layer.mlp) != 0)
      refuse(i, "other sizes or options than layer 0");
  }
  const mr_mixer_desc& m = first.mixer;
  const Rope& rope = d.ropes[static_cast<size_t>(m.rope)];
  if (rope.magnitude != 1) refuse(0, "a rotation with a magnitude");
  UniformShape shape{};
  shape.layers = d.layer_count();
  shape.hidden = d.hidden;
  shape.heads = m.heads;
  shape.kv_heads = m.kv_heads;
  shape.head_dim = m.key_dim;
  shape.ffn = first.mlp.width;
  shape.vocab = d.vocab;
  shape.context = d.context;
  shape.rope_dims = rope.dims;
  shape.rope_style = rope.style;
  shape.rope_base = rope.base;
  shape.rope_scale = rope.scale;
  shape.divisors = rope.divisors;
  shape.norm_eps = d.norm_eps;
  shape.attn_scale = attention_scale(m);
  shape.qkv_bias = (m.flags & MR_MIX_QKV_BIAS) != 0;
  shape.o_bias = (m.flags & MR_MIX_OUT_BIAS) != 0;
  shape.qk_norm = (m.flags & MR_MIX_QK_NORM) != 0;
  shape.tied_head = d.tied_head;
  return shape;
}

Description description_of(const UniformShape& s) {
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
