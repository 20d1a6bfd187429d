// shape: which tensors a model of a description has, and what each must look like.
#pragma once

#include <cstdint>
#include <string>

#include "millrace/engine.h"

namespace mr::cpu {

// Positions of the longest sequence: what the sines of rope are exact for at frequency 1.
constexpr int32_t kMostPositions = 1 << 21;

// Throws INVALID_ARGUMENT naming the first field outside its range, and its value; UNIMPLEMENTED naming the first reserved
// one that is set.
void check_desc(const mr_model_desc& desc);

bool known_role(int32_t role);
bool in_layer(int32_t role);     // one a layer, or one a model
bool is_vector(int32_t role);    // F32 of one dimension, or a matrix
bool has_role(const mr_model_desc& desc, int32_t role);
void role_dims(const mr_model_desc& desc, int32_t role, int64_t dims[2]);  // dims[1] of a vector is 1

// "attn_q of layer 3", "output_norm".
std::string tensor_name(int32_t role, int32_t layer);

// Bytes of the tensor's data in a file. Throws INVALID_ARGUMENT when the role is unknown, or the type or the number or
// size of the dims is none that such a tensor can have.
uint64_t tensor_file_size(const mr_tensor_desc& tensor);

// Throws INVALID_ARGUMENT unless the tensor belongs to the model and has the type and the dims its role wants.
void check_tensor(const mr_model_desc& desc, const mr_tensor_desc& tensor);

}  // namespace mr::cpu
