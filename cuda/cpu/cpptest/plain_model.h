/* plain_model: descriptions whose layers are all alike, as the tests of the engines make them. C99 and C++. */
#ifndef MILLRACE_PLAIN_MODEL_H
#define MILLRACE_PLAIN_MODEL_H

#include <string.h>

#include "millrace/engine.h"

typedef struct plain_model {
  int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
  int32_t rope_dims, rope_style;
  float rope_base, rope_scale, norm_eps, attn_scale;
  int32_t qkv_bias, o_bias, qk_norm, tied_head;
  int32_t rope_factors; /* bool: frequency i is divided by 2 + i / 8 */
} plain_model;

/* What a description of a plain model points to. */
typedef struct plain_arrays {
  mr_rope_desc rope;
  mr_layer_desc layers[128];
  double divisors[256];
} plain_arrays;

static inline double plain_divisor(int32_t i) { return 2 + i / 8.0; }

/* The description, which points into `arrays`. At most 128 layers, and rope_dims of at most 512. */
static inline mr_model_desc plain_desc(const plain_model *m, plain_arrays *arrays) {
  mr_model_desc d;
  int32_t i;
  memset(&d, 0, sizeof d);
  memset(arrays, 0, sizeof *arrays);
  arrays->rope.struct_size = sizeof arrays->rope;
  arrays->rope.dims = m->rope_dims;
  arrays->rope.style = m->rope_style;
  arrays->rope.base = m->rope_base;
  arrays->rope.scale = m->rope_scale;
  if (m->rope_factors) {
    for (i = 0; i < m->rope_dims / 2; ++i) arrays->divisors[i] = plain_divisor(i);
    arrays->rope.divisors = arrays->divisors;
  }
  for (i = 0; i < m->layers; ++i) {
    mr_layer_desc *l = &arrays->layers[i];
    l->struct_size = sizeof *l;
    l->mixer.kind = MR_MIX_ATTENTION;
    l->mixer.flags = (m->qkv_bias ? MR_MIX_QKV_BIAS : 0u) | (m->o_bias ? MR_MIX_OUT_BIAS : 0u) | (m->qk_norm ? MR_MIX_QK_NORM : 0u);
    l->mixer.heads = m->heads;
    l->mixer.kv_heads = m->kv_heads;
    l->mixer.key_dim = l->mixer.value_dim = m->head_dim;
    l->mixer.scale = m->attn_scale;
    l->mlp.kind = MR_MLP_DENSE;
    l->mlp.width = m->ffn;
  }
  d.struct_size = sizeof d;
  d.hidden = m->hidden;
  d.vocab = m->vocab;
  d.context = m->context;
  d.tied_head = m->tied_head;
  d.norm_eps = m->norm_eps;
  d.rope_count = 1;
  d.ropes = &arrays->rope;
  d.rope_stride = sizeof arrays->rope;
  d.layer_count = m->layers;
  d.layers = arrays->layers;
  d.layer_stride = sizeof arrays->layers[0];
  return d;
}

#endif
