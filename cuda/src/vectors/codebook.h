// codebook: codewords in device memory, and encoding and decoding with them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>

#include "kernels/vectors/search.h"
#include "millrace/vectors.h"
#include "src/device.h"
#include "src/ledger.h"

namespace mr::cuda {

// Safe for use by any number of threads: one encodes at a time, on a stream of the lowest priority.
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
  struct Piece;
  void widen();
  SearchShape shape(int32_t row_type) const;
  // The search of rows of this type, made ready on the stream.
  Search& search(int32_t row_type) const;
  void begin(const mr_encode_args& args, int64_t first, int64_t count, Piece* piece) const;
  // Throws where a row of the piece is not finite.
  void end(mr_encode_args* args, Piece* piece) const;
  Stream on() const { return {stream_, false}; }

  const std::shared_ptr<Device> device_;
  const mr_codebook_desc desc_;
  const int64_t width_, piece_rows_;  // rows of an encoding that are on the device at once
  mutable std::shared_mutex bits_;    // held alone while a fault changes the codewords
  mutable std::mutex turn_;           // of the stream and the search
  StreamHandle stream_;
  Memory bytes_;                      // as they came
  Memory floats_;                     // (subspaces, codewords, width), where they did not come so
  Memory search_memory_;
  const float* values_ = nullptr;     // (subspaces, codewords, width)
  mutable std::optional<Search> search_;
  mutable int32_t searched_type_ = -1;  // of the rows that the search is ready for
};

}  // namespace mr::cuda
