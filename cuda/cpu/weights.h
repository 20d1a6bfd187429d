// weights: the tensors of a decoder by their roles, whatever an engine holds a matrix as, and the rules of binding them.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "millrace/engine.h"

namespace mr::cpu {

// What a layer's kernels read. Matrices are (in, out), vectors f32. Null, or a default Matrix, where the description has no
// such tensor; valid for the model's life.
template <class Matrix>
struct LayerWeights {
  const float* attn_norm = nullptr;  // (hidden)
  Matrix q = {};                     // (hidden, heads*head_dim)
  Matrix k = {};                     // (hidden, kv_heads*head_dim)
  Matrix v = {};
  const float* q_bias = nullptr;     // (heads*head_dim)
  const float* k_bias = nullptr;     // (kv_heads*head_dim)
  const float* v_bias = nullptr;
  const float* q_norm = nullptr;     // (head_dim)
  const float* k_norm = nullptr;
  Matrix o = {};                     // (heads*head_dim, hidden)
  const float* o_bias = nullptr;
  const float* ffn_norm = nullptr;   // (hidden)
  Matrix gate = {};                  // (hidden, ffn)
  Matrix up = {};
  Matrix down = {};                  // (ffn, hidden)
};

template <class Matrix>
struct Weights {
  Matrix embedding = {};                // (hidden, vocab), read by row
  Matrix head = {};                     // (hidden, vocab); the embedding when tied
  const float* output_norm = nullptr;   // (hidden)
  const float* rope_factors = nullptr;  // (rope_dims/2), or null without them
  std::vector<LayerWeights<Matrix>> layers;

  // Files a tensor that check_tensor has let pass under its role: the vector or the matrix, as the role wants.
  void place(const mr_model_desc& desc, const mr_tensor_desc& tensor, const float* vector, const Matrix& matrix) {
    LayerWeights<Matrix>* const layer = tensor.layer >= 0 ? &layers[static_cast<size_t>(tensor.layer)] : nullptr;
    switch (tensor.role) {
      case MR_ROLE_EMBEDDING:
        embedding = matrix;
        if (desc.tied_head != 0) head = matrix;
        break;
      case MR_ROLE_OUTPUT_NORM: output_norm = vector; break;
      case MR_ROLE_OUTPUT: head = matrix; break;
      case MR_ROLE_ROPE_FACTORS: rope_factors = vector; break;
      case MR_ROLE_ATTN_NORM: layer->attn_norm = vector; break;
      case MR_ROLE_Q: layer->q = matrix; break;
      case MR_ROLE_K: layer->k = matrix; break;
      case MR_ROLE_V: layer->v = matrix; break;
      case MR_ROLE_Q_BIAS: layer->q_bias = vector; break;
      case MR_ROLE_K_BIAS: layer->k_bias = vector; break;
      case MR_ROLE_V_BIAS: layer->v_bias = vector; break;
      case MR_ROLE_Q_NORM: layer->q_norm = vector; break;
      case MR_ROLE_K_NORM: layer->k_norm = vector; break;
      case MR_ROLE_O: layer->o = matrix; break;
      case MR_ROLE_O_BIAS: layer->o_bias = vector; break;
      case MR_ROLE_FFN_NORM: layer->ffn_norm = vector; break;
      case MR_ROLE_GATE: layer->gate = matrix; break;
      case MR_ROLE_UP: layer->up = matrix; break;
      case MR_ROLE_DOWN: layer->down = matrix; break;
    }
  }
};

// Which tensors a model has so far. The caller serialises all but sealed().
class Bindings {
 public:
  explicit Bindings(const mr_model_desc& desc) : desc_(desc) {}

  // Throws unless the tensor may be bound now from a buffer of `staged` bytes: FAILED_PRECONDITION when sealed,
  // ALREADY_EXISTS when it is bound, INVALID_ARGUMENT naming what does not fit.
  void expect(const mr_tensor_desc& tensor, bool same_device, uint64_t staged) const;
  void add(const mr_tensor_desc& tensor) { bound_.emplace(tensor.role, tensor.layer); }

  // Throws FAILED_PRECONDITION when sealed already, or naming every tensor that is missing.
  void seal();
  bool sealed() const { return sealed_.load(); }

 private:
  const mr_model_desc desc_;
  std::set<std::pair<int32_t, int32_t>> bound_;  // (role, layer)
  std::atomic<bool> sealed_{false};
};

// desc.attn_scale, or 1/sqrt(head_dim) where that is 0.
float attn_scale(const mr_model_desc& desc);

}  // namespace mr::cpu
