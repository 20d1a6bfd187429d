// search_pass: the kernels of a search.
#pragma once

#include <cstdint>

namespace mr::cuda {

enum class SearchPass {
  kNearest,  // over all rows: the best codeword
  kSettle,   // over rows with more than one candidate
};

struct SearchKernel {
  const void* function;  // its parameter is one SearchParams
  int32_t threads;       // of a block
};

// Kernels for f16 and bf16 terms. resident: rows are in shared memory whole, otherwise chunk by chunk. pieces: the 16
// bytes of a row at any eight of its elements can be copied, and its last ones are eight too. compared: that of the
// form.
SearchKernel search_kernel_f16(SearchPass pass, bool resident, bool hopper, bool pieces, int32_t compared);
SearchKernel search_kernel_bf16(SearchPass pass, bool resident, bool hopper);

}  // namespace mr::cuda
