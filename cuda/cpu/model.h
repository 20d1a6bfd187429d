// model: the weights of one decoder, repacked for the kernels of its device's path.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "buffer.h"
#include "device.h"
#include "ledger.h"
#include "linear.h"
#include "millrace/engine.h"
#include "weights.h"

namespace mr::cpu {

using Layer = LayerWeights<const Matrix*>;

// The matrices of a layer that every token is multiplied by; null where it has none. A stack is the first of its matrices, which lie
// one after another: of experts, each token is multiplied by a few, of heads by all.
inline std::array<const Matrix*, 21> matrices_of(const Layer& l) {
  return {l.q,      l.k,           l.v,         l.o,           l.mix_in,     l.mix_gate,  l.delta_beta, l.delta_alpha, l.mix_out,
          l.gate,   l.up,          l.down,      l.router,      l.shared_gate, l.shared_up, l.shared_down, l.input_gate, l.input_down,
          l.q_down, l.q_up,        l.kv_down};
}
inline std::array<const Matrix*, 3> expert_stacks_of(const Layer& l) { return {l.expert_gate, l.expert_up, l.expert_down}; }
inline std::array<const Matrix*, 2> head_stacks_of(const Layer& l) { return {l.k_up, l.v_up}; }

// A sealed model does not change (flip_bit excepted) and may be read by any number of threads.
class Model {
 public:
  Model(std::shared_ptr<Device> device, Description desc);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Bytes of a tensor once bound. Throws INVALID_ARGUMENT when no model can have such a tensor.
  static uint64_t resident_size(const Device& device, const mr_tensor_desc& tensor);

  // Repacks the staged file bytes and frees them. The buffer belongs to the call, also when it throws.
  void bind(const mr_tensor_desc& tensor, std::shared_ptr<Buffer> staging);
  void seal();
  void digest(int32_t tensor, uint8_t out[32]) const;
  void flip_bit(int32_t tensor, uint64_t bit);

  const std::shared_ptr<Device>& device() const { return device_; }
  const Description& desc() const { return desc_; }
  bool sealed() const { return bindings_.sealed(); }

  // The following are complete once the model is sealed.
  const Matrix& embedding() const { return *weights_.embedding; }    // (hidden, vocab), read by row
  const Matrix& head() const { return *weights_.head; }              // (hidden, vocab); the embedding when tied
  const float* output_norm() const { return weights_.output_norm; }  // (hidden)
  // Of the inputs of layers; null without them.
  const Matrix* input_embedding() const { return weights_.input_embedding; }    // (layers*layer_input_width, vocab), read by row
  const Matrix* input_projection() const { return weights_.input_projection; }  // (hidden, layers*layer_input_width)
  const float* input_norm() const { return weights_.input_norm; }               // (layer_input_width)
  const Layer& layer(int32_t index) const { return weights_.layers[static_cast<size_t>(index)]; }

  mutable std::atomic<int64_t> runners{0};  // alive

 private:
  struct Tensor;

  Tensor& at(int32_t index) const;

  const std::shared_ptr<Device> device_;
  const Description desc_;
  std::mutex building_;        // held by bind and seal
  Bindings bindings_;          // sealed() excepted, guarded by building_
  mutable std::mutex tensors_mutex_;
  std::vector<std::unique_ptr<Tensor>> tensors_;  // by index
  Weights<const Matrix*> weights_;
};

}  // namespace mr::cpu
