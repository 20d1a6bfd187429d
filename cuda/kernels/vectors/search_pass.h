// search_pass: the kernels that a search is made of.
#pragma once

#include <cstdint>

namespace mr::cuda {

enum class SearchPass {
  kNearest,  // over all rows: the best codeword
  kSettle,   // over rows with more than one candidate
};

struct SearchKernel {
  const void* function;  // of one SearchParams
  int32_t threads;       // of a block
};

// The kernels of f16 and bf16 terms, of rows that lie in shared memory whole, or chunk by chunk. pieces: 16 bytes of a row lie
// wherever eight of its elements begin, and its last ones are eight too. compared: that of the form.
SearchKernel search_kernel_f16(SearchPass pass, bool resident, bool hopper, bool pieces, int32_t compared);
SearchKernel search_kernel_bf16(SearchPass pass, bool resident, bool hopper);

}  // namespace mr::cuda
