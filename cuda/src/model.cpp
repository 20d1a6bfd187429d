#include "src/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cpu/shape.h"
#include "kernels/kv.h"
#include "kernels/linear/repack.h"
#include "src/digest.h"
#include "src/error.h"
#include "src/place.h"

namespace mr::cuda {

using cpu::check_desc;
using cpu::is_vector;
using cpu::tensor_file_size;

namespace {

constexpr int32_t kMostVocab = 1 << 18;  // of the sampler

// Throws UNIMPLEMENTED naming the first field of a description that no kernel runs, and what they do.
void check_kernels(const mr_model_desc& desc) {
  if (pad_head_dim(desc.head_dim) == 0)
    fail(MR_UNIMPLEMENTED, "model head_dim is %d: this engine runs heads of 1 to 256 dims", desc.head_dim);
  if (desc.vocab > kMostVocab)
    fail(MR_UNIMPLEMENTED, "model vocab is %d: this engine samples from at most %d tokens", desc.vocab, kMostVocab);
}

}  // namespace

struct Model::Tensor {
  mr_tensor_desc desc;
  Memory memory;        // the resident bytes: a vector's floats, or the packed weight's
  PackedWeight weight;  // of a matrix
};

Model::Model(std::shared_ptr<Device> device, const mr_model_desc& desc) : device_(std::move(device)), desc_(desc), bindings_(desc) {
  check_desc(desc);
  check_kernels(desc);
  device_->enter();
  stream_ = StreamHandle(device_->priority_low);
  weights_.layers.resize(static_cast<size_t>(desc.layers));
  device_->models.fetch_add(1);
}

Model::~Model() {
  (void)cudaSetDevice(device_->index);
  tensors_.clear();
  device_->models.fetch_sub(1);
}

uint64_t Model::resident_size(const mr_tensor_desc& tensor) {
  const uint64_t size = tensor_file_size(tensor);
  return is_vector(tensor.role) ? size : weight_packed_bytes(tensor.type, tensor.dims[1], tensor.dims[0]);
}

Model::Tensor& Model::at(int32_t index) const {
  const std::lock_guard<std::mutex> lock(tensors_mutex_);
  if (index < 0 || static_cast<size_t>(index) >= tensors_.size())
    fail(MR_OUT_OF_RANGE, "tensor %d of a model of %zu tensors", index, tensors_.size());
  return *tensors_[static_cast<size_t>(index)];
}

void Model::bind(const mr_tensor_desc& desc, std::shared_ptr<Buffer> staging) {
  const std::lock_guard<std::mutex> building(building_);
  bindings_.expect(desc, staging->device() == device_, staging->size());
  const uint64_t size = staging->size();

  device_->enter();
  auto tensor = std::make_unique<Tensor>();
  tensor->desc = desc;
  const uint64_t resident = resident_size(desc);
  tensor->memory = device_->ledger.allocate(resident, MR_PURPOSE_WEIGHTS);
  const float* vector = tensor->memory.as<float>();
  float largest = 0;
  if (is_vector(desc.role)) {
    device_->transfers.copy(tensor->memory.data(), staging->data(), size);
    if (desc.role == MR_ROLE_ROPE_FACTORS) {
      rope_factors_.resize(static_cast<size_t>(desc.dims[0]));
      device_->transfers.download(rope_factors_.data(), tensor->memory.data(), size);
      vector = rope_factors_.data();
    }
    if (desc.role == MR_ROLE_ATTN_NORM || desc.role == MR_ROLE_FFN_NORM || desc.role == MR_ROLE_OUTPUT_NORM) {
      std::vector<float> weights(static_cast<size_t>(desc.dims[0]));
      device_->transfers.download(weights.data(), tensor->memory.data(), size);
      for (const float weight : weights) largest = std::max(largest, std::fabs(weight));
    }
  } else {
    tensor->weight = PackedWeight{desc.type, desc.dims[1], desc.dims[0], tensor->memory.data()};
    CUDA_CHECK(launch_repack(staging->data(), tensor->weight, {stream_, false}));
    const cudaError_t error = cudaStreamSynchronize(stream_);
    if (error != cudaSuccess) (void)cudaStreamSynchronize(stream_);  // what both ends are given back for has ended then
    check(error, "waiting for a tensor's repacking");
  }
  {
    const std::lock_guard<std::mutex> lock(tensors_mutex_);
    tensors_.push_back(std::move(tensor));
    weights_.place(desc_, desc, vector, tensors_.back()->weight);
    largest_norm_ = std::max(largest_norm_, largest);
  }
  bindings_.add(desc);
}

void Model::seal() {
  const std::lock_guard<std::mutex> building(building_);
  device_->enter();
  for (const std::unique_ptr<Tensor>& tensor : tensors_)
    check_place(tensor->memory.data(), device_->index, cpu::tensor_name(tensor->desc.role, tensor->desc.layer));
  bindings_.seal();
}

void Model::digest(int32_t index, uint8_t out[32]) const {
  const Tensor& tensor = at(index);
  if (is_vector(tensor.desc.role)) {
    device_->digester->bytes(tensor.memory.data(), tensor.memory.size(), out);
    return;
  }
  device_->digester->restored(tensor_file_size(tensor.desc),
                              [&](uint64_t offset, uint64_t count, uint8_t* to, cudaStream_t stream) {
                                CUDA_CHECK(launch_unpack(tensor.weight, offset, count, to, {stream, false}));
                              },
                              out);
}

void Model::flip_bit(int32_t index, uint64_t bit) {
  Tensor& tensor = at(index);
  if (bit / 8 >= tensor.memory.size())
    fail(MR_OUT_OF_RANGE, "bit %llu of a tensor of %llu resident bytes", static_cast<unsigned long long>(bit),
         static_cast<unsigned long long>(tensor.memory.size()));
  uint8_t byte = 0;
  device_->transfers.download(&byte, tensor.memory.data() + bit / 8, 1);
  byte = static_cast<uint8_t>(byte ^ 1u << bit % 8);
  device_->transfers.upload(tensor.memory.data() + bit / 8, &byte, 1);
}

}  // namespace mr::cuda
