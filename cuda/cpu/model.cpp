#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "digest.h"
#include "error.h"
#include "repack.h"
#include "shape.h"

namespace mr::cpu {

struct Model::Tensor {
  mr_tensor_desc desc;
  Memory memory;  // the resident bytes: a vector's floats, or what matrix describes
  Matrix matrix;
};

namespace {

constexpr uint64_t kTaskBytes = uint64_t{512} << 10;  // repacked by one task

void pack(Device& device, Matrix* matrix, const uint8_t* file) {
  const uint64_t row_bytes = file_size(matrix->type, matrix->in, 1);
  const int64_t all = panels(matrix->out);
  const int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(kTaskBytes / (row_bytes * panel_rows)));
  // Some tasks at a time, so that a runner begun meanwhile finds the threads free.
  const int64_t wave = grain * 16 * device.threads.size();
  for (int64_t first = 0; first < all; first += wave) {
    const int64_t last = std::min(all, first + wave);
    device.aside((last - first + grain - 1) / grain, [&](int64_t task, int) {
      const int64_t begin = first + task * grain, end = std::min(last, begin + grain);
      const int64_t row0 = begin * panel_rows, rows = std::min(end * panel_rows, matrix->out) - row0;
      repack_rows(*matrix, file + static_cast<uint64_t>(row0) * row_bytes, row0, rows);
    });
  }
}

}  // namespace

Model::Model(std::shared_ptr<Device> device, const mr_model_desc& desc) : device_(std::move(device)), desc_(desc) {
  check_desc(desc);
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
  return is_vector(tensor.role) ? size : packed_size(tensor.type, tensor.dims[0], tensor.dims[1]);
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

  auto tensor = std::make_unique<Tensor>();
  tensor->desc = desc;
  const uint64_t resident = resident_size(desc);
  tensor->memory = device_->ledger.allocate(resident, MR_PURPOSE_WEIGHTS, false);
  uint8_t* const data = tensor->memory.as<uint8_t>();
  const uint8_t* const file = staging->readable(size);
  if (is_vector(desc.role)) {
    std::memcpy(data, file, size);
  } else {
    tensor->matrix = Matrix{desc.type, desc.dims[0], desc.dims[1], data, resident};
    pack(*device_, &tensor->matrix, file);
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
  const Matrix* const matrix = &tensor.matrix;
  Layer* const layer = in_layer(tensor.desc.role) ? &layers_[static_cast<size_t>(tensor.desc.layer)] : nullptr;
  switch (tensor.desc.role) {
    case MR_ROLE_EMBEDDING:
      embedding_ = matrix;
      if (desc_.tied_head != 0) head_ = matrix;
      break;
    case MR_ROLE_OUTPUT_NORM: output_norm_ = vector; break;
    case MR_ROLE_OUTPUT: head_ = matrix; break;
    case MR_ROLE_ROPE_FACTORS: rope_factors_ = vector; break;
    case MR_ROLE_ATTN_NORM: layer->attn_norm = vector; break;
    case MR_ROLE_Q: layer->q = matrix; break;
    case MR_ROLE_K: layer->k = matrix; break;
    case MR_ROLE_V: layer->v = matrix; break;
    case MR_ROLE_Q_BIAS: layer->q_bias = vector; break;
    case MR_ROLE_K_BIAS: layer->k_bias = vector; break;
    case MR_ROLE_V_BIAS: layer->v_bias = vector; break;
    case MR_ROLE_Q_NORM: layer->q_norm = vector; break;
    case MR_ROLE_K_NORM: layer->k_norm = vector; break;
    case MR_ROLE_O: layer->o = matrix; break;
    case MR_ROLE_O_BIAS: layer->o_bias = vector; break;
    case MR_ROLE_FFN_NORM: layer->ffn_norm = vector; break;
    case MR_ROLE_GATE: layer->gate = matrix; break;
    case MR_ROLE_UP: layer->up = matrix; break;
    case MR_ROLE_DOWN: layer->down = matrix; break;
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
    digest_memory(*device_, tensor.memory.as<uint8_t>(), tensor.memory.size(), out);
  } else {
    digest_matrix(*device_, tensor.matrix, out);
  }
}

void Model::flip_bit(int32_t index, uint64_t bit) {
  Tensor& tensor = at(index);
  if (bit / 8 >= tensor.memory.size())
    fail(MR_OUT_OF_RANGE, "bit %llu of a tensor of %llu resident bytes", static_cast<unsigned long long>(bit),
         static_cast<unsigned long long>(tensor.memory.size()));
  __atomic_fetch_xor(tensor.memory.as<uint8_t>() + bit / 8, static_cast<uint8_t>(1u << (bit % 8)), __ATOMIC_RELAXED);
}

}  // namespace mr::cpu
