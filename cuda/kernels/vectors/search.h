// search: certified assignment of rows to codewords on the device, as docs/decisions/029-vector-numerics.md has it: ids are those of
// the binary64 sums, whatever the fast pass through matrix units rounds to.
//
// A Search is made of memory that its owner gives and allocates nothing. Its functions put work on a stream and return; all of them
// may be captured in a graph, and none waits for the device. Failed launches throw as the engine's other launches do.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

struct SearchShape {
  int32_t metric = 0;         // MR_METRIC_*
  int32_t row_type = 0;       // MR_VECTOR_*: of the rows searched for; with COSINE F32, divided by their lengths before
  int32_t codeword_type = 0;  // MR_VECTOR_*: codewords hold values of this type
  int64_t spaces = 0;         // M, 1 for FLAT
  int64_t codewords = 0;      // k of each subspace, 1 .. 65 536
  int64_t width = 0;          // d, columns of a subspace, 1 .. 65 536
  int64_t most_rows = 0;      // of one call of nearest
};

class Search {
 public:
  // Device memory that a search of this shape takes beside its rows and its results, a multiple of 256.
  static uint64_t bytes(const SearchShape& shape, int device);
  // Rows that a multiprocessor searches for at once.
  static int64_t tile_rows(const SearchShape& shape, int device);

  // `memory` is that much device memory, aligned to 256, owned by the caller and untouched by others while the search lives.
  Search(const SearchShape& shape, int device, void* memory);

  // Makes codewords ready: (spaces, codewords, width) float32 in device memory, aligned to 16, each a value of codeword_type. They
  // are read again by nearest, which sees what they hold when it runs: prepare again whenever they change.
  void prepare(const float* codewords, const Stream& on);

  // The ids of `count` rows, 0 .. most_rows: row-major (count, spaces * width) of row_type in device memory, every element finite.
  // ids[s * stride + i] is the codeword of row i in subspace s; distances likewise its Q, null: not wanted. The number of
  // (row, subspace) pairs with more than one candidate is added to *recomputed, in device memory.
  void nearest(const void* rows, int64_t count, uint32_t* ids, double* distances, int64_t stride, uint64_t* recomputed, const Stream& on);

 private:
  SearchShape shape_;
  int device_;
  char* memory_;
  const float* codewords_ = nullptr;
};

}  // namespace mr::cuda
