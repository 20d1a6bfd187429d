// weights: the tensors of a decoder by their roles, whatever an engine holds a matrix as, and the rules of binding them.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "millrace/engine.h"
#include "shape.h"

namespace mr {

// What a layer's kernels read. Matrices are (in, out), stacks of them (in, out, count), vectors f32. Null, or a default Matrix, where
// the description has no such tensor; valid for the model's life.
template <class Matrix>
struct LayerWeights {
  const float* attn_norm = nullptr;      // (hidden)
  Matrix q = {};                         // (hidden, heads*key_dim)
  Matrix k = {};                         // (hidden, kv_heads*key_dim)
  Matrix v = {};                         // (hidden, kv_heads*value_dim)
  const float* q_bias = nullptr;         // (heads*key_dim)
  const float* k_bias = nullptr;         // (kv_heads*key_dim)
  const float* v_bias = nullptr;         // (kv_heads*value_dim)
  const float* q_norm = nullptr;         // (key_dim), or (heads*key_dim) by row
  const float* k_norm = nullptr;         // (key_dim), or (kv_heads*key_dim) by row
  Matrix o = {};                         // (heads*value_dim, hidden)
  const float* o_bias = nullptr;
  const float* attn_end_norm = nullptr;  // (hidden)
  const float* ffn_norm = nullptr;       // (hidden)
  Matrix gate = {};                      // (hidden, width)
  Matrix up = {};
  Matrix down = {};                      // (width, hidden)
  const float* ffn_end_norm = nullptr;   // (hidden)
  const float* scale = nullptr;          // (1)
  Matrix input_gate = {};                // (hidden, layer_input_width)
  Matrix input_down = {};                // (layer_input_width, hidden)
  const float* input_end_norm = nullptr; // (hidden)
  Matrix router = {};                    // (hidden, count)
  const float* choice_bias = nullptr;    // (count)
  Matrix expert_gate = {};               // (hidden, width, count)
  Matrix expert_up = {};
  Matrix expert_down = {};               // (width, hidden, count)
  const float* shared_router = nullptr;  // (hidden)
  Matrix shared_gate = {};               // (hidden, shared_width)
  Matrix shared_up = {};
  Matrix shared_down = {};               // (shared_width, hidden)
  const float* sinks = nullptr;          // (heads)
  const float* router_bias = nullptr;    // (count)
  const float* expert_gate_bias = nullptr;  // (width, count)
  const float* expert_up_bias = nullptr;
  const float* expert_down_bias = nullptr;  // (hidden, count)
  const float* router_norm = nullptr;    // (hidden)
  const float* expert_norm = nullptr;    // (hidden)
  const float* expert_end_norm = nullptr;   // (hidden)
  const float* shared_end_norm = nullptr;   // (hidden)
  const float* expert_scale = nullptr;   // (count)
  Matrix mix_in = {};                    // (hidden, mix_in_width)
  const float* mix_conv = nullptr;       // (conv, conv_width): the taps of each column
  Matrix mix_out = {};                   // (mix_out_width, hidden)
  Matrix mix_gate = {};                  // (hidden, heads*value_dim)
  Matrix delta_beta = {};                // (hidden, heads)
  Matrix delta_alpha = {};
  const float* delta_dt = nullptr;       // (heads)
  const float* delta_a = nullptr;
  const float* delta_norm = nullptr;     // (value_dim)
  Matrix q_down = {};                    // (hidden, query_latent)
  const float* q_latent_norm = nullptr;  // (query_latent)
  Matrix q_up = {};                      // (query_latent, heads*key_dim)
  Matrix kv_down = {};                   // (hidden, cached_width)
  const float* kv_latent_norm = nullptr; // (latent)
  Matrix k_up = {};                      // (key_dim - rotated_dims, latent, heads)
  Matrix v_up = {};                      // (latent, value_dim, heads)
};

template <class Matrix>
struct Weights {
  Matrix embedding = {};                // (hidden, vocab), read by row
  Matrix head = {};                     // (hidden, vocab); the embedding when tied
  const float* output_norm = nullptr;   // (hidden)
  Matrix input_embedding = {};          // (layers*layer_input_width, vocab), read by row
  Matrix input_projection = {};         // (hidden, layers*layer_input_width)
  const float* input_norm = nullptr;    // (layer_input_width)
  std::vector<LayerWeights<Matrix>> layers;

  // Files a tensor that check_tensor has let pass under its role: the vector or the matrix, as the role wants.
  void place(bool tied_head, const mr_tensor_desc& tensor, const float* vector, const Matrix& matrix) {
    LayerWeights<Matrix>* const layer = tensor.layer >= 0 ? &layers[static_cast<size_t>(tensor.layer)] : nullptr;
    switch (tensor.role) {
      case MR_ROLE_EMBEDDING:
        embedding = matrix;
        if (tied_head) head = matrix;
        break;
      case MR_ROLE_OUTPUT_NORM: output_norm = vector; break;
      case MR_ROLE_OUTPUT: head = matrix; break;
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
      case MR_ROLE_ATTN_END_NORM: layer->attn_end_norm = vector; break;
      case MR_ROLE_FFN_NORM: layer->ffn_norm = vector; break;
      case MR_ROLE_GATE: layer->gate = matrix; break;
      case MR_ROLE_UP: layer->up = matrix; break;
      case MR_ROLE_DOWN: layer->down = matrix; break;
      case MR_ROLE_FFN_END_NORM: layer->ffn_end_norm = vector; break;
      case MR_ROLE_LAYER_SCALE: layer->scale = vector; break;
      case MR_ROLE_LAYER_INPUT_EMBEDDING: input_embedding = matrix; break;
      case MR_ROLE_LAYER_INPUT_PROJECTION: input_projection = matrix; break;
      case MR_ROLE_LAYER_INPUT_NORM: input_norm = vector; break;
      case MR_ROLE_LAYER_INPUT_GATE: layer->input_gate = matrix; break;
      case MR_ROLE_LAYER_INPUT_DOWN: layer->input_down = matrix; break;
      case MR_ROLE_LAYER_INPUT_END_NORM: layer->input_end_norm = vector; break;
      case MR_ROLE_ROUTER: layer->router = matrix; break;
      case MR_ROLE_CHOICE_BIAS: layer->choice_bias = vector; break;
      case MR_ROLE_EXPERT_GATE: layer->expert_gate = matrix; break;
      case MR_ROLE_EXPERT_UP: layer->expert_up = matrix; break;
      case MR_ROLE_EXPERT_DOWN: layer->expert_down = matrix; break;
      case MR_ROLE_SHARED_ROUTER: layer->shared_router = vector; break;
      case MR_ROLE_SHARED_GATE: layer->shared_gate = matrix; break;
      case MR_ROLE_SHARED_UP: layer->shared_up = matrix; break;
      case MR_ROLE_SHARED_DOWN: layer->shared_down = matrix; break;
      case MR_ROLE_SINKS: layer->sinks = vector; break;
      case MR_ROLE_ROUTER_BIAS: layer->router_bias = vector; break;
      case MR_ROLE_EXPERT_GATE_BIAS: layer->expert_gate_bias = vector; break;
      case MR_ROLE_EXPERT_UP_BIAS: layer->expert_up_bias = vector; break;
      case MR_ROLE_EXPERT_DOWN_BIAS: layer->expert_down_bias = vector; break;
      case MR_ROLE_ROUTER_NORM: layer->router_norm = vector; break;
      case MR_ROLE_EXPERT_NORM: layer->expert_norm = vector; break;
      case MR_ROLE_EXPERT_END_NORM: layer->expert_end_norm = vector; break;
      case MR_ROLE_SHARED_END_NORM: layer->shared_end_norm = vector; break;
      case MR_ROLE_EXPERT_SCALE: layer->expert_scale = vector; break;
      case MR_ROLE_MIX_IN: layer->mix_in = matrix; break;
      case MR_ROLE_MIX_CONV: layer->mix_conv = vector; break;
      case MR_ROLE_MIX_OUT: layer->mix_out = matrix; break;
      case MR_ROLE_MIX_GATE: layer->mix_gate = matrix; break;
      case MR_ROLE_DELTA_BETA: layer->delta_beta = matrix; break;
      case MR_ROLE_DELTA_ALPHA: layer->delta_alpha = matrix; break;
      case MR_ROLE_DELTA_DT: layer->delta_dt = vector; break;
      case MR_ROLE_DELTA_A: layer->delta_a = vector; break;
      case MR_ROLE_DELTA_NORM: layer->delta_norm = vector; break;
      case MR_ROLE_Q_DOWN: layer->q_down = matrix; break;
      case MR_ROLE_Q_LATENT_NORM: layer->q_latent_norm = vector; break;
      case MR_ROLE_Q_UP: layer->q_up = matrix; break;
      case MR_ROLE_KV_DOWN: layer->kv_down = matrix; break;
      case MR_ROLE_KV_LATENT_NORM: layer->kv_latent_norm = vector; break;
      case MR_ROLE_K_UP: layer->k_up = matrix; break;
      case MR_ROLE_V_UP: layer->v_up = matrix; break;
    }
  }
};

// Which tensors a model has so far. The caller serialises all but sealed().
class Bindings {
 public:
  explicit Bindings(const Description& desc) : desc_(desc) {}

  // Throws unless the tensor may be bound now from a buffer of `staged` bytes: FAILED_PRECONDITION when sealed,
  // ALREADY_EXISTS when it is bound, INVALID_ARGUMENT naming what does not fit.
  void expect(const mr_tensor_desc& tensor, bool same_device, uint64_t staged) const;
  void add(const mr_tensor_desc& tensor) { bound_.emplace(tensor.role, tensor.layer); }

  // Throws FAILED_PRECONDITION when sealed already, or naming every tensor that is missing.
  void seal();
  bool sealed() const { return sealed_.load(); }

 private:
  const Description desc_;
  std::set<std::pair<int32_t, int32_t>> bound_;  // (role, layer)
  std::atomic<bool> sealed_{false};
};

}  // namespace mr
