// shard: what one device holds of a model, packed for the kernels. A model on one device is one shard.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/weights.h"
#include "kernels/gemm/weight.h"
#include "millrace/engine.h"
#include "src/device.h"
#include "src/division.h"

namespace mr::cuda {

using Layer = mr::LayerWeights<PackedWeight>;  // in device memory

// Matrices or vectors that follow one another in a tensor: 1, or of a stack more.
int64_t members_in(const mr_tensor_desc& tensor);

// Changed by its model alone.
class Shard {
 public:
  // Rank `rank` of the devices that `lead` leads.
  Shard(Device& lead, const Description& model, int32_t rank);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  // Bytes of a tensor's part on rank `rank` once bound.
  static uint64_t resident_size(const mr_tensor_desc& tensor, int32_t rank, int32_t ranks);

  // Packs its part of a tensor whose file bytes lie at `file` in the memory of any of the devices: of a stack, its rows of each member
  // one after another. The file bytes are free when it returns, or throws. Tensors are numbered as they come; forget gives those from
  // `count` on back.
  void bind(const mr_tensor_desc& tensor, const uint8_t* file);
  void forget(size_t count);
  void check_places() const;  // throws INTERNAL naming a tensor that does not lie in this device's memory

  uint64_t size(int32_t tensor) const { return at(tensor).memory.size(); }  // resident bytes
  void flip_bit(int32_t tensor, uint64_t bit);
  // File bytes [offset, offset + count) of its part, to memory of the leading device, by a kernel of that device.
  void restore(int32_t tensor, uint64_t offset, uint64_t count, uint8_t* to, cudaStream_t stream) const;
  uint64_t file_size(int32_t tensor) const { return at(tensor).file_bytes; }  // of its part, over all members of a stack

  int32_t rank() const { return rank_; }
  Device& device() const { return device_; }
  const Description& desc() const { return desc_; }      // heads, kv_heads and widths of MLPs and experts are those of this part
  const RowRange& hidden() const { return hidden_; }     // its GEMMs o and down write this part of the residual stream
  const RowRange& vocab() const { return vocab_; }       // of the logits
  // Its parts of what the GEMMs o and down of a layer read: of all heads' outputs, of the width of the MLP or of each expert, and of
  // the shared expert's.
  struct LayerRows {
    RowRange attended, ffn, shared;
  };
  const LayerRows& rows(int32_t layer) const { return rows_[static_cast<size_t>(layer)]; }

  // The following are complete once the model is sealed.
  const PackedWeight& embedding() const { return weights_.embedding; }  // (hidden, vocab), read by row
  const PackedWeight& head() const { return head_; }                    // (hidden, vocab().count)
  const float* output_norm() const { return weights_.output_norm; }     // (hidden)
  const PackedWeight& input_embedding() const { return weights_.input_embedding; }    // null without layer inputs
  const PackedWeight& input_projection() const { return weights_.input_projection; }
  const float* input_norm() const { return weights_.input_norm; }
  float largest_norm() const;                                           // absolute weight of the norms over hidden and latents of queries
  const Layer& layer(int32_t index) const { return weights_.layers[static_cast<size_t>(index)]; }

 private:
  struct Part {
    mr_tensor_desc desc;    // of the whole tensor
    uint64_t file_bytes;    // of this part
    Memory memory;          // the resident bytes: a vector's floats, or the packed weight's
    PackedWeight weight;    // of a matrix; of a stack its first
    float largest_norm = 0; // of a norm over hidden, or over a latent of queries
  };

  const Part& at(int32_t tensor) const { return *parts_[static_cast<size_t>(tensor)]; }
  // The first of its rows of member i is at file + i * stride.
  void keep_vectors(const uint8_t* file, uint64_t stride, Part& part);
  void keep_matrices(const uint8_t* file, uint64_t stride, Part& part);
  void place_head();

  Device& device_;
  const int32_t rank_, ranks_;
  const Description desc_;
  const RowRange hidden_, vocab_;
  std::vector<LayerRows> rows_;                // by layer
  StreamHandle stream_;                        // of the packing kernels
  std::vector<std::unique_ptr<Part>> parts_;   // by tensor
  mr::Weights<PackedWeight> weights_;
  PackedWeight head_;
};

}  // namespace mr::cuda
