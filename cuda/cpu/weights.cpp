#include "weights.h"

#include <string>

#include "error.h"
#include "shape.h"

namespace mr {

void Bindings::expect(const mr_tensor_desc& tensor, bool same_device, uint64_t staged) const {
  if (sealed()) fail(MR_FAILED_PRECONDITION, "the model is sealed: no tensor can be bound any more");
  check_tensor(desc_, tensor);
  const std::string name = tensor_name(tensor.role, tensor.layer);
  if (bound_.count({tensor.role, tensor.layer}) != 0) fail(MR_ALREADY_EXISTS, "%s is bound already", name.c_str());
  if (!same_device) fail(MR_INVALID_ARGUMENT, "%s lies in a buffer of another device", name.c_str());
  const uint64_t size = tensor_file_size(tensor);
  if (staged != size)
    fail(MR_INVALID_ARGUMENT, "%s has %llu bytes, but its buffer %llu", name.c_str(), static_cast<unsigned long long>(size),
         static_cast<unsigned long long>(staged));
}

void Bindings::seal() {
  if (sealed()) fail(MR_FAILED_PRECONDITION, "the model is sealed already");
  std::string missing;
  const auto need = [&](int32_t role, int32_t layer) {
    if (bound_.count({role, layer}) == 0) missing += (missing.empty() ? "" : ", ") + tensor_name(role, layer);
  };
  for (int32_t role = 0; role < MR_ROLE_COUNT; ++role) {
    if (!in_layer(role) && has_role(desc_, role, -1)) need(role, -1);
    for (int32_t layer = 0; in_layer(role) && layer < desc_.layer_count(); ++layer)
      if (has_role(desc_, role, layer)) need(role, layer);
  }
  if (!missing.empty()) throw Error(MR_FAILED_PRECONDITION, 0, "the model lacks " + missing);
  sealed_.store(true);
}

}  // namespace mr
