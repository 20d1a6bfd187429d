// model: the weights of one decoder in device memory, packed for the kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cpu/weights.h"
#include "kernels/linear/weight.h"
#include "millrace/engine.h"
#include "src/buffer.h"
#include "src/device.h"

namespace mr::cuda {

using Layer = cpu::LayerWeights<PackedWeight>;  // in device memory

// A sealed model does not change (flip_bit excepted) and may be read by any number of threads.
class Model {
 public:
  // Throws INVALID_ARGUMENT, or UNIMPLEMENTED where no kernel of this engine runs it, naming the field and its value.
  Model(std::shared_ptr<Device> device, const mr_model_desc& desc);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Bytes of a tensor once bound. Throws INVALID_ARGUMENT when no model can have such a tensor.
  static uint64_t resident_size(const mr_tensor_desc& tensor);

  // Packs the staged file bytes on the device and frees them. The buffer belongs to the call, also when it throws.
  void bind(const mr_tensor_desc& tensor, std::shared_ptr<Buffer> staging);
  void seal();  // also throws INTERNAL naming a tensor that does not lie in this device's memory
  void digest(int32_t tensor, uint8_t out[32]) const;
  void flip_bit(int32_t tensor, uint64_t bit);

  const std::shared_ptr<Device>& device() const { return device_; }
  const mr_model_desc& desc() const { return desc_; }
  bool sealed() const { return bindings_.sealed(); }

  // The following are complete once the model is sealed.
  const PackedWeight& embedding() const { return weights_.embedding; }  // (hidden, vocab), read by row
  const PackedWeight& head() const { return weights_.head; }            // (hidden, vocab); the embedding when tied
  const float* output_norm() const { return weights_.output_norm; }     // (hidden)
  // (rope_dims/2) in host memory, or null without them.
  const float* rope_factors() const { return weights_.rope_factors; }
  float largest_norm() const { return largest_norm_; }                 // absolute weight of the norms over hidden
  const Layer& layer(int32_t index) const { return weights_.layers[static_cast<size_t>(index)]; }

  mutable std::atomic<int64_t> runners{0};  // alive

 private:
  struct Tensor;

  Tensor& at(int32_t index) const;

  const std::shared_ptr<Device> device_;
  const mr_model_desc desc_;
  std::mutex building_;                          // held by bind and seal
  StreamHandle stream_;                          // of the packing kernels
  cpu::Bindings bindings_;                       // sealed() excepted, guarded by building_
  mutable std::mutex tensors_mutex_;
  std::vector<std::unique_ptr<Tensor>> tensors_;  // by index
  cpu::Weights<PackedWeight> weights_;
  std::vector<float> rope_factors_;               // what the host reads of them
  float largest_norm_ = 0;
};

}  // namespace mr::cuda
