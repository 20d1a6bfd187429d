// search_map: describes the rows of a search to TMA copies.
#pragma once

#include <cstdint>

#include "kernels/vectors/search.h"

namespace mr::cuda {

// RowsMap is a CUtensorMap; it must be a kernel parameter.
struct alignas(64) RowsMap {
  uint64_t words[16];
};

// Describes the columns, rows and subspaces of `count` f16 rows of a shape, with boxes of 16 columns of kSearchRows
// rows; elements outside are read as zeros. Rows and their subspaces must begin at multiples of 16 bytes.
cudaError_t map_rows(const SearchShape& shape, const void* rows, int64_t count, RowsMap* map);

}  // namespace mr::cuda
