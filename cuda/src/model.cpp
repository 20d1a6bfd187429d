#include "src/model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cpu/shape.h"
#include "kernels/experts/route.h"
#include "kernels/gemm/weight.h"
#include "kernels/sampler/sampler.h"
#include "src/digest.h"
#include "src/error.h"
#include "src/kinds.h"

namespace mr::cuda {
namespace {

// Throws UNIMPLEMENTED if no kernel runs matrices of the type, or routers. The message names it.
void check_weight_type(const mr_tensor_desc& tensor) {
  const bool router = tensor.role == MR_ROLE_ROUTER;
  if (is_vector(tensor.role) || (router ? router_supported(tensor.type) : weight_format_index(tensor.type) != kWeightTypeCount)) return;
  fail(MR_UNIMPLEMENTED,
       "%s has weights of type %s, for which this engine has no kernels: load the model on a CPU worker, or take a file of another type",
       tensor_name(tensor.role, tensor.layer).c_str(), weight_type_name(tensor.type));
}

}  // namespace

Model::Model(std::shared_ptr<Device> device, const Description& desc)
    : device_(std::move(device)), desc_(desc), bindings_(desc) {
  check_description(desc_, device_->ranks(), static_cast<int32_t>(device_->properties.sharedMemPerBlockOptin));
  if (desc.vocab > kMostVocab)
    fail(MR_UNIMPLEMENTED, "model vocab is %d: this engine samples from at most %d tokens", desc.vocab, kMostVocab);
  check_division(desc_, device_->ranks());
  for (int32_t rank = 0; rank < device_->ranks(); ++rank) shards_.push_back(std::make_unique<Shard>(*device_, desc_, rank));
  device_->models.fetch_add(1);
}

Model::~Model() {
  shards_.clear();
  device_->models.fetch_sub(1);
}

uint64_t Model::resident_size(const Device& device, const mr_tensor_desc& tensor) {
  (void)tensor_file_size(tensor);  // refuses what no model has
  check_weight_type(tensor);
  uint64_t size = 0;
  for (int32_t rank = 0; rank < device.ranks(); ++rank) size += Shard::resident_size(tensor, rank, device.ranks());
  return size;
}

mr_tensor_desc Model::tensor(int32_t index) const {
  const std::lock_guard<std::mutex> lock(tensors_mutex_);
  if (index < 0 || static_cast<size_t>(index) >= tensors_.size())
    fail(MR_OUT_OF_RANGE, "tensor %d of a model of %zu tensors", index, tensors_.size());
  return tensors_[static_cast<size_t>(index)];
}

void Model::bind(const mr_tensor_desc& desc, std::shared_ptr<Buffer> staging) {
  const std::lock_guard<std::mutex> building(building_);
  bindings_.expect(desc, staging->device() == device_, staging->size());
  check_weight_type(desc);
  try {
    for (const std::unique_ptr<Shard>& shard : shards_) shard->bind(desc, staging->data());
  } catch (...) {
    for (const std::unique_ptr<Shard>& shard : shards_) shard->forget(tensors_.size());
    throw;
  }
  {
    const std::lock_guard<std::mutex> lock(tensors_mutex_);
    tensors_.push_back(desc);
  }
  bindings_.add(desc);
}

void Model::seal() {
  const std::lock_guard<std::mutex> building(building_);
  for (const std::unique_ptr<Shard>& shard : shards_) shard->check_places();
  bindings_.seal();
}

void Model::digest(int32_t index, uint8_t out[32]) const {
  const mr_tensor_desc desc = tensor(index);
  device_->enter();
  if (!held_by_all(desc.role)) {
    std::vector<uint64_t> held;
    for (const std::unique_ptr<Shard>& shard : shards_) held.push_back(shard->file_size(index));
    device_->digester->restored(tensor_file_size(desc), [&](uint64_t offset, uint64_t count, uint8_t* to, cudaStream_t stream) {
      while (count > 0) {
        const FilePart part = file_part(held.data(), ranks(), members_in(desc), offset, count);
        shard(part.rank).restore(index, part.offset, part.bytes, to, stream);
        offset += part.bytes;
        count -= part.bytes;
        to += part.bytes;
      }
    }, out);
    return;
  }
  for (const std::unique_ptr<Shard>& shard : shards_) {
    uint8_t digest[32];
    device_->digester->restored(shard->file_size(index), [&](uint64_t offset, uint64_t count, uint8_t* to, cudaStream_t stream) {
      shard->restore(index, offset, count, to, stream);
    }, digest);
    if (shard == shards_.front()) {
      std::copy_n(digest, sizeof digest, out);
    } else if (!std::equal(digest, digest + sizeof digest, out)) {
      for (int32_t i = 0; i < 32; ++i) out[i] = static_cast<uint8_t>(~out[i]);
      return;
    }
  }
}

void Model::flip_bit(int32_t index, uint64_t bit) {
  (void)tensor(index);
  uint64_t left = bit / 8, size = 0;
  for (const std::unique_ptr<Shard>& shard : shards_) {
    size += shard->size(index);
    if (left < shard->size(index)) return shard->flip_bit(index, left * 8 + bit % 8);
    left -= shard->size(index);
  }
  fail(MR_OUT_OF_RANGE, "bit %llu of a tensor of %llu resident bytes", static_cast<unsigned long long>(bit),
       static_cast<unsigned long long>(size));
}

}  // namespace mr::cuda
