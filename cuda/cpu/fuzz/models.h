// models: small models of given weights, and fuzzed calls on models.
#pragma once

#include "fuzz/devices.h"

namespace fuzz {

// ggml's formats: id, elements and bytes of a block.
struct Format {
  int32_t type, elements, bytes;
};
constexpr Format kFormats[] = {{0, 1, 4},      {1, 1, 2},      {30, 1, 2},     {2, 32, 18},    {3, 32, 20},    {6, 32, 22},
                               {7, 32, 24},    {8, 32, 34},    {20, 32, 18},   {12, 256, 144}, {13, 256, 176}, {14, 256, 210}};

inline mr_model_desc small_desc() {
  mr_model_desc d{};
  d.struct_size = sizeof d;
  d.layers = 1;
  d.hidden = d.ffn = 32;
  d.heads = 2;
  d.kv_heads = 1;
  d.head_dim = d.rope_dims = 16;
  d.vocab = 40;
  d.context = 100;
  d.rope_base = 1e4f;
  d.rope_scale = 1;
  d.norm_eps = 1e-5f;
  return d;
}

inline mr_model_desc rich_desc() {  // every option, and matrices that every format takes
  mr_model_desc d = small_desc();
  d.layers = d.kv_heads = 2;
  d.hidden = 256;
  d.heads = 4;
  d.rope_dims = 12;
  d.vocab = 33;
  d.rope_style = MR_ROPE_NEOX;
  d.attn_scale = 0.2f;
  d.qkv_bias = d.o_bias = d.qk_norm = d.tied_head = d.rope_factors = 1;
  return d;
}

inline int32_t rich_type(int32_t role) {
  switch (role) {
    case MR_ROLE_Q: return 12;
    case MR_ROLE_K: return 13;
    case MR_ROLE_V: return 14;
    case MR_ROLE_O: return 2;
    case MR_ROLE_GATE: return 8;
    case MR_ROLE_UP: return 20;
    case MR_ROLE_DOWN: return 7;
    default: return 30;
  }
}

// A tensor of the role as the description wants it; false: it wants none.
inline bool tensor_of(const mr_model_desc& d, int32_t role, int32_t layer, int32_t type, mr_tensor_desc* tensor) {
  const int64_t q = int64_t{d.heads} * d.head_dim, kv = int64_t{d.kv_heads} * d.head_dim;
  const int64_t wide[MR_ROLE_COUNT][2] = {
      {d.hidden, d.vocab}, {d.hidden, 0}, {d.hidden, d.vocab}, {d.rope_dims / 2, 0}, {d.hidden, 0}, {d.hidden, q}, {d.hidden, kv},
      {d.hidden, kv},      {q, 0},        {kv, 0},             {kv, 0},              {d.head_dim, 0}, {d.head_dim, 0},
      {q, d.hidden},       {d.hidden, 0}, {d.hidden, 0},       {d.hidden, d.ffn},    {d.hidden, d.ffn}, {d.ffn, d.hidden}};
  const bool vector = wide[role][1] == 0;
  *tensor = {sizeof *tensor, role, role < MR_ROLE_ATTN_NORM ? -1 : layer, vector ? 0 : type, vector ? 1 : 2,
             {wide[role][0], wide[role][1]}};
  switch (role) {
    case MR_ROLE_OUTPUT: return d.tied_head == 0;
    case MR_ROLE_ROPE_FACTORS: return d.rope_factors != 0;
    case MR_ROLE_Q_BIAS: case MR_ROLE_K_BIAS: case MR_ROLE_V_BIAS: return d.qkv_bias != 0;
    case MR_ROLE_O_BIAS: return d.o_bias != 0;
    case MR_ROLE_Q_NORM: case MR_ROLE_K_NORM: return d.qk_norm != 0;
    default: return true;
  }
}

// Bytes of a tensor in a file; 0 of what no format has.
inline uint64_t file_bytes(const mr_tensor_desc& t) {
  for (const Format& f : kFormats)
    if (f.type == t.type && t.dims[0] > 0 && t.dims[0] <= 4096 && t.dims[0] % f.elements == 0 && t.dims[1] <= 4096)
      return static_cast<uint64_t>(t.dims[0] / f.elements * f.bytes * (t.ndims == 2 ? std::max<int64_t>(t.dims[1], 0) : 1));
  return 0;
}

// A buffer of sensible weights: numbers near 0, or of a vector near 1; blocks whose scales are finite.
inline mr_buffer* weights(World& w, mr_device* device, const mr_tensor_desc& tensor, uint64_t size) {
  std::vector<uint8_t> bytes(size);
  uint32_t random = static_cast<uint32_t>(tensor.role) * 977 + static_cast<uint32_t>(tensor.layer) * 31 + 7;
  const auto next = [&random] { return random = random * 1664525u + 1013904223u; };
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(next() >> 24) & 0xb3;
  for (size_t i = 0; tensor.type == 0 && i + 4 <= size; i += 4) {
    const float value = (tensor.ndims == 1 ? 1.0f : 0.0f) + (static_cast<float>(next() >> 8) / (1 << 24) - 0.5f) / 2;
    std::memcpy(bytes.data() + i, &value, 4);
  }
  mr_buffer* buffer = nullptr;
  if (w.code(api->buffer_alloc(device, size, MR_PURPOSE_STAGING, &buffer)) != MR_OK) return nullptr;
  must(api->buffer_write(buffer, 0, bytes.data(), size), "a buffer takes as many bytes as it has");
  return buffer;
}

// Binds every tensor that the description wants and seals the model; type_of chooses the format of a role.
template <class TypeOf>
bool complete(World& w, mr_device* device, mr_model* model, const mr_model_desc& d, TypeOf type_of) {
  for (int32_t layer = 0; layer < d.layers; ++layer)
    for (int32_t role = 0; role < MR_ROLE_COUNT; ++role) {
      mr_tensor_desc tensor;
      if (!tensor_of(d, role, layer, type_of(role), &tensor) || (layer > 0 && tensor.layer < 0)) continue;
      mr_buffer* const buffer = weights(w, device, tensor, file_bytes(tensor));
      if (buffer == nullptr || w.code(api->model_bind(model, &tensor, buffer)) != MR_OK) return false;
    }
  return w.code(api->model_seal(model)) == MR_OK;
}

inline void create_model(World& w, Input& in) {
  Arena arena;
  mr_model_desc desc = in.once_in(2) ? rich_desc() : small_desc();
  in.bend(&desc);
  if (w.models.size() >= kMostHandles) return;
  const auto device = w.devices.pick(in);
  mr_model* model = nullptr;
  mr_model_desc* const given = in.once_in(32) ? nullptr : arena.place(desc);
  if (w.code(api->model_create(device.handle, given, &model)) != MR_OK) return;
  desc = known(desc);
  const bool little = desc.layers <= 2 && desc.hidden <= 256 && desc.ffn <= 256 && desc.vocab <= 64 && desc.heads <= 4 &&
                      desc.head_dim <= 64;
  const uint8_t first = in.byte();
  const auto type_of = [first](int32_t role) { return first < 64 ? 0 : kFormats[(first + role) % std::size(kFormats)].type; };
  const bool sealed = little && first % 4 != 3 && complete(w, device.handle, model, desc, type_of);
  w.models.add(model, {desc, false, sealed});
}

inline void bind_tensor(World& w, Input& in) {
  Arena arena;
  const auto model = w.models.pick(in);
  const mr_model_desc desc = model.known != nullptr ? model.known->desc : small_desc();
  mr_tensor_desc tensor;
  (void)tensor_of(desc, static_cast<int32_t>(in.below(MR_ROLE_COUNT)), static_cast<int32_t>(in.below(2)),
                  kFormats[in.below(std::size(kFormats))].type, &tensor);
  in.bend(&tensor);
  uint64_t resident = 0;
  const auto device = w.devices.pick(in);
  (void)w.code(api->model_resident_size(device.handle, arena.place(tensor), in.once_in(16) ? nullptr : &resident));
  auto buffer = w.buffers.pick(in).handle;
  const uint64_t size = file_bytes(tensor);
  if (!in.once_in(4) && size != 0 && size <= kDeviceBytes / 4) buffer = weights(w, device.handle, tensor, size);
  (void)w.code(api->model_bind(model.handle, in.once_in(32) ? nullptr : arena.place(tensor), buffer));
  w.buffers.drop(buffer);  // whatever the answer
}

inline void use_model(World& w, Input& in) {
  const auto model = w.models.pick(in);
  const int32_t index = static_cast<int32_t>(in.once_in(4) ? in.hostile32() : in.below(16));
  mr_digest digest;
  switch (in.below(4)) {
    case 0: return (void)w.code(api->model_seal(model.handle));
    case 1: return (void)w.code(api->model_digest(model.handle, index, in.once_in(16) ? nullptr : &digest));
    case 2:
      if (model.known != nullptr && model.known->lasting) return;
      return (void)w.code(api->model_fault(model.handle, in.once_in(8) ? static_cast<int32_t>(in.hostile32()) : MR_FAULT_FLIP_BIT,
                                           index, in.once_in(2) ? in.hostile64() : in.byte()));
    default:
      if (model.known != nullptr && model.known->lasting) return;
      if (w.code(api->model_destroy(model.handle)) == MR_OK) w.models.drop(model.handle);
  }
}

}  // namespace fuzz
