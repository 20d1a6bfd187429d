// repack: whole panels of weights between their file bytes and their place in a matrix, at the speed of memory.
//
// The same bytes as pack_rows and unpack_rows give, moved in square tiles of lanes instead of one cell after another:
// loading and verifying a model is this and a hash.
#pragma once

#include <cstdint>

#include "linear.h"

namespace mr::cpu {

// As pack_rows and unpack_rows, with their requirements.
void repack_rows(Matrix& m, const uint8_t* file_rows, int64_t row0, int64_t n);
bool restore_rows(const Matrix& m, int64_t row0, int64_t n, uint8_t* file_rows);

}  // namespace mr::cpu
