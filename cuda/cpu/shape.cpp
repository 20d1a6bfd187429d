#include "shape.h"

#include <cmath>

#include "error.h"
#include "linear.h"

namespace mr::cpu {
namespace {

struct Role {
  const char* name;
  bool in_layer, vector;
};

constexpr Role kRoles[MR_ROLE_COUNT] = {
    {"token_embedding", false, false}, {"output_norm", false, true}, {"output", false, false},
    {"rope_factors", false, true},     {"attn_norm", true, true},    {"attn_q", true, false},
    {"attn_k", true, false},           {"attn_v", true, false},      {"attn_q_bias", true, true},
    {"attn_k_bias", true, true},       {"attn_v_bias", true, true},  {"attn_q_norm", true, true},
    {"attn_k_norm", true, true},       {"attn_output", true, false}, {"attn_output_bias", true, true},
    {"ffn_norm", true, true},          {"ffn_gate", true, false},    {"ffn_up", true, false},
    {"ffn_down", true, false}};

void check_range(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail(MR_INVALID_ARGUMENT, "model %s is %lld: want %lld to %lld", field, static_cast<long long>(value),
         static_cast<long long>(low), static_cast<long long>(high));
}

void check_bool(const char* field, int32_t value) { check_range(field, value, 0, 1); }

void check_positive(const char* field, float value) {
  if (!std::isfinite(value) || value <= 0)
    fail(MR_INVALID_ARGUMENT, "model %s is %g: want a finite number above 0", field, static_cast<double>(value));
}

void check_not_negative(const char* field, float value) {
  if (!std::isfinite(value) || value < 0)
    fail(MR_INVALID_ARGUMENT, "model %s is %g: want a finite number not below 0", field, static_cast<double>(value));
}

void check_reserved(const char* field, bool unset) {
  if (!unset) fail(MR_UNIMPLEMENTED, "model %s is set: want 0, this engine runs no model that lies on several devices", field);
}

}  // namespace

// The limits are above any model and keep every product of two of them inside 64 bits.
void check_desc(const mr_model_desc& desc) {
  check_range("layers", desc.layers, 1, 4096);
  check_range("hidden", desc.hidden, 1, 1 << 20);
  check_range("heads", desc.heads, 1, 1 << 14);
  check_range("kv_heads", desc.kv_heads, 1, desc.heads);
  if (desc.heads % desc.kv_heads != 0)
    fail(MR_INVALID_ARGUMENT, "model kv_heads is %d: want a divisor of heads, which is %d", desc.kv_heads, desc.heads);
  check_range("head_dim", desc.head_dim, 1, 4096);
  check_range("ffn", desc.ffn, 1, 1 << 22);
  check_range("vocab", desc.vocab, 1, 1 << 24);
  check_range("context", desc.context, 1, kMostPositions);
  check_range("rope_dims", desc.rope_dims, 0, desc.head_dim);
  if (desc.rope_dims % 2 != 0) fail(MR_INVALID_ARGUMENT, "model rope_dims is %d: want an even number", desc.rope_dims);
  check_range("rope_style", desc.rope_style, MR_ROPE_NORM, MR_ROPE_NEOX);
  check_positive("rope_base", desc.rope_base);
  check_positive("rope_scale", desc.rope_scale);
  check_not_negative("norm_eps", desc.norm_eps);
  check_not_negative("attn_scale", desc.attn_scale);
  check_bool("qkv_bias", desc.qkv_bias);
  check_bool("o_bias", desc.o_bias);
  check_bool("qk_norm", desc.qk_norm);
  check_bool("tied_head", desc.tied_head);
  check_bool("rope_factors", desc.rope_factors);
  if (desc.rope_factors != 0 && desc.rope_dims == 0)
    fail(MR_INVALID_ARGUMENT, "model rope_factors is 1: want 0 where rope_dims is 0");
  check_reserved("parallel_rank", desc.parallel_rank == 0);
  check_reserved("parallel_size", desc.parallel_size == 0);
  check_reserved("communicator", desc.communicator == nullptr);
}

bool known_role(int32_t role) { return role >= 0 && role < MR_ROLE_COUNT; }
bool in_layer(int32_t role) { return kRoles[role].in_layer; }
bool is_vector(int32_t role) { return kRoles[role].vector; }

bool has_role(const mr_model_desc& desc, int32_t role) {
  switch (role) {
    case MR_ROLE_OUTPUT: return desc.tied_head == 0;
    case MR_ROLE_ROPE_FACTORS: return desc.rope_factors != 0;
    case MR_ROLE_Q_BIAS:
    case MR_ROLE_K_BIAS:
    case MR_ROLE_V_BIAS: return desc.qkv_bias != 0;
    case MR_ROLE_O_BIAS: return desc.o_bias != 0;
    case MR_ROLE_Q_NORM:
    case MR_ROLE_K_NORM: return desc.qk_norm != 0;
    default: return true;
  }
}

void role_dims(const mr_model_desc& desc, int32_t role, int64_t dims[2]) {
  const int64_t hidden = desc.hidden, q = int64_t{desc.heads} * desc.head_dim, kv = int64_t{desc.kv_heads} * desc.head_dim;
  const auto set = [&](int64_t in, int64_t out) {
    dims[0] = in;
    dims[1] = out;
  };
  switch (role) {
    case MR_ROLE_EMBEDDING:
    case MR_ROLE_OUTPUT: return set(hidden, desc.vocab);
    case MR_ROLE_ROPE_FACTORS: return set(desc.rope_dims / 2, 1);
    case MR_ROLE_Q: return set(hidden, q);
    case MR_ROLE_K:
    case MR_ROLE_V: return set(hidden, kv);
    case MR_ROLE_Q_BIAS: return set(q, 1);
    case MR_ROLE_K_BIAS:
    case MR_ROLE_V_BIAS: return set(kv, 1);
    case MR_ROLE_Q_NORM:
    case MR_ROLE_K_NORM: return set(desc.head_dim, 1);
    case MR_ROLE_O: return set(q, hidden);
    case MR_ROLE_GATE:
    case MR_ROLE_UP: return set(hidden, desc.ffn);
    case MR_ROLE_DOWN: return set(desc.ffn, hidden);
    default: return set(hidden, 1);  // the norms and the bias of O
  }
}

std::string tensor_name(int32_t role, int32_t layer) {
  if (!known_role(role)) return "role " + std::to_string(role);
  std::string name = kRoles[role].name;
  if (in_layer(role)) name += " of layer " + std::to_string(layer);
  return name;
}

uint64_t tensor_file_size(const mr_tensor_desc& tensor) {
  if (!known_role(tensor.role))
    fail(MR_INVALID_ARGUMENT, "tensor role is %d: want 0 to %d", tensor.role, MR_ROLE_COUNT - 1);
  const std::string name = tensor_name(tensor.role, tensor.layer);
  if (is_vector(tensor.role)) {
    if (tensor.type != type_f32)
      fail(MR_INVALID_ARGUMENT, "%s has ggml type %d: want 0 (F32)", name.c_str(), tensor.type);
    if (tensor.ndims != 1) fail(MR_INVALID_ARGUMENT, "%s has %d dims: want 1", name.c_str(), tensor.ndims);
    if (tensor.dims[0] < 1 || tensor.dims[0] > int64_t{1} << 40)
      fail(MR_INVALID_ARGUMENT, "%s has %lld elements", name.c_str(), static_cast<long long>(tensor.dims[0]));
    return static_cast<uint64_t>(tensor.dims[0]) * sizeof(float);
  }
  if (tensor.ndims != 2) fail(MR_INVALID_ARGUMENT, "%s has %d dims: want 2", name.c_str(), tensor.ndims);
  const long long in = tensor.dims[0], out = tensor.dims[1];
  if (in < 1 || out < 1 || !supported(tensor.type, in))
    fail(MR_INVALID_ARGUMENT, "%s is (%lld, %lld) of ggml type %d: no type this engine runs, or rows that are not whole blocks",
         name.c_str(), in, out, tensor.type);
  const uint64_t size = file_size(tensor.type, in, out);
  if (size == 0 || packed_size(tensor.type, in, out) == 0)
    fail(MR_INVALID_ARGUMENT, "%s is (%lld, %lld) of ggml type %d: too large", name.c_str(), in, out, tensor.type);
  return size;
}

void check_tensor(const mr_model_desc& desc, const mr_tensor_desc& tensor) {
  (void)tensor_file_size(tensor);
  const std::string name = tensor_name(tensor.role, tensor.layer);
  const int32_t layer = tensor.layer;
  if (in_layer(tensor.role) ? layer < 0 || layer >= desc.layers : layer != -1)
    fail(MR_INVALID_ARGUMENT, "%s is bound to layer %d: want %s%d", name.c_str(), layer,
         in_layer(tensor.role) ? "0 to " : "", in_layer(tensor.role) ? desc.layers - 1 : -1);
  if (!has_role(desc, tensor.role)) fail(MR_INVALID_ARGUMENT, "a model of this description has no %s", name.c_str());
  int64_t want[2];
  role_dims(desc, tensor.role, want);
  const int64_t out = is_vector(tensor.role) ? 1 : tensor.dims[1];
  if (tensor.dims[0] != want[0] || out != want[1])
    fail(MR_INVALID_ARGUMENT, "%s is (%lld, %lld): want (%lld, %lld)", name.c_str(),
         static_cast<long long>(tensor.dims[0]), static_cast<long long>(out), static_cast<long long>(want[0]),
         static_cast<long long>(want[1]));
}

}  // namespace mr::cpu
