// search_prepare: makes the operands of a search from codewords.
#pragma once

#include "kernels/vectors/search_layout.h"

namespace mr::cuda {

struct SearchPrepareArgs {
  const SearchPlan* plan;
  SearchShape shape;
  const float* codewords;  // (spaces, codewords, width)
  char* memory;            // of the search
};

// Chooses the center, packs the images, and finds the longest codewords.
cudaError_t launch_search_prepare(const SearchPrepareArgs& args, cudaStream_t stream);

struct SearchDistanceArgs {
  const void* rows;
  const float* codewords;
  const uint32_t* ids;
  double* distances;
  int64_t count, row_stride, stride, spaces, codewords_each, width;
  int32_t row_type, inner, processors;
};

// Computes Q of each row and the codeword of its id.
cudaError_t launch_search_distances(const SearchDistanceArgs& args, cudaStream_t stream);

}  // namespace mr::cuda
