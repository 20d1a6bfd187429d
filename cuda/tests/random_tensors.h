// random_tensors: all tensors of a description with random bytes.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/shape.h"
#include "kernels/gemm/weight.h"
#include "millrace/engine.h"
#include "tests/uniform.h"

namespace mr::cuda::test {

inline UniformShape desc_of(int32_t heads, int32_t kv_heads, int32_t head_dim) {
  UniformShape d{};
  d.layers = 2;
  d.hidden = 256;
  d.heads = heads;
  d.kv_heads = kv_heads;
  d.head_dim = head_dim;
  d.ffn = 768;
  d.vocab = 509;
  d.context = 1024;
  d.rope_dims = head_dim;
  d.rope_base = 10000;
  d.rope_scale = 1;
  d.norm_eps = 1e-5f;
  return d;
}

// Returns file bytes of a tensor: normal numbers with a variance that keeps the size of activations. F32, F16, Q8_0 or MXFP4.
inline std::vector<uint8_t> random_bytes(const mr_tensor_desc& t, std::mt19937& random) {
  const int64_t in = t.dims[0], out = (t.ndims > 1 ? t.dims[1] : 1) * (t.ndims > 2 ? t.dims[2] : 1);
  std::normal_distribution<float> normal;
  const float spread = t.ndims == 1 ? 0.1f : 1.0f / std::sqrt(static_cast<float>(in));
  std::vector<uint8_t> bytes(tensor_file_size(t));
  if (t.type == kQ8_0) {
    for (size_t at = 0; at < bytes.size(); at += 34) {
      const __half scale = __float2half(spread / 74 * (0.5f + static_cast<float>(random() % 1024) / 1024));
      std::memcpy(&bytes[at], &scale, 2);
      for (size_t i = 2; i < 34; ++i) bytes[at + i] = static_cast<uint8_t>(random());
    }
    return bytes;
  }
  if (t.type == kMXFP4) {
    for (size_t at = 0; at < bytes.size(); ++at)  // scales of 1/64 and 1/32
      bytes[at] = static_cast<uint8_t>(at % 17 == 0 ? 121 + random() % 2 : random());
    return bytes;
  }
  for (int64_t i = 0; i < in * out; ++i) {
    const float value = normal(random) * spread + (t.ndims == 1 ? 1.0f : 0.0f);
    if (t.type == kF16) {
      const __half half = __float2half(value);
      std::memcpy(&bytes[static_cast<size_t>(i) * 2], &half, 2);
    } else {
      std::memcpy(&bytes[static_cast<size_t>(i) * 4], &value, 4);
    }
  }
  return bytes;
}

struct TensorBytes {
  mr_tensor_desc desc;
  std::vector<uint8_t> bytes;
};

// Returns all tensors of a model. type_of(role) is the type of its matrices, and their bytes come from matrix(desc, random).
template <class TypeOf, class Matrix>
std::vector<TensorBytes> described_tensors(const Description& desc, TypeOf type_of, Matrix matrix) {
  std::vector<TensorBytes> tensors;
  std::mt19937 random(7);
  for (int32_t role = 0; role < MR_ROLE_COUNT; ++role) {
    const int32_t layers = in_layer(role) ? desc.layer_count() : 1;
    for (int32_t layer = 0; layer < layers; ++layer) {
      if (!has_role(desc, role, layer)) continue;
      mr_tensor_desc t{};
      t.struct_size = sizeof t;
      t.role = role;
      t.layer = in_layer(role) ? layer : -1;
      t.type = is_vector(role) ? int32_t{kF32} : type_of(role);
      t.ndims = (is_vector(role) ? 1 : 2) + (is_stack(role) ? 1 : 0);
      role_dims(desc, role, layer, t.dims);
      tensors.push_back({t, is_vector(role) ? random_bytes(t, random) : matrix(t, random)});
    }
  }
  return tensors;
}

}  // namespace mr::cuda::test
