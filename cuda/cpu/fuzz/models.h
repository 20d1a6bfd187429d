// models: small models of given weights, and fuzzed calls on models.
#pragma once

#include <algorithm>
#include <iterator>

#include "fuzz/devices.h"
#include "shape.h"

namespace fuzz {

// ggml's formats: id, elements and bytes of a block.
struct Format {
  int32_t type, elements, bytes;
};
constexpr Format kFormats[] = {{0, 1, 4},      {1, 1, 2},      {30, 1, 2},     {2, 32, 18},    {3, 32, 20},    {6, 32, 22},
                               {7, 32, 24},    {8, 32, 34},    {20, 32, 18},   {12, 256, 144}, {13, 256, 176}, {14, 256, 210},
                               {10, 256, 84},  {11, 256, 110}, {23, 256, 136},
                               {16, 256, 66},  {17, 256, 74},  {18, 256, 98},  {21, 256, 110}, {22, 256, 82}, {39, 32, 17}, {40, 64, 36}};

inline int32_t rich_type(int32_t role) {
  switch (role) {
    case MR_ROLE_Q: return 12;
    case MR_ROLE_K: return 13;
    case MR_ROLE_V: return 14;
    case MR_ROLE_O: return 2;
    case MR_ROLE_GATE: return 8;
    case MR_ROLE_UP: return 20;
    case MR_ROLE_DOWN: return 7;
    case MR_ROLE_EXPERT_GATE: return 39;
    case MR_ROLE_EXPERT_UP: return 12;
    case MR_ROLE_EXPERT_DOWN: return 8;
    default: return 30;
  }
}

// Sets *tensor to the one that the description has for a role, and returns whether it has one. The layer may be beyond the last.
inline bool tensor_of(const mr_model_desc& desc, int32_t role, int32_t layer, int32_t type, mr_tensor_desc* tensor) {
  mr::Description d{};
  d.hidden = desc.hidden;
  d.vocab = desc.vocab;
  d.tied_head = desc.tied_head;
  d.layer_input_width = desc.layer_input_width;
  d.layers.assign(desc.layers, desc.layers + desc.layer_count);
  if (desc.rope_count == 1 && desc.ropes != nullptr) d.ropes.push_back(mr::Rope{desc.ropes->dims, MR_ROPE_NORM, 1, 1, 1, {}});
  const int32_t in = std::clamp(layer, 0, desc.layer_count - 1);
  const bool vector = mr::is_vector(role);
  const int32_t count = (vector ? 1 : 2) + (mr::is_stack(role) ? 1 : 0);
  *tensor = {sizeof *tensor, role, mr::in_layer(role) ? layer : -1, vector ? 0 : type, count, {}};
  mr::role_dims(d, role, in, tensor->dims);
  std::fill(tensor->dims + count, std::end(tensor->dims), 0);
  return mr::has_role(d, role, in);
}

// Bytes of a tensor in a file; 0 of what no format has.
inline uint64_t file_bytes(const mr_tensor_desc& t) {
  for (const Format& f : kFormats)
    if (f.type == t.type && t.dims[0] > 0 && t.dims[0] <= 4096 && t.dims[0] % f.elements == 0 && t.dims[1] <= 4096 && t.dims[2] <= 64)
      return static_cast<uint64_t>(t.dims[0] / f.elements * f.bytes * (t.ndims >= 2 ? std::max<int64_t>(t.dims[1], 0) : 1) *
                                   (t.ndims == 3 ? std::max<int64_t>(t.dims[2], 0) : 1));
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
    const float given = tensor.role == MR_ROLE_DELTA_A ? -value : value;  // a state decays
    std::memcpy(bytes.data() + i, &given, 4);
  }
  mr_buffer* buffer = nullptr;
  if (w.code(api->buffer_alloc(device, size, MR_PURPOSE_STAGING, &buffer)) != MR_OK) return nullptr;
  must(api->buffer_write(buffer, 0, bytes.data(), size), "a buffer takes as many bytes as it has");
  return buffer;
}

// Binds every tensor of the description and seals the model; type_of chooses the format of a role.
template <class TypeOf>
bool complete(World& w, mr_device* device, mr_model* model, const mr_model_desc& d, TypeOf type_of) {
  for (int32_t layer = 0; layer < d.layer_count; ++layer)
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
  Described model_of(in.once_in(2)   ? rich_description()
                     : in.once_in(3) ? state_description()
                     : in.once_in(2) ? latent_description()
                                     : small_description());
  plain_arrays& arrays = model_of.arrays;
  const int32_t layers = model_of.desc.layer_count;
  in.bend(&model_of.desc);
  if (in.once_in(2)) {
    in.bend(&arrays.rope);
    const int32_t dims = arrays.rope.dims;
    if (arrays.rope.divisors != nullptr && (dims < 0 || dims > 512)) arrays.rope.divisors = nullptr;
  }
  if (in.once_in(2)) in.bend(&arrays.layers[in.below(static_cast<uint32_t>(layers))]);
  model_of.point();
  mr_model_desc& desc = model_of.desc;
  // What the counts say is there; strides are those of the arrays, or refused.
  if (desc.layer_count > layers) desc.layers = nullptr;
  if (desc.rope_count > 1) desc.ropes = nullptr;
  if (desc.layer_stride != sizeof(mr_layer_desc) && desc.layer_stride >= sizeof(size_t)) desc.layer_stride = sizeof(mr_layer_desc);
  if (desc.rope_stride != sizeof(mr_rope_desc) && desc.rope_stride >= sizeof(size_t)) desc.rope_stride = sizeof(mr_rope_desc);
  if (w.models.size() >= kMostHandles) return;
  const auto device = w.devices.pick(in);
  mr_model* model = nullptr;
  mr_model_desc* const given = in.once_in(32) ? nullptr : arena.place(desc);
  if (w.code(api->model_create(device.handle, given, &model)) != MR_OK) return;
  bool little = desc.hidden <= 256 && desc.vocab <= 64;
  for (int32_t i = 0; i < desc.layer_count; ++i) {
    arrays.layers[i] = known(arrays.layers[i]);
    const mr_layer_desc& l = arrays.layers[i];
    little = little && l.experts.count <= 16 && l.experts.shared_width <= 256 && l.mlp.width <= 256 && l.mixer.heads <= 4 &&
             l.mixer.key_dim <= 64 && l.mixer.value_dim <= 64 && l.mixer.latent <= 64 && l.mixer.query_latent <= 64;
  }
  const uint8_t first = in.byte();
  const auto type_of = [first](int32_t role) { return first < 64 ? 0 : kFormats[(first + role) % std::size(kFormats)].type; };
  const bool sealed = little && first % 4 != 3 && complete(w, device.handle, model, desc, type_of);
  w.models.add(model, {model_of, false, sealed});
}

inline void bind_tensor(World& w, Input& in) {
  Arena arena;
  const auto model = w.models.pick(in);
  const Described described = model.known != nullptr ? model.known->described : small_description();
  mr_tensor_desc tensor;
  (void)tensor_of(described.desc, static_cast<int32_t>(in.below(MR_ROLE_COUNT)), static_cast<int32_t>(in.below(2)),
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
