// model: the weights of one decoder on a device, or divided among those that it leads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cpu/weights.h"
#include "millrace/engine.h"
#include "src/buffer.h"
#include "src/device.h"
#include "src/shard.h"

namespace mr::cuda {

// A sealed model does not change (flip_bit excepted) and may be read by any number of threads.
class Model {
 public:
  // Throws INVALID_ARGUMENT, or UNIMPLEMENTED where no kernel of this engine runs it, naming the field and its value.
  Model(std::shared_ptr<Device> device, const Description& desc);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Bytes of a tensor once bound, on all devices. Throws INVALID_ARGUMENT when no model can have such a tensor.
  static uint64_t resident_size(const Device& device, const mr_tensor_desc& tensor);

  // Packs the staged file bytes on the devices and frees them. The buffer belongs to the call, also when it throws.
  void bind(const mr_tensor_desc& tensor, std::shared_ptr<Buffer> staging);
  void seal();  // also throws INTERNAL naming a tensor that does not lie in its device's memory
  // Digest of the file bytes, computed from device memory. If every device holds the tensor whole and two copies differ, the
  // digest is one that no file has.
  void digest(int32_t tensor, uint8_t out[32]) const;
  void flip_bit(int32_t tensor, uint64_t bit);  // bits count through the ranks' bytes, one after another

  const std::shared_ptr<Device>& device() const { return device_; }
  const Description& desc() const { return desc_; }
  bool sealed() const { return bindings_.sealed(); }

  int32_t ranks() const { return device_->ranks(); }
  const Shard& shard(int32_t rank) const { return *shards_[static_cast<size_t>(rank)]; }

  mutable std::atomic<int64_t> runners{0};  // alive

 private:
  mr_tensor_desc tensor(int32_t index) const;  // throws OUT_OF_RANGE

  const std::shared_ptr<Device> device_;
  const Description desc_;
  std::mutex building_;                        // held by bind and seal
  Bindings bindings_;                     // sealed() excepted, guarded by building_
  mutable std::mutex tensors_mutex_;           // guards tensors_, and that the shards have each of them
  std::vector<mr_tensor_desc> tensors_;        // by index
  std::vector<std::unique_ptr<Shard>> shards_; // by rank
};

}  // namespace mr::cuda
