// vector_config: what of a training, a codebook or an encoding is out of its range. Throws INVALID_ARGUMENT naming the member.
#pragma once

#include <cstdint>

#include "millrace/vectors.h"
#include "vector_kernels.h"

namespace mr {

constexpr uint64_t kMostRows = uint64_t{1} << 40;  // of one encode or decode: keeps the arithmetic from overflowing
constexpr int64_t kMostIterations = 1'000'000;    // of a training

// Bytes of one element of MR_VECTOR_*.
constexpr uint64_t element_size(int32_t type) {
  return type == MR_VECTOR_F32 ? 4 : type == MR_VECTOR_F16 || type == MR_VECTOR_BF16 ? 2 : 1;
}

void check_codebook(const mr_codebook_desc& desc);
void check_trainer(const mr_trainer_config& config);
// Throws where a codeword is not finite, naming it.
void check_codewords(const cpu::VectorKernels& kernels, const mr_codebook_desc& desc, const void* codewords);
void check_encoding(const mr_codebook_desc& desc, const mr_encode_args& args);

// The codebook that a training makes.
mr_codebook_desc codebook_of(const mr_trainer_config& config);

// Bytes of its codewords.
uint64_t codebook_size(const mr_codebook_desc& desc);

// Bytes of one code.
constexpr uint64_t code_size(const mr_codebook_desc& desc) { return desc.codewords <= 256 ? 1 : 2; }

}  // namespace mr
