#include "src/shard.h"

#include <algorithm>
#include <cmath>

#include "cpu/shape.h"
#include "kernels/gemm/repack.h"
#include "src/error.h"
#include "src/device_memory.h"

namespace mr::cuda {
namespace {

// Rows of a matrix or elements of a vector; of a stack, those of one member.
int64_t rows_in(const mr_tensor_desc& tensor) { return is_vector(tensor.role) ? tensor.dims[0] : tensor.dims[1]; }

// Bytes in the file of `rows` rows of one member.
uint64_t file_bytes_of(const mr_tensor_desc& tensor, int64_t rows) {
  return is_vector(tensor.role) ? static_cast<uint64_t>(rows) * sizeof(float) : weight_file_bytes(tensor.type, rows, tensor.dims[0]);
}

}  // namespace

int64_t members_in(const mr_tensor_desc& tensor) {
  return is_stack(tensor.role) ? tensor.dims[is_vector(tensor.role) ? 1 : 2] : 1;
}

Shard::Shard(Device& lead, const Description& model, int32_t rank)
    : device_(lead.rank(rank)), rank_(rank), ranks_(lead.ranks()), desc_(part_of(model, rank, ranks_)),
      hidden_(rows_of(MR_ROLE_O, model.hidden, rank, ranks_)), vocab_(rows_of(MR_ROLE_OUTPUT, model.vocab, rank, ranks_)) {
  for (int32_t i = 0; i < model.layer_count(); ++i)
    rows_.push_back({rows_of(MR_ROLE_Q, mix_out_width(model.mixer(i), model.hidden), rank, ranks_),
                     rows_of(MR_ROLE_GATE, model.mlp(i).width, rank, ranks_),
                     rows_of(MR_ROLE_SHARED_GATE, model.experts(i).shared_width, rank, ranks_)});
  device_.enter();
  stream_ = StreamHandle(device_.priority_low);
  weights_.layers.resize(model.layers.size());
  parts_.reserve(static_cast<size_t>(MR_ROLE_COUNT) * (model.layers.size() + 1));  // readers of earlier ones are not moved
}

Shard::~Shard() { (void)cudaSetDevice(device_.index); }

uint64_t Shard::resident_size(const mr_tensor_desc& tensor, int32_t rank, int32_t ranks) {
  const RowRange range = rows_of(tensor.role, rows_in(tensor), rank, ranks);
  const uint64_t each = is_vector(tensor.role) ? file_bytes_of(tensor, range.count)
                                               : weight_packed_bytes(tensor.type, range.count, tensor.dims[0]);
  return each * static_cast<uint64_t>(members_in(tensor));
}

void Shard::bind(const mr_tensor_desc& tensor, const uint8_t* file) {
  device_.enter();
  const RowRange range = rows_of(tensor.role, rows_in(tensor), rank_, ranks_);
  auto part = std::make_unique<Part>();
  part->desc = tensor;
  part->file_bytes = file_bytes_of(tensor, range.count) * static_cast<uint64_t>(members_in(tensor));
  part->memory = device_.ledger.allocate(resident_size(tensor, rank_, ranks_), MR_PURPOSE_WEIGHTS);
  file += file_bytes_of(tensor, range.first);
  const uint64_t stride = file_bytes_of(tensor, rows_in(tensor));
  if (is_vector(tensor.role)) {
    keep_vectors(file, stride, *part);
  } else {
    part->weight = PackedWeight{tensor.type, range.count, tensor.dims[0], part->memory.data()};
    keep_matrices(file, stride, *part);
  }
  parts_.push_back(std::move(part));
}

void Shard::keep_vectors(const uint8_t* file, uint64_t stride, Part& part) {
  const mr_tensor_desc& tensor = part.desc;
  // Members of which it has all rows follow one another in the file too.
  const uint64_t members = static_cast<uint64_t>(members_in(tensor)), each = part.file_bytes / members;
  const uint64_t copies = each == stride ? 1 : members;
  for (uint64_t i = 0; i < copies; ++i)
    device_.transfers.copy(part.memory.data() + i * each, file + i * stride, part.file_bytes / copies);
  const float* const vector = part.memory.as<float>();
  if (tensor.role == MR_ROLE_ATTN_NORM || tensor.role == MR_ROLE_FFN_NORM || tensor.role == MR_ROLE_EXPERT_NORM ||
      tensor.role == MR_ROLE_OUTPUT_NORM || tensor.role == MR_ROLE_Q_LATENT_NORM) {
    std::vector<float> weights(static_cast<size_t>(tensor.dims[0]));
    device_.transfers.download(weights.data(), part.memory.data(), part.file_bytes);
    for (const float weight : weights) part.largest_norm = std::max(part.largest_norm, std::fabs(weight));
  }
  weights_.place(desc_.tied_head, tensor, vector, {});
}

void Shard::keep_matrices(const uint8_t* file, uint64_t stride, Part& part) {
  cudaError_t launched = cudaSuccess;
  for (int64_t i = 0; i < members_in(part.desc) && launched == cudaSuccess; ++i)
    launched = launch_repack(file + static_cast<uint64_t>(i) * stride, matrix_of(part.weight, i), {stream_, false});
  const cudaError_t error = cudaStreamSynchronize(stream_);
  if (error != cudaSuccess) (void)cudaStreamSynchronize(stream_);  // what both ends are given back for has ended then
  check(launched, "repacking a tensor");
  check(error, "waiting for a tensor's repacking");
  weights_.place(desc_.tied_head, part.desc, nullptr, part.weight);
  place_head();
}

// Every rank has the whole embedding; where it is the head too, a rank multiplies with its own rows of it.
void Shard::place_head() {
  head_ = weights_.head;
  if (!desc_.tied_head || head_.data == nullptr) return;
  head_.rows = vocab_.count;
  head_.data += static_cast<uint64_t>(vocab_.first / kPanelRows) * weight_packed_bytes(head_.type, kPanelRows, head_.cols);
}

float Shard::largest_norm() const {
  float largest = 0;
  for (const std::unique_ptr<Part>& part : parts_) largest = std::max(largest, part->largest_norm);
  return largest;
}

void Shard::forget(size_t count) {
  if (count < parts_.size()) parts_.resize(count);
}

void Shard::check_places() const {
  for (const std::unique_ptr<Part>& part : parts_)
    check_device_memory(part->memory.data(), device_.index, tensor_name(part->desc.role, part->desc.layer));
}

void Shard::restore(int32_t tensor, uint64_t offset, uint64_t count, uint8_t* to, cudaStream_t stream) const {
  const Part& part = at(tensor);
  if (is_vector(part.desc.role)) {
    CUDA_CHECK(cudaMemcpyAsync(to, part.memory.data() + offset, count, cudaMemcpyDefault, stream));
    return;
  }
  const uint64_t each = part.file_bytes / static_cast<uint64_t>(members_in(part.desc));
  while (count > 0) {
    const uint64_t within = offset % each, some = std::min(count, each - within);
    CUDA_CHECK(launch_unpack(matrix_of(part.weight, static_cast<int64_t>(offset / each)), within, some, to, {stream, false}));
    offset += some;
    count -= some;
    to += some;
  }
}

void Shard::flip_bit(int32_t tensor, uint64_t bit) {
  uint8_t* const byte = at(tensor).memory.data() + bit / 8;
  uint8_t value = 0;
  device_.transfers.download(&value, byte, 1);
  value = static_cast<uint8_t>(value ^ 1u << bit % 8);
  device_.transfers.upload(byte, &value, 1);
}

}  // namespace mr::cuda
