// search: certified nearest codewords on the device, see docs/decisions/029-vector-numerics.md. A fast pass on the
// tensor cores scores all codewords with a proven error bound; where the bound leaves more than one candidate, binary64
// sums decide. So the ids are those of the binary64 sums, whatever the tensor cores round.
//
// A Search uses memory that its owner passes and allocates nothing. Its functions put work on a stream and return. All
// of them may be captured in a graph, and none waits for the device. A failed launch throws an Error.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

struct SearchShape {
  int32_t metric = 0;         // MR_METRIC_*
  int32_t row_type = 0;       // MR_VECTOR_*: type of the rows; with COSINE F32, already divided by their lengths
  int32_t codeword_type = 0;  // MR_VECTOR_*: codewords have values of this type
  int64_t spaces = 0;         // M, 1 for FLAT
  int64_t codewords = 0;      // k of each subspace, 1 .. 65 536
  int64_t width = 0;          // d, columns of a subspace, 1 .. 65 536
  int64_t most_rows = 0;      // of one call of nearest
};

class Search {
 public:
  // Returns the device memory that a search of this shape needs in addition to rows and results, a multiple of 256
  // bytes.
  static uint64_t bytes(const SearchShape& shape, int device);
  // Returns how many rows an SM searches at once.
  static int64_t tile_rows(const SearchShape& shape, int device);

  // memory: device memory of bytes(...) bytes, 256-byte aligned, owned by the caller. Nothing else may write it while
  // the Search exists.
  Search(const SearchShape& shape, int device, void* memory);

  // Prepares the search for codewords: (spaces, codewords, width) float32 in device memory, 16-byte aligned, each a
  // value of codeword_type. nearest reads them again when it runs, so prepare must be called whenever they change.
  void prepare(const float* codewords, const Stream& on);

  // Finds the ids of `count` rows, 0 .. most_rows: row-major (count, spaces * width) of row_type in device memory, all
  // elements finite. ids[s * stride + i] is the codeword of row i in subspace s, and distances likewise its Q;
  // distances may be null. Adds the number of (row, subspace) pairs with more than one candidate to *recomputed, in
  // device memory.
  void nearest(const void* rows, int64_t count, uint32_t* ids, double* distances, int64_t stride, uint64_t* recomputed, const Stream& on);

 private:
  SearchShape shape_;
  int device_;
  char* memory_;
  const float* codewords_ = nullptr;
};

}  // namespace mr::cuda
