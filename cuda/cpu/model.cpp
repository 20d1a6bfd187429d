#include "model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "digest.h"
#include "error.h"
#include "repack.h"
#include "shape.h"

namespace mr::cpu {

struct Model::Tensor {
  mr_tensor_desc desc;
  Memory memory;  // the resident bytes: a vector's floats, or what the matrices describe
  std::vector<Matrix> matrices;  // one, or those of a stack
};

namespace {

constexpr uint64_t kTaskBytes = uint64_t{512} << 10;  // repacked by one task

void pack(Device& device, Matrix* matrix, const uint8_t* file) {
  const uint64_t row_bytes = file_size(matrix->type, matrix->in, 1);
  const int64_t all = panels(matrix->out);
  const int64_t grain = std::max<int64_t>(1, static_cast<int64_t>(kTaskBytes / (row_bytes * panel_rows)));
  // A few tasks at a time, so that a runner that starts in between finds the threads free.
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

Model::Model(std::shared_ptr<Device> device, Description desc)
    : device_(std::move(device)), desc_(std::move(desc)), bindings_(desc_) {
  weights_.layers.resize(desc_.layers.size());
  device_->models.fetch_add(1);
}

Model::~Model() {
  tensors_.clear();
  device_->models.fetch_sub(1);
}

uint64_t Model::resident_size(const Device&, const mr_tensor_desc& tensor) {
  const uint64_t size = tensor_file_size(tensor);
  if (is_vector(tensor.role)) return size;
  return packed_size(tensor.type, tensor.dims[0], tensor.dims[1]) * static_cast<uint64_t>(is_stack(tensor.role) ? tensor.dims[2] : 1);
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

  auto tensor = std::make_unique<Tensor>();
  tensor->desc = desc;
  const uint64_t resident = resident_size(*device_, desc);
  tensor->memory = device_->ledger.allocate(resident, MR_PURPOSE_WEIGHTS, false);
  uint8_t* const data = tensor->memory.as<uint8_t>();
  const uint8_t* const file = staging->readable(staging->size());
  if (is_vector(desc.role)) {
    std::memcpy(data, file, staging->size());
  } else {
    const uint64_t count = is_stack(desc.role) ? static_cast<uint64_t>(desc.dims[2]) : 1;
    for (uint64_t i = 0; i < count; ++i) {
      tensor->matrices.push_back(Matrix{desc.type, desc.dims[0], desc.dims[1], data + i * (resident / count), resident / count});
      pack(*device_, &tensor->matrices.back(), file + i * (staging->size() / count));
    }
  }
  {
    const std::lock_guard<std::mutex> lock(tensors_mutex_);
    tensors_.push_back(std::move(tensor));
    const Tensor& bound = *tensors_.back();
    weights_.place(desc_.tied_head, desc, bound.memory.as<float>(), bound.matrices.data());
  }
  bindings_.add(desc);
}

void Model::seal() {
  const std::lock_guard<std::mutex> building(building_);
  bindings_.seal();
}

void Model::digest(int32_t index, uint8_t out[32]) const {
  const Tensor& tensor = at(index);
  if (is_vector(tensor.desc.role)) {
    digest_memory(*device_, tensor.memory.as<uint8_t>(), tensor.memory.size(), out);
  } else {
    digest_matrices(*device_, tensor.matrices, out);
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
