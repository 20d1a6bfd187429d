// uniform: the shape of a model whose layers are all alike. This engine has kernels for such models only.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/shape.h"

namespace mr::cuda {

// Each layer has a norm, attention over all positions with one rotation, a norm and SwiGLU.
struct UniformShape {
  int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
  int32_t context;     // largest position + 1
  int32_t rope_dims;   // rotated leading dims of a head, even; 0 = none
  int32_t rope_style;  // MR_ROPE_*
  float rope_base, rope_scale;
  std::vector<double> divisors;  // of the rope_dims/2 frequencies; empty = ones
  float norm_eps;
  float attn_scale;  // scores are multiplied by it
  int32_t qkv_bias, o_bias, qk_norm, tied_head;  // bools
};

// Throws UNIMPLEMENTED naming the first layer and block that this engine has no kernels for.
UniformShape uniform_shape(const Description& desc);

// The description of a uniform model, the inverse of uniform_shape.
Description description_of(const UniformShape& shape);

}  // namespace mr::cuda
