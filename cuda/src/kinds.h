// kinds: what the layers of a model have in common, and which descriptions this engine computes.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/shape.h"

namespace mr::cuda {

// Attention of layers that divide its work alike. Layers of one kind share the plans of a step. Layers that carry a state have none.
struct AttentionKind {
  int32_t heads, kv_heads, head_dim;
  int32_t window;  // 0 = none
  int32_t latent, rotated;  // dims of a latent and of its rotated key; 0 of other attention

  bool operator==(const AttentionKind& other) const {
    return heads == other.heads && kv_heads == other.kv_heads && head_dim == other.head_dim && window == other.window &&
           latent == other.latent && rotated == other.rotated;
  }
};

// The kinds of a model in the order of their first layers, and each layer's.
struct Kinds {
  std::vector<AttentionKind> kinds;
  std::vector<int32_t> of_layer;  // index into kinds, -1 of a layer that carries a state

  explicit Kinds(const Description& desc);
  int32_t count() const { return static_cast<int32_t>(kinds.size()); }
};

// Whether the output of a layer's mixer, or of its MLP, is more than added to the residual stream.
bool ends_mixer(const Description& desc, int32_t layer);
bool ends_mlp(const Description& desc, int32_t layer);

// Whether the branch of these experts is made from whole rows of their sums: they are normed, or the shared expert's gate reads the
// residual stream. Else an element of the branch follows from the same element of the sums.
inline bool reads_whole_sums(const mr_experts_desc& experts) {
  return (experts.flags & (MR_EXPERTS_APART | MR_EXPERTS_SHARED_GATE)) != 0;
}

// Throws UNIMPLEMENTED naming the first layer and block that this engine has no kernels for, whose kernels need more shared
// memory than the `shared_bytes` that the device allows a block, or that `ranks` devices do not divide.
void check_description(const Description& desc, int32_t ranks, int32_t shared_bytes);

}  // namespace mr::cuda
