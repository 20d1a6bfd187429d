// shape: the description of a model as an engine keeps it, and the tensors that a model of a description has.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "millrace/engine.h"

namespace mr {

// Positions of the longest sequence: the sines of rope are exact up to it at frequency 1.
constexpr int32_t kMostPositions = 1 << 21;
// Taps of the longest convolution.
constexpr int32_t kMostTaps = 64;

// One rotation. divisors is empty or has dims/2 entries.
struct Rope {
  int32_t dims, style;
  float base, scale;
  float magnitude;  // 1 = none
  std::vector<double> divisors;
};

// An mr_model_desc whose arrays are copied and whose members are in range. A scale of the model that is absent is 1, a cap 0.
struct Description {
  int32_t hidden, vocab, context;
  bool tied_head;
  float norm_eps, embedding_scale, residual_scale, logit_scale, logit_cap;
  std::vector<Rope> ropes;
  std::vector<mr_layer_desc> layers;
  int32_t layer_input_width = 0;

  int32_t layer_count() const { return static_cast<int32_t>(layers.size()); }
  const mr_mixer_desc& mixer(int32_t layer) const { return layers[static_cast<size_t>(layer)].mixer; }
  const mr_mlp_desc& mlp(int32_t layer) const { return layers[static_cast<size_t>(layer)].mlp; }
  const mr_experts_desc& experts(int32_t layer) const { return layers[static_cast<size_t>(layer)].experts; }
};

// Throws INVALID_ARGUMENT naming the first member outside its range, and its value; UNIMPLEMENTED naming a block that no
// engine computes yet, or a reserved member that is set.
Description read_description(const mr_model_desc& desc);

inline bool attends(const mr_mixer_desc& m) { return m.kind == MR_MIX_ATTENTION; }
inline bool by_latent(const mr_mixer_desc& m) { return m.kind == MR_MIX_LATENT; }
inline bool keeps_keys(const mr_mixer_desc& m) { return attends(m) || by_latent(m); }  // in the KV cache
inline bool gated_output(const mr_mixer_desc& m) { return (m.flags & MR_MIX_OUT_GATE) != 0; }

// Numbers from one head of Q to the next: a head and its gate, if it has one.
inline int32_t query_stride(const mr_mixer_desc& m) { return gated_output(m) ? 2 * m.key_dim : m.key_dim; }

// Widths of the rows of a mixer: all heads of Q with their gates, of K and of V, and of the values that O reads.
inline int64_t query_width(const mr_mixer_desc& m) { return int64_t{m.heads} * query_stride(m); }
constexpr int64_t key_width(const mr_mixer_desc& m) { return int64_t{m.kv_heads} * m.key_dim; }
constexpr int64_t value_width(const mr_mixer_desc& m) { return int64_t{m.kv_heads} * m.value_dim; }
constexpr int64_t attended_width(const mr_mixer_desc& m) { return int64_t{m.heads} * m.value_dim; }

// Dims of a head that the layer's rotation turns; 0 without one.
inline int32_t rotated_dims(const Description& d, const mr_mixer_desc& m) {
  return m.rope < 0 || static_cast<size_t>(m.rope) >= d.ropes.size() ? 0 : d.ropes[static_cast<size_t>(m.rope)].dims;
}
// Of attention over a latent: the width of a position in the cache.
inline int32_t cached_width(const Description& d, const mr_mixer_desc& m) { return m.latent + rotated_dims(d, m); }

// Parts of a layer's attention that are computed apart: heads that share keys. A latent is shared by all heads, of which a part has as
// many as keep their scores in registers.
inline int32_t attention_parts(const mr_mixer_desc& m) {
  if (!by_latent(m)) return m.kv_heads;
  int32_t heads = 6;
  while (m.heads % heads != 0) --heads;
  return m.heads / heads;
}

// Of a layer that carries a state: the columns of its convolution, and the widths of its input and of its output.
inline int64_t conv_width(const mr_mixer_desc& m, int32_t hidden) {
  return m.kind == MR_MIX_CONV ? hidden : 2 * key_width(m) + attended_width(m);
}
inline int64_t mix_in_width(const mr_mixer_desc& m, int32_t hidden) {
  return m.kind == MR_MIX_CONV ? int64_t{3} * hidden : conv_width(m, hidden);
}
inline int64_t mix_out_width(const mr_mixer_desc& m, int32_t hidden) { return m.kind == MR_MIX_CONV ? hidden : attended_width(m); }

// Numbers of a layer's state: the inputs of the convolution at the last conv-1 positions, oldest first, and then S by head,
// (key_dim, value_dim). 0 for layers with keys in the cache.
inline int64_t state_width(const mr_mixer_desc& m, int32_t hidden) {
  if (keeps_keys(m)) return 0;
  return (m.conv - 1) * conv_width(m, hidden) + (m.kind == MR_MIX_DELTA ? int64_t{m.heads} * m.key_dim * m.value_dim : 0);
}
// The same over all layers. 0: no layer carries a state.
inline int64_t state_floats(const Description& d) {
  int64_t floats = 0;
  for (const mr_layer_desc& layer : d.layers) floats += state_width(layer.mixer, d.hidden);
  return floats;
}

// Whether a layer sees later positions, so that a segment is a whole text.
inline bool whole_texts(const Description& d) {
  return std::any_of(d.layers.begin(), d.layers.end(),
                     [](const mr_layer_desc& layer) { return (layer.mixer.flags & MR_MIX_BIDIRECTIONAL) != 0; });
}

// Whether a layer is in the window group (engine.h): that of the layer whose keys it reads.
inline bool in_window_group(const Description& d, int32_t layer) {
  const int32_t own = layer - d.mixer(layer).kv_layer;
  if (!attends(d.mixer(own)) || whole_texts(d)) return false;
  for (int32_t i = own; i < d.layer_count(); ++i) {
    const mr_mixer_desc& m = d.mixer(i);
    if (i - m.kv_layer == own && (m.window == 0 || m.window >= d.context)) return false;
  }
  return true;
}
// The largest window of the layers that read keys of the window group; 0: no layer is in it.
inline int32_t group_window(const Description& d) {
  int32_t window = 0;
  for (int32_t i = 0; i < d.layer_count(); ++i)
    if (in_window_group(d, i)) window = std::max(window, d.mixer(i).window);
  return window;
}
// The first block that holds a position which `position` sees through a window.
inline int32_t first_window_block(int32_t position, int32_t window, int32_t block_size) {
  return position < window ? 0 : (position + 1 - window) / block_size;
}

// Width of a token's inputs of all layers.
inline int64_t layer_inputs_width(const Description& d) { return int64_t{d.layer_count()} * d.layer_input_width; }

// The factor of scores: desc.scale, or 1/sqrt(key_dim) where that is 0.
inline float attention_scale(const mr_mixer_desc& m) {
  return m.scale != 0 ? m.scale : 1.0f / std::sqrt(static_cast<float>(m.key_dim));
}

bool known_role(int32_t role);
bool in_layer(int32_t role);   // a tensor of layers, or of the model
bool is_vector(int32_t role);  // a vector, or a stack of vectors, of F32; else a matrix or a stack of them
bool is_stack(int32_t role);   // one for each expert, head or column of a convolution: one dimension more
// The layer is ignored for roles outside the layers.
bool has_role(const Description& desc, int32_t role, int32_t layer);
// Dims that a role does not have are 1.
void role_dims(const Description& desc, int32_t role, int32_t layer, int64_t dims[3]);

// "attn_q of layer 3", "output_norm".
std::string tensor_name(int32_t role, int32_t layer);

// ggml's name of a weight type, or "unknown".
const char* weight_type_name(int32_t type);

// Bytes of the tensor's data in a file. Throws INVALID_ARGUMENT if the role is unknown, or if a tensor of this role cannot
// have the type, or the number or size of the dims.
uint64_t tensor_file_size(const mr_tensor_desc& tensor);

// Throws INVALID_ARGUMENT unless the tensor belongs to the model and has the type and the dims its role wants.
void check_tensor(const Description& desc, const mr_tensor_desc& tensor);

}  // namespace mr
