// codebook: the parts of encoding and decoding other than the search: widening, codes, reported distances, neighbours,
// gathering.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace mr::cuda {

// to[i] = the codeword value i as float32.
cudaError_t launch_widen_codewords(const void* from, int32_t type, int64_t count, float* to, const Stream& on);

// Writes codes (count, spaces) of one byte if `narrow`, otherwise of two, from ids (spaces, stride).
cudaError_t launch_put_codes(const uint32_t* ids, int64_t count, int64_t spaces, int64_t stride, bool narrow, void* codes, const Stream& on);

// Writes reported distances from Q (spaces, stride): with `product` the sum over the subspaces in ascending order, from
// +0; with `cosine` 1 + Q. Rounded once to float32.
cudaError_t launch_put_distances(const double* q, int64_t count, int64_t spaces, int64_t stride, bool product, bool cosine,
                                 float* distances, const Stream& on);

struct NeighboursArgs {
  const void* rows;     // (count, width) of row_type
  const float* values;  // (codewords, width)
  double* q;            // (count, codewords): workspace for all distances
  void* codes;          // (count, wanted) of one byte if `narrow`, otherwise of two
  float* distances;     // (count, wanted), or null
  int64_t count, codewords, width;
  int32_t row_type, wanted;
  bool inner, cosine, narrow;
};

// Finds the `wanted` codewords of least (Q, id) of each row, in that order.
cudaError_t launch_neighbours(const NeighboursArgs& args, const Stream& on);

struct GatherArgs {
  const void* codewords;  // (spaces, codewords_each, width)
  const void* codes;      // (count, spaces), each below codewords_each
  void* rows;             // (count, spaces * width)
  int64_t count, spaces, codewords_each, width;
  int32_t element_bytes;  // 2 or 4
  bool narrow;            // codes have one byte, otherwise two
};

cudaError_t launch_gather_codewords(const GatherArgs& args, const Stream& on);

}  // namespace mr::cuda
