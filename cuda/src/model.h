// model: the weights of one decoder in device memory, packed for the kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "kernels/linear/weight.h"
#include "millrace/engine.h"
#include "src/buffer.h"
#include "src/device.h"

namespace mr::cuda {

// What a layer's kernels read, in device memory. Matrices are (in, out); vectors f32. Null, or a type of -1, where the
// description has no such tensor; valid for the model's life.
struct Layer {
  const float* attn_norm = nullptr;  // (hidden)
  PackedWeight q;                    // (hidden, heads*head_dim)
  PackedWeight k;                    // (hidden, kv_heads*head_dim)
  PackedWeight v;
  const float* q_bias = nullptr;     // (heads*head_dim)
  const float* k_bias = nullptr;     // (kv_heads*head_dim)
  const float* v_bias = nullptr;
  const float* q_norm = nullptr;     // (head_dim)
  const float* k_norm = nullptr;
  PackedWeight o;                    // (heads*head_dim, hidden)
  const float* o_bias = nullptr;
  const float* ffn_norm = nullptr;   // (hidden)
  PackedWeight gate;                 // (hidden, ffn)
  PackedWeight up;
  PackedWeight down;                 // (ffn, hidden)
};

// A sealed model does not change (flip_bit excepted) and may be read by any number of threads.
class Model {
 public:
  // Throws INVALID_ARGUMENT naming the field and its value.
  Model(std::shared_ptr<Device> device, const mr_model_desc& desc);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Bytes of a tensor once bound. Throws INVALID_ARGUMENT when no model can have such a tensor.
  static uint64_t resident_size(const mr_tensor_desc& tensor);

  // Packs the staged file bytes on the device and frees them. The buffer belongs to the call, also when it throws.
  void bind(const mr_tensor_desc& tensor, std::shared_ptr<Buffer> staging);
  void seal();
  void digest(int32_t tensor, uint8_t out[32]) const;
  void flip_bit(int32_t tensor, uint64_t bit);

  const std::shared_ptr<Device>& device() const { return device_; }
  const mr_model_desc& desc() const { return desc_; }
  bool sealed() const { return sealed_.load(); }
  float attn_scale() const;  // desc().attn_scale, or 1/sqrt(head_dim) where that is 0

  // The following are complete once the model is sealed.
  const PackedWeight& embedding() const { return embedding_; }  // (hidden, vocab), read by row
  const PackedWeight& head() const { return head_; }            // (hidden, vocab); the embedding when tied
  const float* output_norm() const { return output_norm_; }     // (hidden)
  // (rope_dims/2) in host memory, or null without them.
  const float* rope_factors() const { return rope_factors_.empty() ? nullptr : rope_factors_.data(); }
  const Layer& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }

  mutable std::atomic<int64_t> runners{0};  // alive

 private:
  struct Tensor;

  void place(const Tensor& tensor);
  Tensor& at(int32_t index) const;

  const std::shared_ptr<Device> device_;
  const mr_model_desc desc_;
  std::mutex building_;                          // held by bind and seal
  StreamHandle stream_;                          // of the packing kernels
  std::set<std::pair<int32_t, int32_t>> bound_;  // (role, layer), guarded by building_
  mutable std::mutex tensors_mutex_;
  std::vector<std::unique_ptr<Tensor>> tensors_;  // by index
  std::atomic<bool> sealed_{false};
  std::vector<Layer> layers_;
  PackedWeight embedding_, head_;
  const float* output_norm_ = nullptr;
  std::vector<float> rope_factors_;
};

}  // namespace mr::cuda
