#include "src/model.h"

#include <cmath>
#include <string>
#include <utility>

#include "cpu/shape.h"
#include "kernels/linear/repack.h"
#include "src/digest.h"
#include "src/error.h"

namespace mr::cuda {

using cpu::check_desc;
using cpu::check_tensor;
using cpu::has_role;
using cpu::in_layer;
using cpu::is_vector;
using cpu::tensor_file_size;
using cpu::tensor_name;

struct Model::Tensor {
  mr_tensor_desc desc;
  Memory memory;        // the resident bytes: a vector's floats, or the packed weight's
  PackedWeight weight;  // of a matrix
};

Model::Model(std::shared_ptr<Device> device, const mr_model_desc& desc) : device_(std::move(device)), desc_(desc) {
  check_desc(desc);
  device_->enter();
  stream_ = StreamHandle(device_->priority_low);
  layers_.resize(static_cast<size_t>(desc.layers));
  device_->models.fetch_add(1);
}

Model::~Model() {
  tensors_.clear();
  device_->models.fetch_sub(1);
}

float Model::attn_scale() const {
  return desc_.attn_scale != 0 ? desc_.attn_scale : 1.0f / std::sqrt(static_cast<float>(desc_.head_dim));
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
  if (sealed()) fail(MR_FAILED_PRECONDITION, "the model is sealed: no tensor can be bound any more");
  check_tensor(desc_, desc);
  const std::string name = tensor_name(desc.role, desc.layer);
  if (bound_.count({desc.role, desc.layer}) != 0) fail(MR_ALREADY_EXISTS, "%s is bound already", name.c_str());
  if (staging->device() != device_) fail(MR_INVALID_ARGUMENT, "%s lies in a buffer of another device", name.c_str());
  const uint64_t size = tensor_file_size(desc);
  if (staging->size() != size)
    fail(MR_INVALID_ARGUMENT, "%s has %llu bytes, but its buffer %llu", name.c_str(), static_cast<unsigned long long>(size),
         static_cast<unsigned long long>(staging->size()));

  device_->enter();
  auto tensor = std::make_unique<Tensor>();
  tensor->desc = desc;
  const uint64_t resident = resident_size(desc);
  tensor->memory = device_->ledger.allocate(resident, MR_PURPOSE_WEIGHTS);
  if (is_vector(desc.role)) {
    device_->transfers.copy(tensor->memory.data(), staging->data(), size);
    if (desc.role == MR_ROLE_ROPE_FACTORS) {
      rope_factors_.resize(static_cast<size_t>(desc.dims[0]));
      device_->transfers.download(rope_factors_.data(), tensor->memory.data(), size);
    }
  } else {
    tensor->weight = PackedWeight{desc.type, desc.dims[1], desc.dims[0], tensor->memory.data()};
    CUDA_CHECK(launch_repack(staging->data(), tensor->weight, {stream_, false}));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  {
    const std::lock_guard<std::mutex> lock(tensors_mutex_);
    tensors_.push_back(std::move(tensor));
    place(*tensors_.back());
  }
  bound_.emplace(desc.role, desc.layer);
  if (staging.use_count() == 1) staging->release();
}

void Model::place(const Tensor& tensor) {
  const float* const vector = tensor.memory.as<float>();
  const PackedWeight& weight = tensor.weight;
  Layer* const layer = in_layer(tensor.desc.role) ? &layers_[static_cast<size_t>(tensor.desc.layer)] : nullptr;
  switch (tensor.desc.role) {
    case MR_ROLE_EMBEDDING:
      embedding_ = weight;
      if (desc_.tied_head != 0) head_ = weight;
      break;
    case MR_ROLE_OUTPUT_NORM: output_norm_ = vector; break;
    case MR_ROLE_OUTPUT: head_ = weight; break;
    case MR_ROLE_ROPE_FACTORS: break;  // read by the host
    case MR_ROLE_ATTN_NORM: layer->attn_norm = vector; break;
    case MR_ROLE_Q: layer->q = weight; break;
    case MR_ROLE_K: layer->k = weight; break;
    case MR_ROLE_V: layer->v = weight; break;
    case MR_ROLE_Q_BIAS: layer->q_bias = vector; break;
    case MR_ROLE_K_BIAS: layer->k_bias = vector; break;
    case MR_ROLE_V_BIAS: layer->v_bias = vector; break;
    case MR_ROLE_Q_NORM: layer->q_norm = vector; break;
    case MR_ROLE_K_NORM: layer->k_norm = vector; break;
    case MR_ROLE_O: layer->o = weight; break;
    case MR_ROLE_O_BIAS: layer->o_bias = vector; break;
    case MR_ROLE_FFN_NORM: layer->ffn_norm = vector; break;
    case MR_ROLE_GATE: layer->gate = weight; break;
    case MR_ROLE_UP: layer->up = weight; break;
    case MR_ROLE_DOWN: layer->down = weight; break;
  }
}

void Model::seal() {
  const std::lock_guard<std::mutex> building(building_);
  if (sealed()) fail(MR_FAILED_PRECONDITION, "the model is sealed already");
  std::string missing;
  const auto need = [&](int32_t role, int32_t layer) {
    if (bound_.count({role, layer}) == 0) missing += (missing.empty() ? "" : ", ") + tensor_name(role, layer);
  };
  for (int32_t role = 0; role < MR_ROLE_COUNT; ++role) {
    if (!has_role(desc_, role)) continue;
    if (!in_layer(role)) need(role, -1);
    for (int32_t layer = 0; in_layer(role) && layer < desc_.layers; ++layer) need(role, layer);
  }
  if (!missing.empty()) throw Error(MR_FAILED_PRECONDITION, 0, "the model lacks " + missing);
  sealed_.store(true);
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
