#include "shape.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "error.h"
#include "linear.h"
#include "structs.h"

namespace mr {
namespace {

constexpr int32_t kMostHeadDim = 4096, kMostWidth = 1 << 22, kMostExperts = 4096;
constexpr int32_t kMostColumns = 1 << 28;  // of a convolution
constexpr int32_t kMostHeads = 1 << 14, kMostQueryLatent = 1 << 16;

struct Role {
  const char* name;
  bool in_layer, vector;
  bool stack = false;
};

constexpr Role kRoles[MR_ROLE_COUNT] = {
    {"token_embedding", false, false}, {"output_norm", false, true},  {"output", false, false},
    {"attn_norm", true, true},         {"attn_q", true, false},       {"attn_k", true, false},
    {"attn_v", true, false},           {"attn_q_bias", true, true},   {"attn_k_bias", true, true},
    {"attn_v_bias", true, true},       {"attn_q_norm", true, true},   {"attn_k_norm", true, true},
    {"attn_output", true, false},      {"attn_output_bias", true, true}, {"attn_end_norm", true, true},
    {"ffn_norm", true, true},          {"ffn_gate", true, false},     {"ffn_up", true, false},
    {"ffn_down", true, false},         {"ffn_end_norm", true, true},  {"layer_scale", true, true},
    {"layer_input_embedding", false, false}, {"layer_input_projection", false, false}, {"layer_input_norm", false, true},
    {"layer_input_gate", true, false}, {"layer_input_down", true, false}, {"layer_input_end_norm", true, true},
    {"router", true, false},           {"choice_bias", true, true},   {"expert_gate", true, false, true},
    {"expert_up", true, false, true},  {"expert_down", true, false, true}, {"shared_router", true, true},
    {"shared_gate", true, false},      {"shared_up", true, false},    {"shared_down", true, false},
    {"attn_sinks", true, true},        {"router_bias", true, true},   {"expert_gate_bias", true, true, true},
    {"expert_up_bias", true, true, true}, {"expert_down_bias", true, true, true}, {"router_norm", true, true},
    {"expert_norm", true, true},       {"expert_end_norm", true, true}, {"shared_end_norm", true, true},
    {"expert_scale", true, true},      {"mix_in", true, false},       {"mix_conv", true, true, true},
    {"mix_out", true, false},          {"mix_gate", true, false},     {"delta_beta", true, false},
    {"delta_alpha", true, false},      {"delta_dt", true, true},      {"delta_a", true, true},
    {"delta_norm", true, true},        {"attn_q_down", true, false},  {"attn_q_latent_norm", true, true},
    {"attn_q_up", true, false},        {"attn_kv_down", true, false}, {"attn_kv_latent_norm", true, true},
    {"attn_k_up", true, false, true},  {"attn_v_up", true, false, true}};

// Checker names a member by its place, such as "layer 3 ", and its own name.
struct Checker {
  std::string at;

  void range(const char* member, int64_t value, int64_t low, int64_t high) const {
    if (value < low || value > high)
      fail(MR_INVALID_ARGUMENT, "model %s%s is %lld: want %lld to %lld", at.c_str(), member, static_cast<long long>(value),
           static_cast<long long>(low), static_cast<long long>(high));
  }
  void flag(const char* member, int32_t value) const { range(member, value, 0, 1); }
  void positive(const char* member, float value) const {
    if (!std::isfinite(value) || value <= 0)
      fail(MR_INVALID_ARGUMENT, "model %s%s is %g: want a finite number above 0", at.c_str(), member, static_cast<double>(value));
  }
  void not_negative(const char* member, float value) const {
    if (!std::isfinite(value) || value < 0)
      fail(MR_INVALID_ARGUMENT, "model %s%s is %g: want a finite number not below 0", at.c_str(), member, static_cast<double>(value));
  }
  template <size_t N>
  void reserved(const int32_t (&values)[N]) const {
    for (const int32_t value : values)
      if (value != 0) fail(MR_UNIMPLEMENTED, "model %ssets a reserved member: want 0", at.c_str());
  }
};

// Element i of an array whose elements the caller knows `stride` bytes of.
template <class T>
T element(const T* base, size_t stride, int32_t i) {
  return read_struct(reinterpret_cast<const T*>(reinterpret_cast<const uint8_t*>(base) + static_cast<size_t>(i) * stride), "an element of mr_model_desc");
}

template <class T>
void check_array(const Checker& check, const char* what, const T* data, size_t stride, int32_t count, int32_t least, int32_t most) {
  check.range(what, count, least, most);
  if (count == 0) return;
  if (data == nullptr) fail(MR_INVALID_ARGUMENT, "model has %d %s, but their array is null", count, what);
  if (stride < sizeof(size_t) || stride > kLargestStruct)
    fail(MR_INVALID_ARGUMENT, "the stride of the model's %s is %zu bytes: want %zu", what, stride, sizeof(T));
}

Rope read_rope(const mr_rope_desc& r, int32_t index) {
  const Checker check{"rope " + std::to_string(index) + " "};
  check.range("dims", r.dims, 0, kMostHeadDim);
  if (r.dims % 2 != 0) fail(MR_INVALID_ARGUMENT, "model %sdims is %d: want an even number", check.at.c_str(), r.dims);
  check.range("style", r.style, MR_ROPE_NORM, MR_ROPE_NEOX);
  check.positive("base", r.base);
  check.positive("scale", r.scale);
  check.not_negative("magnitude", r.magnitude);
  check.reserved({r.reserved0});
  Rope rope{r.dims, r.style, r.base, r.scale, r.magnitude == 0 ? 1 : r.magnitude, {}};
  if (r.divisors != nullptr) rope.divisors.assign(r.divisors, r.divisors + r.dims / 2);
  for (size_t i = 0; i < rope.divisors.size(); ++i)
    if (!(rope.divisors[i] > 0))
      fail(MR_INVALID_ARGUMENT, "model %sdivisor %zu is %g: want a number above 0", check.at.c_str(), i, rope.divisors[i]);
  return rope;
}

// A layer that carries a state has no members of attention.
void check_state(const Checker& check, const mr_mixer_desc& m) {
  const char* const at = check.at.c_str();
  const bool delta = m.kind == MR_MIX_DELTA;
  const uint32_t flags = MR_MIX_NO_NORM | MR_MIX_END_NORM | (delta ? uint32_t{MR_MIX_TILED_HEADS} : 0u);
  check.range("taps", m.conv, 2, kMostTaps);
  mr_mixer_desc rest = m;
  rest.conv = 0;
  rest.flags &= ~flags;
  if (delta) {
    check.range("heads", m.heads, 1, kMostHeads);
    check.range("kv_heads", m.kv_heads, 1, m.heads);
    if (m.heads % m.kv_heads != 0)
      fail(MR_INVALID_ARGUMENT, "model %skv_heads is %d: want a divisor of heads, which is %d", at, m.kv_heads, m.heads);
    check.range("key_dim", m.key_dim, 1, kMostHeadDim);
    check.range("value_dim", m.value_dim, 1, kMostHeadDim);
    check.not_negative("scale", m.scale);
    rest.heads = rest.kv_heads = rest.key_dim = rest.value_dim = 0;
    rest.scale = 0;
  }
  // By member, because a zero may have a sign.
  const bool none = rest.flags == 0 && rest.heads == 0 && rest.kv_heads == 0 && rest.key_dim == 0 && rest.value_dim == 0 &&
                    rest.rope == -1 && rest.window == 0 && rest.scale == 0 && rest.score_cap == 0 && rest.kv_layer == 0 &&
                    rest.temperature_scale == 0 && rest.temperature_length == 0 && rest.conv == 0 && rest.latent == 0 &&
                    rest.query_latent == 0;
  if (!none)
    fail(MR_INVALID_ARGUMENT, "model %scarries a state, and sets what only attention has", at);
}

// Attention over a latent has no members of other attention.
void check_latent(const Checker& check, const Description& desc, const mr_mixer_desc& m) {
  const char* const at = check.at.c_str();
  check.range("heads", m.heads, 1, kMostHeads);
  check.range("kv_heads", m.kv_heads, 1, 1);
  check.range("key_dim", m.key_dim, 1, kMostHeadDim);
  check.range("value_dim", m.value_dim, 1, kMostHeadDim);
  check.range("rope", m.rope, 0, static_cast<int64_t>(desc.ropes.size()) - 1);
  check.range("latent", m.latent, 1, kMostHeadDim);
  check.range("query_latent", m.query_latent, 0, kMostQueryLatent);
  check.not_negative("scale", m.scale);
  if (rotated_dims(desc, m) >= m.key_dim)
    fail(MR_INVALID_ARGUMENT, "model %srotates %d dims of heads of %d: want fewer", at, rotated_dims(desc, m), m.key_dim);
  const bool none = (m.flags & ~uint32_t{MR_MIX_NO_NORM | MR_MIX_END_NORM}) == 0 && m.window == 0 && m.score_cap == 0 && m.kv_layer == 0 &&
                    m.temperature_scale == 0 && m.temperature_length == 0 && m.conv == 0;
  if (!none) fail(MR_INVALID_ARGUMENT, "model %sis attention over a latent, and sets what only other mixers have", at);
}

void check_mixer(const Description& desc, int32_t index) {
  const mr_mixer_desc& m = desc.mixer(index);
  const Checker check{"layer " + std::to_string(index) + " "};
  const char* const at = check.at.c_str();
  check.range("mixer kind", m.kind, MR_MIX_ATTENTION, MR_MIX_CONV);
  if ((m.flags & ~uint32_t{MR_MIX_FLAGS}) != 0) fail(MR_UNIMPLEMENTED, "model %smixer has unknown flags 0x%x", at, m.flags);
  if (by_latent(m)) return check_latent(check, desc, m);
  if (!attends(m)) return check_state(check, m);
  if (m.conv != 0 || (m.flags & MR_MIX_TILED_HEADS) != 0)
    fail(MR_INVALID_ARGUMENT, "model %sis attention, and has a convolution or tiled heads", at);
  if (m.latent != 0 || m.query_latent != 0) fail(MR_INVALID_ARGUMENT, "model %sis attention, and has a latent", at);
  check.range("heads", m.heads, 1, kMostHeads);
  check.range("kv_heads", m.kv_heads, 1, m.heads);
  if (m.heads % m.kv_heads != 0)
    fail(MR_INVALID_ARGUMENT, "model %skv_heads is %d: want a divisor of heads, which is %d", at, m.kv_heads, m.heads);
  check.range("key_dim", m.key_dim, 1, kMostHeadDim);
  check.range("value_dim", m.value_dim, 1, kMostHeadDim);
  if (m.value_dim != m.key_dim)
    fail(MR_UNIMPLEMENTED, "model %svalue_dim is %d and key_dim %d: no engine computes unlike widths yet", at, m.value_dim, m.key_dim);
  check.range("rope", m.rope, -1, static_cast<int64_t>(desc.ropes.size()) - 1);
  if (m.rope >= 0) {
    const int32_t dims = desc.ropes[static_cast<size_t>(m.rope)].dims;
    if (dims > m.key_dim) fail(MR_INVALID_ARGUMENT, "model %srotates %d dims of heads of %d", at, dims, m.key_dim);
  }
  check.range("window", m.window, 0, kMostPositions);
  check.not_negative("scale", m.scale);
  check.not_negative("score_cap", m.score_cap);
  check.not_negative("temperature_scale", m.temperature_scale);
  check.range("temperature_length", m.temperature_length, 0, kMostPositions);
  if ((m.temperature_scale != 0) != (m.temperature_length != 0))
    fail(MR_INVALID_ARGUMENT, "model %shas temperature_scale %g and temperature_length %d: want both or neither", at,
         static_cast<double>(m.temperature_scale), m.temperature_length);
  if ((m.flags & MR_MIX_QK_NORM) != 0 && (m.flags & MR_MIX_QK_ROW_NORM) != 0)
    fail(MR_INVALID_ARGUMENT, "model %snorms Q and K by head and by row: want one of them", at);
  if (gated_output(m) && (m.flags & MR_MIX_QK_ROW_NORM) != 0)
    fail(MR_INVALID_ARGUMENT, "model %snorms whole rows of Q, which has gates in it", at);
  check.range("kv_layer", m.kv_layer, 0, index);
  if (m.kv_layer == 0) return;
  const mr_mixer_desc& of = desc.mixer(index - m.kv_layer);
  if (!attends(of) || of.kv_layer != 0 || of.kv_heads != m.kv_heads || of.key_dim != m.key_dim || of.value_dim != m.value_dim)
    fail(MR_INVALID_ARGUMENT, "model %sreads the keys of layer %d, which has others or none of its own", at, index - m.kv_layer);
}

void check_experts(const Checker& check, const mr_experts_desc& e) {
  const char* const at = check.at.c_str();
  if ((e.flags & ~uint32_t{MR_EXPERTS_FLAGS}) != 0) fail(MR_UNIMPLEMENTED, "model %sexperts have unknown flags 0x%x", at, e.flags);
  check.reserved(e.reserved);
  check.range("experts", e.count, 1, kMostExperts);
  check.range("experts used", e.used, 1, e.count);
  check.range("gating", e.gating, MR_GATE_SOFTMAX, MR_GATE_SIGMOID);
  check.range("groups of experts", e.groups, 0, e.count);
  check.not_negative("weight_scale", e.weight_scale);
  check.range("shared ffn", e.shared_width, 0, kMostWidth);
  if ((e.flags & MR_EXPERTS_SHARED_GATE) != 0 && e.shared_width == 0)
    fail(MR_INVALID_ARGUMENT, "model %sgates a shared expert and has none", at);
  if (e.groups == 0) {
    if (e.groups_used != 0 || (e.flags & MR_EXPERTS_GROUP_BEST_TWO) != 0)
      fail(MR_INVALID_ARGUMENT, "model %suses groups of experts and has none", at);
    return;
  }
  check.range("groups used", e.groups_used, 1, e.groups);
  if (e.count % e.groups != 0)
    fail(MR_INVALID_ARGUMENT, "model %shas %d experts, which %d groups do not divide", at, e.count, e.groups);
  if (e.used > e.count / e.groups * e.groups_used)
    fail(MR_INVALID_ARGUMENT, "model %suses %d experts, but %d groups of %d have fewer", at, e.used, e.groups_used, e.count / e.groups);
}

bool has_experts(const mr_experts_desc& e) {
  return e.flags != 0 || e.count != 0 || e.used != 0 || e.gating != 0 || e.groups != 0 || e.groups_used != 0 || e.weight_scale != 0 ||
         e.shared_width != 0 || std::any_of(std::begin(e.reserved), std::end(e.reserved), [](int32_t member) { return member != 0; });
}

void check_mlp(const mr_mlp_desc& m, const mr_experts_desc& e, int32_t index) {
  const Checker check{"layer " + std::to_string(index) + " "};
  const char* const at = check.at.c_str();
  check.range("mlp kind", m.kind, MR_MLP_DENSE, MR_MLP_EXPERTS);
  if (m.kind == MR_MLP_EXPERTS) {
    check_experts(check, e);
    if ((e.flags & MR_EXPERTS_APART) != 0 && ((m.flags & MR_MLP_NO_NORM) != 0 || e.shared_width == 0))
      fail(MR_INVALID_ARGUMENT, "model %shas experts with norms of their own: want a norm and a shared expert", at);
  }
  if (m.kind != MR_MLP_EXPERTS && has_experts(e)) fail(MR_INVALID_ARGUMENT, "model %smlp is dense and has experts", at);
  if ((m.flags & ~uint32_t{MR_MLP_FLAGS}) != 0) fail(MR_UNIMPLEMENTED, "model %smlp has unknown flags 0x%x", at, m.flags);
  check.reserved(m.reserved);
  check.range("activation", m.activation, MR_ACT_SILU, MR_ACT_CLAMPED);
  check.range("ffn", m.width, 1, kMostWidth);
}

}  // namespace

// The limits are above any model and keep every product of two of them inside 64 bits.
Description read_description(const mr_model_desc& d) {
  const Checker check{""};
  check.range("hidden", d.hidden, 1, 1 << 20);
  check.range("vocab", d.vocab, 1, 1 << 24);
  check.range("context", d.context, 1, kMostPositions);
  check.flag("tied_head", d.tied_head);
  check.not_negative("norm_eps", d.norm_eps);
  check.not_negative("embedding_scale", d.embedding_scale);
  check.not_negative("residual_scale", d.residual_scale);
  check.not_negative("logit_scale", d.logit_scale);
  check.not_negative("logit_cap", d.logit_cap);
  check.range("layer_input_width", d.layer_input_width, 0, 1 << 16);
  check_array(check, "ropes", d.ropes, d.rope_stride, d.rope_count, 0, 16);
  check_array(check, "layers", d.layers, d.layer_stride, d.layer_count, 1, 4096);
  const auto or_one = [](float scale) { return scale == 0 ? 1.0f : scale; };
  Description desc{d.hidden, d.vocab, d.context, d.tied_head != 0, d.norm_eps, or_one(d.embedding_scale), or_one(d.residual_scale),
                   or_one(d.logit_scale), d.logit_cap, {}, {}};
  for (int32_t i = 0; i < d.rope_count; ++i) desc.ropes.push_back(read_rope(element(d.ropes, d.rope_stride, i), i));
  bool attention = false;
  for (int32_t i = 0; i < d.layer_count; ++i) {
    desc.layers.push_back(element(d.layers, d.layer_stride, i));
    const mr_layer_desc& layer = desc.layers.back();
    check_mixer(desc, i);
    check_mlp(layer.mlp, layer.experts, i);
    const Checker of_layer{"layer " + std::to_string(i) + " "};
    of_layer.flag("output_scale", layer.output_scale);
    of_layer.reserved({layer.reserved0});
    attention = attention || keeps_keys(layer.mixer);
  }
  if (!attention) fail(MR_UNIMPLEMENTED, "model has no layer of attention, which every engine wants");
  desc.layer_input_width = d.layer_input_width;
  return desc;
}

bool known_role(int32_t role) { return role >= 0 && role < MR_ROLE_COUNT; }
bool in_layer(int32_t role) { return kRoles[role].in_layer; }
bool is_vector(int32_t role) { return kRoles[role].vector; }
bool is_stack(int32_t role) { return kRoles[role].stack; }

bool has_role(const Description& desc, int32_t role, int32_t layer) {
  if (role >= MR_ROLE_LAYER_INPUT_EMBEDDING && role <= MR_ROLE_LAYER_INPUT_END_NORM) return desc.layer_input_width != 0;
  if (!in_layer(role)) return role != MR_ROLE_OUTPUT || !desc.tied_head;
  const mr_layer_desc& l = desc.layers[static_cast<size_t>(layer)];
  const auto mixer = [&](uint32_t flags) { return (l.mixer.flags & flags) != 0; };
  const bool attention = attends(l.mixer), delta = l.mixer.kind == MR_MIX_DELTA, latent = by_latent(l.mixer);
  const bool own_keys = attention && l.mixer.kv_layer == 0, own_values = own_keys && !mixer(MR_MIX_VALUE_IS_KEY);
  const bool mixture = l.mlp.kind == MR_MLP_EXPERTS, shared = l.experts.shared_width != 0;
  switch (role) {
    case MR_ROLE_ATTN_NORM: return !mixer(MR_MIX_NO_NORM);
    case MR_ROLE_Q: return attention || (latent && l.mixer.query_latent == 0);
    case MR_ROLE_O: return attention || latent;
    case MR_ROLE_K: return own_keys;
    case MR_ROLE_V: return own_values;
    case MR_ROLE_Q_BIAS: return mixer(MR_MIX_QKV_BIAS);
    case MR_ROLE_K_BIAS: return mixer(MR_MIX_QKV_BIAS) && own_keys;
    case MR_ROLE_V_BIAS: return mixer(MR_MIX_QKV_BIAS) && own_values;
    case MR_ROLE_Q_NORM: return mixer(MR_MIX_QK_NORM | MR_MIX_QK_ROW_NORM);
    case MR_ROLE_K_NORM: return mixer(MR_MIX_QK_NORM | MR_MIX_QK_ROW_NORM) && own_keys;
    case MR_ROLE_O_BIAS: return mixer(MR_MIX_OUT_BIAS);
    case MR_ROLE_ATTN_END_NORM: return mixer(MR_MIX_END_NORM);
    case MR_ROLE_FFN_NORM: return (l.mlp.flags & MR_MLP_NO_NORM) == 0;
    case MR_ROLE_FFN_END_NORM: return (l.mlp.flags & MR_MLP_END_NORM) != 0;
    case MR_ROLE_LAYER_SCALE: return l.output_scale != 0;
    case MR_ROLE_GATE:
    case MR_ROLE_UP:
    case MR_ROLE_DOWN: return !mixture;
    case MR_ROLE_ROUTER:
    case MR_ROLE_EXPERT_GATE:
    case MR_ROLE_EXPERT_UP:
    case MR_ROLE_EXPERT_DOWN: return mixture;
    case MR_ROLE_CHOICE_BIAS: return (l.experts.flags & MR_EXPERTS_CHOICE_BIAS) != 0;
    case MR_ROLE_SHARED_ROUTER: return (l.experts.flags & MR_EXPERTS_SHARED_GATE) != 0;
    case MR_ROLE_SHARED_GATE:
    case MR_ROLE_SHARED_UP:
    case MR_ROLE_SHARED_DOWN: return shared;
    case MR_ROLE_SINKS: return mixer(MR_MIX_SINKS);
    case MR_ROLE_ROUTER_BIAS: return (l.experts.flags & MR_EXPERTS_ROUTER_BIAS) != 0;
    case MR_ROLE_EXPERT_GATE_BIAS:
    case MR_ROLE_EXPERT_UP_BIAS:
    case MR_ROLE_EXPERT_DOWN_BIAS: return (l.experts.flags & MR_EXPERTS_BIAS) != 0;
    case MR_ROLE_ROUTER_NORM:
    case MR_ROLE_EXPERT_NORM:
    case MR_ROLE_EXPERT_END_NORM:
    case MR_ROLE_SHARED_END_NORM: return (l.experts.flags & MR_EXPERTS_APART) != 0;
    case MR_ROLE_EXPERT_SCALE: return (l.experts.flags & MR_EXPERTS_SCALES) != 0;
    case MR_ROLE_MIX_IN:
    case MR_ROLE_MIX_CONV:
    case MR_ROLE_MIX_OUT: return !attention && !latent;
    case MR_ROLE_MIX_GATE:
    case MR_ROLE_DELTA_BETA:
    case MR_ROLE_DELTA_ALPHA:
    case MR_ROLE_DELTA_DT:
    case MR_ROLE_DELTA_A:
    case MR_ROLE_DELTA_NORM: return delta;
    case MR_ROLE_Q_DOWN:
    case MR_ROLE_Q_LATENT_NORM:
    case MR_ROLE_Q_UP: return latent && l.mixer.query_latent != 0;
    case MR_ROLE_KV_DOWN:
    case MR_ROLE_KV_LATENT_NORM:
    case MR_ROLE_K_UP:
    case MR_ROLE_V_UP: return latent;
    default: return true;
  }
}

void role_dims(const Description& desc, int32_t role, int32_t layer, int64_t dims[3]) {
  const int64_t hidden = desc.hidden;
  const auto set = [&](int64_t in, int64_t out, int64_t count = 1) {
    dims[0] = in;
    dims[1] = out;
    dims[2] = count;
  };
  switch (role) {
    case MR_ROLE_EMBEDDING:
    case MR_ROLE_OUTPUT: return set(hidden, desc.vocab);
    case MR_ROLE_OUTPUT_NORM: return set(hidden, 1);
    case MR_ROLE_LAYER_INPUT_EMBEDDING: return set(layer_inputs_width(desc), desc.vocab);
    case MR_ROLE_LAYER_INPUT_PROJECTION: return set(hidden, layer_inputs_width(desc));
    case MR_ROLE_LAYER_INPUT_NORM: return set(desc.layer_input_width, 1);
    default: break;
  }
  const mr_mixer_desc& m = desc.mixer(layer);
  const int64_t width = desc.mlp(layer).width, shared = desc.experts(layer).shared_width, experts = desc.experts(layer).count;
  const bool by_row = (m.flags & MR_MIX_QK_ROW_NORM) != 0;
  switch (role) {
    case MR_ROLE_Q: return set(hidden, query_width(m));
    case MR_ROLE_K: return set(hidden, key_width(m));
    case MR_ROLE_V: return set(hidden, value_width(m));
    case MR_ROLE_Q_BIAS: return set(query_width(m), 1);
    case MR_ROLE_K_BIAS: return set(key_width(m), 1);
    case MR_ROLE_V_BIAS: return set(value_width(m), 1);
    case MR_ROLE_Q_NORM: return set(by_row ? query_width(m) : m.key_dim, 1);
    case MR_ROLE_K_NORM: return set(by_row ? key_width(m) : m.key_dim, 1);
    case MR_ROLE_O: return set(attended_width(m), hidden);
    case MR_ROLE_GATE:
    case MR_ROLE_UP: return set(hidden, width);
    case MR_ROLE_DOWN: return set(width, hidden);
    case MR_ROLE_LAYER_SCALE: return set(1, 1);
    case MR_ROLE_LAYER_INPUT_GATE: return set(hidden, desc.layer_input_width);
    case MR_ROLE_LAYER_INPUT_DOWN: return set(desc.layer_input_width, hidden);
    case MR_ROLE_ROUTER: return set(hidden, experts);
    case MR_ROLE_CHOICE_BIAS: return set(experts, 1);
    case MR_ROLE_EXPERT_GATE:
    case MR_ROLE_EXPERT_UP: return set(hidden, width, experts);
    case MR_ROLE_EXPERT_DOWN: return set(width, hidden, experts);
    case MR_ROLE_SHARED_GATE:
    case MR_ROLE_SHARED_UP: return set(hidden, shared);
    case MR_ROLE_SHARED_DOWN: return set(shared, hidden);
    case MR_ROLE_SINKS: return set(m.heads, 1);
    case MR_ROLE_ROUTER_BIAS:
    case MR_ROLE_EXPERT_SCALE: return set(experts, 1);
    case MR_ROLE_EXPERT_GATE_BIAS:
    case MR_ROLE_EXPERT_UP_BIAS: return set(width, experts);
    case MR_ROLE_EXPERT_DOWN_BIAS: return set(hidden, experts);
    case MR_ROLE_MIX_IN: return set(hidden, mix_in_width(m, desc.hidden));
    case MR_ROLE_MIX_CONV: return set(m.conv, conv_width(m, desc.hidden));
    case MR_ROLE_MIX_OUT: return set(mix_out_width(m, desc.hidden), hidden);
    case MR_ROLE_MIX_GATE: return set(hidden, attended_width(m));
    case MR_ROLE_DELTA_BETA:
    case MR_ROLE_DELTA_ALPHA: return set(hidden, m.heads);
    case MR_ROLE_DELTA_DT:
    case MR_ROLE_DELTA_A: return set(m.heads, 1);
    case MR_ROLE_DELTA_NORM: return set(m.value_dim, 1);
    case MR_ROLE_Q_DOWN: return set(hidden, m.query_latent);
    case MR_ROLE_Q_LATENT_NORM: return set(m.query_latent, 1);
    case MR_ROLE_Q_UP: return set(m.query_latent, query_width(m));
    case MR_ROLE_KV_DOWN: return set(hidden, cached_width(desc, m));
    case MR_ROLE_KV_LATENT_NORM: return set(m.latent, 1);
    case MR_ROLE_K_UP: return set(m.key_dim - rotated_dims(desc, m), m.latent, m.heads);
    case MR_ROLE_V_UP: return set(m.latent, m.value_dim, m.heads);
    default: return set(hidden, 1);  // norms, the bias of O and the router of a shared expert
  }
}

std::string tensor_name(int32_t role, int32_t layer) {
  if (!known_role(role)) return "role " + std::to_string(role);
  std::string name = kRoles[role].name;
  if (in_layer(role)) name += " of layer " + std::to_string(layer);
  return name;
}

const char* weight_type_name(int32_t type) {
  switch (type) {
    case type_f32: return "F32";
    case type_f16: return "F16";
    case type_bf16: return "BF16";
    case type_q8_0: return "Q8_0";
    case type_q4_0: return "Q4_0";
    case type_q4_1: return "Q4_1";
    case type_q5_0: return "Q5_0";
    case type_q5_1: return "Q5_1";
    case type_q2_k: return "Q2_K";
    case type_q3_k: return "Q3_K";
    case type_q4_k: return "Q4_K";
    case type_q5_k: return "Q5_K";
    case type_q6_k: return "Q6_K";
    case type_iq4_nl: return "IQ4_NL";
    case type_iq4_xs: return "IQ4_XS";
    case type_iq3_xxs: return "IQ3_XXS";
    case type_iq3_s: return "IQ3_S";
    case type_iq2_xxs: return "IQ2_XXS";
    case type_iq2_xs: return "IQ2_XS";
    case type_iq2_s: return "IQ2_S";
    case type_mxfp4: return "MXFP4";
    case type_nvfp4: return "NVFP4";
    default: return "unknown";
  }
}

uint64_t tensor_file_size(const mr_tensor_desc& tensor) {
  if (!known_role(tensor.role))
    fail(MR_INVALID_ARGUMENT, "tensor role is %d: want 0 to %d", tensor.role, MR_ROLE_COUNT - 1);
  const std::string name = tensor_name(tensor.role, tensor.layer);
  const bool vector = is_vector(tensor.role), stack = is_stack(tensor.role);
  const int32_t ndims = (vector ? 1 : 2) + (stack ? 1 : 0);
  if (tensor.ndims != ndims) fail(MR_INVALID_ARGUMENT, "%s has %d dims: want %d", name.c_str(), tensor.ndims, ndims);
  const long long count = stack ? tensor.dims[ndims - 1] : 1;
  const bool by_head = tensor.role == MR_ROLE_K_UP || tensor.role == MR_ROLE_V_UP;
  const int32_t most_count = tensor.role == MR_ROLE_MIX_CONV ? kMostColumns : by_head ? kMostHeads : kMostExperts;
  if (count < 1 || count > most_count)
    fail(MR_INVALID_ARGUMENT, "%s has a last dim of %lld: want 1 to %d", name.c_str(), count, most_count);
  if (vector) {
    if (tensor.type != type_f32)
      fail(MR_INVALID_ARGUMENT, "%s has ggml type %d: want 0 (F32)", name.c_str(), tensor.type);
    if (tensor.dims[0] < 1 || tensor.dims[0] > int64_t{1} << 40)
      fail(MR_INVALID_ARGUMENT, "%s has %lld elements", name.c_str(), static_cast<long long>(tensor.dims[0]));
    return static_cast<uint64_t>(tensor.dims[0]) * static_cast<uint64_t>(count) * sizeof(float);
  }
  const long long in = tensor.dims[0], out = tensor.dims[1];
  if (in < 1 || out < 1 || !supported(tensor.type, in))
    fail(MR_INVALID_ARGUMENT, "%s is (%lld, %lld) of ggml type %d: no type this engine runs, or rows that are not whole blocks",
         name.c_str(), in, out, tensor.type);
  const uint64_t size = file_size(tensor.type, in, out), packed = packed_size(tensor.type, in, out);
  const uint64_t most = (uint64_t{1} << 62) / static_cast<uint64_t>(count);
  if (size == 0 || packed == 0 || size > most || packed > most)
    fail(MR_INVALID_ARGUMENT, "%s is (%lld, %lld, %lld) of ggml type %d: too large", name.c_str(), in, out, count, tensor.type);
  return size * static_cast<uint64_t>(count);
}

void check_tensor(const Description& desc, const mr_tensor_desc& tensor) {
  (void)tensor_file_size(tensor);
  const std::string name = tensor_name(tensor.role, tensor.layer);
  const int32_t layer = tensor.layer;
  if (in_layer(tensor.role) ? layer < 0 || layer >= desc.layer_count() : layer != -1)
    fail(MR_INVALID_ARGUMENT, "%s is bound to layer %d: want %s%d", name.c_str(), layer,
         in_layer(tensor.role) ? "0 to " : "", in_layer(tensor.role) ? desc.layer_count() - 1 : -1);
  if (!has_role(desc, tensor.role, layer)) fail(MR_INVALID_ARGUMENT, "a model of this description has no %s", name.c_str());
  int64_t want[3];
  role_dims(desc, tensor.role, layer, want);
  const auto text = [&](const int64_t (&dims)[3]) {
    std::string out = "(";
    for (int32_t i = 0; i < tensor.ndims; ++i) out += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
    return out + ")";
  };
  if (!std::equal(want, want + tensor.ndims, tensor.dims))
    fail(MR_INVALID_ARGUMENT, "%s is %s: want %s", name.c_str(), text(tensor.dims).c_str(), text(want).c_str());
}

}  // namespace mr
