// search_map: rows as the bulk copies of a search see them.
#pragma once

#include <cstdint>

#include "kernels/vectors/search.h"

namespace mr::cuda {

// A CUtensorMap; copies read it where a kernel's parameters lie.
struct alignas(64) RowsMap {
  uint64_t words[16];
};

// Columns, rows and subspaces of `count` f16 rows of a shape, cut into blocks of 16 columns of kSearchRows rows; what lies outside is
// read as zeros. Rows and their subspaces begin at multiples of 16 bytes.
cudaError_t map_rows(const SearchShape& shape, const void* rows, int64_t count, RowsMap* map);

}  // namespace mr::cuda
