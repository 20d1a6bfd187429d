// model: the shards of a model on the host.
#pragma once

#include <memory>
#include <vector>

#include "src/shard.h"

namespace mr::cuda {

class Model {
 public:
  Model(int32_t ranks, const Description& desc) : device_(ranks), desc_(desc) {
    for (int32_t rank = 0; rank < ranks; ++rank) shards_.push_back(std::make_unique<Shard>(device_, desc_, rank));
  }
  void bind(const mr_tensor_desc& tensor, const std::vector<uint8_t>& file) {
    for (const std::unique_ptr<Shard>& shard : shards_) shard->bind(tensor, file.data());
  }
  const Description& desc() const { return desc_; }
  int32_t ranks() const { return device_.ranks(); }
  const Shard& shard(int32_t rank) const { return *shards_[static_cast<size_t>(rank)]; }

 private:
  Device device_;
  const Description desc_;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace mr::cuda
