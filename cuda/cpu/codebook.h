// codebook: codewords in memory, and encoding and decoding with them.
#pragma once

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "device.h"
#include "millrace/vectors.h"
#include "search.h"

namespace mr::cpu {

// Safe for use by any number of threads.
class Codebook {
 public:
  Codebook(std::shared_ptr<Device> device, const mr_codebook_desc& desc, const void* codewords, uint64_t size);
  ~Codebook();
  Codebook(const Codebook&) = delete;
  Codebook& operator=(const Codebook&) = delete;

  void encode(mr_encode_args* args) const;
  void decode(const void* codes, uint64_t count, void* out) const;
  void digest(uint8_t out[32]) const;
  void flip_bit(uint64_t bit);

 private:
  struct Lane;
  void prepare();
  int64_t encode_group(const mr_encode_args& args, int64_t first, int64_t count, Lane* lane) const;
  void encode_neighbours(const mr_encode_args& args, int64_t first, int64_t count, const float* rows, Lane* lane) const;
  int64_t first_not_finite(const float* rows, int64_t count) const;
  double told(double distance) const;
  void put_code(void* codes, int64_t at, uint32_t code) const;

  const std::shared_ptr<Device> device_;
  const mr_codebook_desc desc_;
  const VectorKernels& kernels_;
  const int64_t width_, panels_;
  mutable std::shared_mutex bits_;  // held alone while a fault changes the codewords
  Memory memory_;
  uint8_t* bytes_;                  // as they came
  float* values_;                   // (subspaces, codewords, width); the same bytes where they are F32
  std::vector<Searchable> spaces_;
};

}  // namespace mr::cpu
