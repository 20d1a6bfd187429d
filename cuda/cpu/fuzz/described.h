// described: descriptions of small models, with the memory that they point to.
#pragma once

#include "cpptest/plain_model.h"

namespace fuzz {

inline plain_model small_model() {
  plain_model m{};
  m.layers = 1;
  m.hidden = m.ffn = 32;
  m.heads = 2;
  m.kv_heads = 1;
  m.head_dim = m.rope_dims = 16;
  m.vocab = 40;
  m.context = 100;
  m.rope_base = 1e4f;
  m.rope_scale = 1;
  m.norm_eps = 1e-5f;
  return m;
}

inline plain_model rich_model() {  // every option of a plain model, and matrices that every format takes
  plain_model m = small_model();
  m.layers = m.kv_heads = 2;
  m.hidden = 256;
  m.heads = 4;
  m.rope_dims = 12;
  m.vocab = 33;
  m.rope_style = MR_ROPE_NEOX;
  m.attn_scale = 0.2f;
  m.qkv_bias = m.o_bias = m.qk_norm = m.tied_head = m.rope_factors = 1;
  return m;
}

// A description with the memory that it points to. Copies point to their own.
struct Described {
  plain_arrays arrays;
  mr_model_desc desc;

  explicit Described(const plain_model& m) : desc(plain_desc(&m, &arrays)) { point(); }
  Described(const Described& other) : arrays(other.arrays), desc(other.desc) { point(); }
  Described& operator=(const Described& other) {
    arrays = other.arrays;
    desc = other.desc;
    point();
    return *this;
  }
  // At most as many ropes and layers as there are.
  void point() {
    desc.ropes = &arrays.rope;
    desc.layers = arrays.layers;
    if (arrays.rope.divisors != nullptr) arrays.rope.divisors = arrays.divisors;
  }
};

inline Described small_description() { return Described(small_model()); }

// The second layer has a window, and experts with every option but norms of their own.
inline Described rich_description() {
  Described d(rich_model());
  mr_layer_desc& layer = d.arrays.layers[1];
  layer.mixer.flags |= MR_MIX_SINKS;
  layer.mixer.window = 7;
  layer.mlp.kind = MR_MLP_EXPERTS;
  layer.experts.flags = MR_EXPERTS_FLAGS & ~MR_EXPERTS_APART;
  layer.experts.count = 8;
  layer.experts.used = 3;
  layer.experts.groups = 4;
  layer.experts.groups_used = 2;
  layer.experts.shared_width = 64;
  return d;
}

// Layers that carry a state, around attention with a gate.
inline Described state_description() {
  plain_model m = small_model();
  m.layers = 3;
  Described d(m);
  mr_mixer_desc &delta = d.arrays.layers[0].mixer, &conv = d.arrays.layers[2].mixer;
  d.arrays.layers[1].mixer.flags |= MR_MIX_OUT_GATE;
  delta = conv = {};
  delta.kind = MR_MIX_DELTA;
  delta.flags = MR_MIX_TILED_HEADS;
  delta.heads = 4;
  delta.kv_heads = 2;
  delta.key_dim = 9;
  delta.value_dim = 20;
  conv.kind = MR_MIX_CONV;
  conv.flags = MR_MIX_END_NORM;
  delta.rope = conv.rope = -1;
  delta.conv = 4;
  conv.conv = 3;
  return d;
}

// Attention over latents, with a latent of queries and without, around attention of another kind.
inline Described latent_description() {
  plain_model m = small_model();
  m.layers = 3;
  m.rope_dims = 6;
  Described d(m);
  mr_mixer_desc &first = d.arrays.layers[0].mixer, &last = d.arrays.layers[2].mixer;
  first = {};
  first.kind = MR_MIX_LATENT;
  first.heads = 3;
  first.kv_heads = 1;
  first.key_dim = 15;
  first.value_dim = 20;
  first.latent = 33;
  last = first;
  first.query_latent = 21;
  last.flags = MR_MIX_END_NORM;
  return d;
}

}  // namespace fuzz
