// division: what each of the devices that hold a model together has of it.
//
// Matrices are divided by their rows, which are their outputs: each sum over inputs is computed whole on one device, by the
// kernels and in the order of a model on one. So the division changes no bit of any result. Queries, keys and values are divided by
// heads, and with them attention and its cache; what every device reads of whole is held by all: the embedding, norms, factors.
#pragma once

#include <cstdint>

#include "millrace/engine.h"
#include "cpu/shape.h"

namespace mr::cuda {

struct RowRange {
  int64_t first, count;
};

// Whether every device holds all of a tensor of this role.
bool held_by_all(int32_t role);

// The rows, of `rows` in all, that device `rank` of `ranks` holds of a tensor of this role; of a vector, elements. Ranges ascend with
// the rank, begin at multiples of 16 but for heads', and cover all rows; of fewer rows than 16 * ranks the first ones may be empty.
RowRange rows_of(int32_t role, int64_t rows, int32_t rank, int32_t ranks);

// Throws UNIMPLEMENTED naming what cannot be divided, and its value.
void check_division(const Description& desc, int32_t ranks);

// A description whose heads, kv_heads and MLP widths are those of one rank; all else is the model's.
Description part_of(const Description& desc, int32_t rank, int32_t ranks);

}  // namespace mr::cuda
