/* millrace/model.h: a decoder as data, and the tensors that it binds; part of the ABI of engine.h. C99.
 *
 * A description is an embedding, a list of layers, a norm and a head. A layer is one mixer and one MLP. Engines compute the
 * description and do not depend on an architecture; a block that an engine cannot compute is refused by name when the model is
 * created. The zero value of a number, except of the sizes, means that the operation is absent.
 */
#ifndef MILLRACE_MODEL_H
#define MILLRACE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MR_ROPE_NORM = 0 /* pairs (2i, 2i+1) */, MR_ROPE_NEOX = 1 /* pairs (i, i + dims/2) */ };

/* A rotation of the leading dims of a head. Frequency i is base^(-2i/dims) / (scale * divisors[i]). */
typedef struct mr_rope_desc {
  size_t struct_size;
  int32_t dims;           /* rotated leading dims of a head; even */
  int32_t style;          /* MR_ROPE_* */
  float base;             /* theta */
  float scale;            /* positions are divided by it; 1 = none */
  float magnitude;        /* multiplies cosines and sines; 0 = 1 */
  int32_t reserved0;
  const double *divisors; /* dims/2 numbers above 0, which are copied; infinity leaves a pair in place. NULL = ones */
} mr_rope_desc;

/* Kinds of mixers. An engine refuses a kind that it cannot compute with UNIMPLEMENTED. LATENT is attention over a latent that
 * all heads share. DELTA and CONV carry a state from position to position; at least one layer of a model is one of the other two. */
enum { MR_MIX_ATTENTION = 1, MR_MIX_LATENT = 2, MR_MIX_DELTA = 3, MR_MIX_CONV = 4 };

/* Flags of a mixer. */
enum {
  MR_MIX_QKV_BIAS = 1,
  MR_MIX_OUT_BIAS = 2,
  MR_MIX_QK_NORM = 4,      /* RMS norm over each head of Q and of K, before the rotation */
  MR_MIX_QK_ROW_NORM = 8,  /* RMS norm over all heads of Q and of K together, before the rotation */
  MR_MIX_V_NORM = 16,      /* RMS norm without weights over each head of V */
  MR_MIX_VALUE_IS_KEY = 32,/* V is K, with its bias, before its norm and rotation; there is no MR_ROLE_V */
  MR_MIX_NO_NORM = 64,     /* no norm before the branch */
  MR_MIX_END_NORM = 128,   /* RMS norm of the branch before it is added */
  MR_MIX_BIDIRECTIONAL = 256, /* a position sees later positions of its segment too */
  MR_MIX_SINKS = 512,      /* each head has one more score, MR_ROLE_SINKS, in the softmax; its value is nothing */
  MR_MIX_OUT_GATE = 1024,  /* each head of Q is followed by as wide a gate; what attention returns for the head is multiplied by
                              sigmoid(gate) before O. key_dim is value_dim */
  MR_MIX_TILED_HEADS = 2048, /* DELTA: value head j has key head j % kv_heads, else j / (heads / kv_heads) */
  MR_MIX_FLAGS = 4095
};

/* Attention. Order of operations: norm, Q, K and V with their biases, norms, rotation, temperature, cache, scores times scale, cap,
 * window, softmax, values, gate, O with its bias, end norm.
 *
 * DELTA, the gated delta rule. Members: heads and value_dim of values, kv_heads and key_dim of queries and keys, conv, scale; of the flags
 * TILED_HEADS, NO_NORM and END_NORM; the others are 0, and rope is -1. With x the normed residual stream, for each token:
 *   c = MIX_IN x: queries, keys, values; u = silu(sum over taps i of MIX_CONV_i c_{t - conv + 1 + i}), 0 before position 0
 *   q = scale u_q / |u_q|, k = u_k / |u_k|, |u| = sqrt(sum u^2 + 1e-6) of a head; v = u_v
 *   g = exp(A softplus(DELTA_ALPHA x + DELTA_DT)), b = sigmoid(DELTA_BETA x), of a value head
 *   S = g S; S = S + k (b (v - k^T S))^T; o = q^T S, from S = 0 (key_dim, value_dim) before position 0
 *   MIX_OUT (norm(o, DELTA_NORM) silu(MIX_GATE x)), with the norm by head
 * CONV, a short convolution. Members: conv; flags NO_NORM and END_NORM. MIX_IN x has three parts B, C and X, each hidden wide:
 *   MIX_OUT (C * sum over taps i of MIX_CONV_i (B * X)_{t - conv + 1 + i})
 *
 * LATENT, attention over a latent. Members: heads, kv_heads = 1, key_dim, value_dim, rope, scale, latent, query_latent; flags NO_NORM
 * and END_NORM; the others are 0. With x the normed residual stream and r < key_dim the dims of the rope, for each token:
 *   Q x, or Q_UP norm(Q_DOWN x, Q_LATENT_NORM): by head n, key_dim - r wide, and q, r wide
 *   KV_DOWN x: c, latent wide, and k, r wide
 *   the KV cache has one head of norm(c, KV_LATENT_NORM), which is also the value, and rope(k); it is not kept as F8
 *   score = scale (K_UP_h n . norm(c) + rope(q) . rope(k)); O of V_UP_h times the sum of weights and values, by head */
typedef struct mr_mixer_desc {
  int32_t kind;               /* MR_MIX_* */
  uint32_t flags;
  int32_t heads, kv_heads;
  int32_t key_dim, value_dim; /* of a head */
  int32_t rope;               /* index into mr_model_desc.ropes; -1 = positions are not encoded */
  int32_t window;             /* position p sees positions max(0, p - window + 1) to p, or to p + window - 1 where it sees later
                                 ones; 0 = all */
  float scale;                /* of scores; 0 = 1/sqrt(key_dim) */
  float score_cap;            /* scores become cap * tanh(score / cap), after the scale; 0 = no cap */
  int32_t kv_layer;           /* keys and values are those of the layer that is kv_layer layers below; 0 = its own */
  /* Attention temperature: Q of position p is multiplied by 1 + scale * ln(1 + floor(p / length)). Both 0 = none */
  float temperature_scale;
  int32_t temperature_length; /* positions */
  int32_t conv;               /* taps of the convolution of DELTA and CONV, the last of which is of the token itself: 2 to 64 */
  int32_t latent;             /* width of the latent of LATENT */
  int32_t query_latent;       /* of LATENT: width of the latent of Q; 0 = Q reads the input of the layer */
} mr_mixer_desc;

/* Kinds of MLPs. An engine refuses a kind that it cannot compute with UNIMPLEMENTED. */
enum { MR_MLP_DENSE = 1, MR_MLP_EXPERTS = 2 };
enum {
  MR_MLP_NO_NORM = 1,  /* no norm before the branch */
  MR_MLP_END_NORM = 2, /* RMS norm of the branch before it is added */
  MR_MLP_FLAGS = 3
};
enum {
  MR_ACT_SILU = 0,     /* x / (1 + exp(-x)) */
  MR_ACT_GELU_TANH = 1,/* x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3))) */
  MR_ACT_CLAMPED = 2   /* y / (1 + exp(-1.702 y)) of y = min(x, 7); it multiplies 1 + max(-7, min(up, 7)) */
};

/* down(activation(gate(x)) * up(x)) of the normed residual stream x, or a mixture of such experts. */
typedef struct mr_mlp_desc {
  int32_t kind;       /* MR_MLP_* */
  uint32_t flags;
  int32_t activation; /* MR_ACT_* */
  int32_t width;      /* of the dense MLP, or of one expert */
  int32_t reserved[4];/* 0 */
} mr_mlp_desc;

enum { MR_GATE_SOFTMAX = 0 /* over all experts */, MR_GATE_SIGMOID = 1 };
enum {
  MR_EXPERTS_CHOICE_BIAS = 1,
  MR_EXPERTS_RENORM = 2,         /* the weights of the chosen are divided by their sum, which is at least 1e-20 */
  MR_EXPERTS_GROUP_BEST_TWO = 4, /* the score of a group is the sum of its two greatest, not its greatest */
  MR_EXPERTS_SHARED_GATE = 8,    /* the shared expert is multiplied by sigmoid(SHARED_ROUTER . x) */
  MR_EXPERTS_ROUTER_BIAS = 16,   /* added to the logits */
  MR_EXPERTS_BIAS = 32,          /* gate, up and down of the chosen experts have biases */
  MR_EXPERTS_SCALES = 64,        /* EXPERT_SCALE multiplies the weight of each chosen expert, at last */
  /* The router, the chosen experts and the shared expert have norms of their own, of the residual stream: ROUTER_NORM, after which the
   * router's input is divided by sqrt(hidden), EXPERT_NORM and FFN_NORM. The sum of the experts and the shared expert have
   * EXPERT_END_NORM and SHARED_END_NORM before they are added. */
  MR_EXPERTS_APART = 128,
  MR_EXPERTS_FLAGS = 255
};

/* The experts of MR_MLP_EXPERTS; all 0 with another kind. Expert e has the logit router(x)_e and the weight p_e, the gating of it. The
 * choice goes by c_e = p_e + CHOICE_BIAS_e: the `used` experts of the greatest c, of equal ones those of the lowest id. With groups,
 * which are count/groups neighbouring experts, only experts of the groups_used best groups take part. The branch is the sum, by
 * ascending id, of the weights times what the chosen experts return, and then what the shared expert returns. In a row where a
 * logit, a c or the score of a group is not a number, all of the branch is NaN. */
typedef struct mr_experts_desc {
  uint32_t flags;
  int32_t count, used;         /* used <= count */
  int32_t gating;              /* MR_GATE_* */
  int32_t groups, groups_used; /* groups divides count; 0 = none */
  float weight_scale;          /* multiplies the weights, after RENORM; 0 = 1 */
  int32_t shared_width;        /* width of the shared expert, which every token uses; 0 = no such expert */
  int32_t reserved[4];         /* 0 */
} mr_experts_desc;

/* A layer is one mixer and one MLP; the output of each is added to the residual stream. */
typedef struct mr_layer_desc {
  size_t struct_size;
  mr_mixer_desc mixer;
  mr_mlp_desc mlp;
  int32_t output_scale; /* bool: MR_ROLE_LAYER_SCALE is one number that multiplies the residual stream after the layer */
  int32_t reserved0;
  mr_experts_desc experts;
} mr_layer_desc;

/* A decoder: an embedding, layers, a norm and a head. */
typedef struct mr_model_desc {
  size_t struct_size;
  int32_t hidden, vocab;
  int32_t context;       /* largest position + 1 */
  int32_t tied_head;     /* bool: the head is the embedding matrix */
  float norm_eps;        /* added to the mean square of every norm */
  float embedding_scale; /* multiplies the embedding; 0 = 1 */
  float residual_scale;  /* multiplies the output of every branch before it is added; 0 = 1 */
  float logit_scale;     /* multiplies the logits; 0 = 1 */
  float logit_cap;       /* logits become cap * tanh(logit / cap), after the scale; 0 = no cap */
  int32_t rope_count, layer_count;
  /* Width of an input that each layer has of each token, besides the residual stream; 0 = none. With w this width, e the token's row
   * of LAYER_INPUT_EMBEDDING and p the product of LAYER_INPUT_PROJECTION and the embedding that enters layer 0, layer i reads
   * input = (norm(p[i w ..] / sqrt(hidden)) + sqrt(w) e[i w ..]) / sqrt(2)
   * and adds, after its MLP, a third branch: norm(down(activation(gate(x)) * input)), with the MLP's activation. */
  int32_t layer_input_width;
  const mr_rope_desc *ropes;
  const mr_layer_desc *layers;
  size_t rope_stride, layer_stride; /* sizeof the caller's element types */
} mr_model_desc;

/* Tensor roles. Layer is -1 for those outside the layers. Dims are (in, out) = ggml's ne[0], ne[1]; vectors are F32. A stack of
 * matrices or vectors, one for each expert or head, has one dim more, (in, out, count); they follow one another in the file. Layers have
 * those roles that their mixer and their MLP want. q = heads*key_dim, with MR_MIX_OUT_GATE twice that; k = kv_heads*key_dim,
 * v = kv_heads*value_dim. Of DELTA, c = 2*kv_heads*key_dim + heads*value_dim is the width of its convolution, of CONV c = hidden. Of
 * LATENT, r are the dims of its rope. */
enum {
  MR_ROLE_EMBEDDING = 0,     /* (hidden, vocab) */
  MR_ROLE_OUTPUT_NORM = 1,   /* (hidden) */
  MR_ROLE_OUTPUT = 2,        /* (hidden, vocab); absent when tied */
  MR_ROLE_ATTN_NORM = 3,     /* (hidden), of every kind of mixer; absent with MR_MIX_NO_NORM */
  MR_ROLE_Q = 4,             /* (hidden, q); of MR_MIX_LATENT if query_latent is 0 */
  MR_ROLE_K = 5,             /* (hidden, k); absent where kv_layer is not 0 */
  MR_ROLE_V = 6,             /* (hidden, v); absent where kv_layer is not 0, and with MR_MIX_VALUE_IS_KEY */
  MR_ROLE_Q_BIAS = 7,        /* (q), MR_MIX_QKV_BIAS */
  MR_ROLE_K_BIAS = 8,        /* (k), the same where there is a K */
  MR_ROLE_V_BIAS = 9,        /* (v), the same where there is a V */
  MR_ROLE_Q_NORM = 10,       /* (key_dim), MR_MIX_QK_NORM; (q), MR_MIX_QK_ROW_NORM */
  MR_ROLE_K_NORM = 11,       /* (key_dim) or (k), the same where there is a K */
  MR_ROLE_O = 12,            /* (heads*value_dim, hidden), of MR_MIX_LATENT too */
  MR_ROLE_O_BIAS = 13,       /* (hidden), MR_MIX_OUT_BIAS */
  MR_ROLE_ATTN_END_NORM = 14,/* (hidden), MR_MIX_END_NORM, of every kind of mixer */
  MR_ROLE_FFN_NORM = 15,     /* (hidden); absent with MR_MLP_NO_NORM */
  MR_ROLE_GATE = 16,         /* (hidden, width), MR_MLP_DENSE */
  MR_ROLE_UP = 17,           /* (hidden, width), the same */
  MR_ROLE_DOWN = 18,         /* (width, hidden), the same */
  MR_ROLE_FFN_END_NORM = 19, /* (hidden), MR_MLP_END_NORM */
  MR_ROLE_LAYER_SCALE = 20,  /* (1), output_scale */
  MR_ROLE_LAYER_INPUT_EMBEDDING = 21,  /* (layer_count*w, vocab), w = layer_input_width; outside the layers; all six if it is not 0 */
  MR_ROLE_LAYER_INPUT_PROJECTION = 22, /* (hidden, layer_count*w), outside the layers */
  MR_ROLE_LAYER_INPUT_NORM = 23,       /* (w), outside the layers */
  MR_ROLE_LAYER_INPUT_GATE = 24,       /* (hidden, w) */
  MR_ROLE_LAYER_INPUT_DOWN = 25,       /* (w, hidden) */
  MR_ROLE_LAYER_INPUT_END_NORM = 26,   /* (hidden) */
  MR_ROLE_ROUTER = 27,         /* (hidden, count), MR_MLP_EXPERTS, as are the following */
  MR_ROLE_CHOICE_BIAS = 28,    /* (count), MR_EXPERTS_CHOICE_BIAS */
  MR_ROLE_EXPERT_GATE = 29,    /* (hidden, width, count) */
  MR_ROLE_EXPERT_UP = 30,      /* (hidden, width, count) */
  MR_ROLE_EXPERT_DOWN = 31,    /* (width, hidden, count) */
  MR_ROLE_SHARED_ROUTER = 32,  /* (hidden), MR_EXPERTS_SHARED_GATE */
  MR_ROLE_SHARED_GATE = 33,    /* (hidden, shared_width), if that is not 0 */
  MR_ROLE_SHARED_UP = 34,      /* (hidden, shared_width), the same */
  MR_ROLE_SHARED_DOWN = 35,    /* (shared_width, hidden), the same */
  MR_ROLE_SINKS = 36,            /* (heads), MR_MIX_SINKS */
  MR_ROLE_ROUTER_BIAS = 37,      /* (count), MR_EXPERTS_ROUTER_BIAS */
  MR_ROLE_EXPERT_GATE_BIAS = 38, /* (width, count), MR_EXPERTS_BIAS */
  MR_ROLE_EXPERT_UP_BIAS = 39,   /* (width, count), the same */
  MR_ROLE_EXPERT_DOWN_BIAS = 40, /* (hidden, count), the same */
  MR_ROLE_ROUTER_NORM = 41,      /* (hidden), MR_EXPERTS_APART */
  MR_ROLE_EXPERT_NORM = 42,      /* (hidden), the same */
  MR_ROLE_EXPERT_END_NORM = 43,  /* (hidden), the same */
  MR_ROLE_SHARED_END_NORM = 44,  /* (hidden), the same */
  MR_ROLE_EXPERT_SCALE = 45,     /* (count), MR_EXPERTS_SCALES */
  MR_ROLE_MIX_IN = 46,      /* (hidden, c), MR_MIX_DELTA; (hidden, 3*hidden), MR_MIX_CONV */
  MR_ROLE_MIX_CONV = 47,    /* (conv, c), F32, the same: the taps of each column, those of the oldest token first */
  MR_ROLE_MIX_OUT = 48,     /* (heads*value_dim, hidden), MR_MIX_DELTA; (hidden, hidden), MR_MIX_CONV */
  MR_ROLE_MIX_GATE = 49,    /* (hidden, heads*value_dim), MR_MIX_DELTA, as are the following */
  MR_ROLE_DELTA_BETA = 50,  /* (hidden, heads) */
  MR_ROLE_DELTA_ALPHA = 51, /* (hidden, heads) */
  MR_ROLE_DELTA_DT = 52,    /* (heads) */
  MR_ROLE_DELTA_A = 53,     /* (heads) */
  MR_ROLE_DELTA_NORM = 54,  /* (value_dim) */
  MR_ROLE_Q_DOWN = 55,         /* (hidden, query_latent), MR_MIX_LATENT if query_latent is not 0, as are the following two */
  MR_ROLE_Q_LATENT_NORM = 56,  /* (query_latent) */
  MR_ROLE_Q_UP = 57,           /* (query_latent, q) */
  MR_ROLE_KV_DOWN = 58,        /* (hidden, latent + r), MR_MIX_LATENT, as are the following */
  MR_ROLE_KV_LATENT_NORM = 59, /* (latent) */
  MR_ROLE_K_UP = 60,           /* (key_dim - r, latent, heads) */
  MR_ROLE_V_UP = 61,           /* (latent, value_dim, heads) */
  MR_ROLE_COUNT = 62
};

typedef struct mr_tensor_desc {
  size_t struct_size;
  int32_t role;   /* MR_ROLE_* */
  int32_t layer;  /* 0 .. layer_count-1, or -1 */
  int32_t type;   /* ggml type id. Of a matrix F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, IQ4_NL, Q2_K, Q3_K,
                     IQ4_XS, IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, MXFP4 or NVFP4. An engine without kernels for a type
                     answers UNIMPLEMENTED, naming it, to model_resident_size and model_bind */
  int32_t ndims;  /* 1 to 3 */
  int64_t dims[3];
} mr_tensor_desc;

#ifdef __cplusplus
}
#endif
#endif
