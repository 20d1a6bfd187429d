// model: the weights of one decoder, repacked for the kernels of its device's path.
#pragma once

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

// A sealed model does not change (flip_bit excepted) and may be read by any number of threads.
class Model {
 public:
  // Throws INVALID_ARGUMENT naming the field and its value.
  Model(std::shared_ptr<Device> device, const mr_model_desc& desc);
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
  const mr_model_desc& desc() const { return desc_; }
  bool sealed() const { return bindings_.sealed(); }

  // The following are complete once the model is sealed.
  const Matrix& embedding() const { return *weights_.embedding; }    // (hidden, vocab), read by row
  const Matrix& head() const { return *weights_.head; }              // (hidden, vocab); the embedding when tied
  const float* output_norm() const { return weights_.output_norm; }  // (hidden)
  const float* rope_factors() const { return weights_.rope_factors; }  // (rope_dims/2), or null without them
  const Layer& layer(int32_t index) const { return weights_.layers[static_cast<size_t>(index)]; }

  mutable std::atomic<int64_t> runners{0};  // alive

 private:
  struct Tensor;

  Tensor& at(int32_t index) const;

  const std::shared_ptr<Device> device_;
  const mr_model_desc desc_;
  std::mutex building_;        // held by bind and seal
  Bindings bindings_;          // sealed() excepted, guarded by building_
  mutable std::mutex tensors_mutex_;
  std::vector<std::unique_ptr<Tensor>> tensors_;  // by index
  Weights<const Matrix*> weights_;
};

}  // namespace mr::cpu
