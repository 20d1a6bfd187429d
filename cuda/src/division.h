// division: what each of the devices that hold a model together has of it.
//
// Matrices are divided by their rows, which are their outputs: each sum over inputs is computed whole on one device, by the
// kernels and in the order of a model on one. So the division changes no bit of any result. Queries, keys and values are divided by
// heads, and with them attention and its cache. Of a stack, each member is divided: every device has a part of every expert, so that
// all have the same work with any choice of the router. All devices hold the embedding, norms, factors and routers whole.
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

// The rows, of `rows` in all, that device `rank` of `ranks` holds of a tensor of this role; of a vector, elements; of a stack, those of
// each member. Ranges ascend with the rank, begin at multiples of 16 but for heads', and cover all rows; of fewer rows than 16 * ranks
// the first ones may be empty.
RowRange rows_of(int32_t role, int64_t rows, int32_t rank, int32_t ranks);

// FilePart is a stretch of a tensor's file bytes that lies on one device, at `offset` of the bytes that it holds.
struct FilePart {
  int32_t rank;
  uint64_t offset, bytes;
};

// Returns where the file's bytes from `offset` on lie, at most `count` of them. The file has `members` members one after another, each
// cut into the parts of all ranks; held[rank] is how many bytes a rank holds of all members. offset must be less than the sum of held.
FilePart file_part(const uint64_t* held, int32_t ranks, int64_t members, uint64_t offset, uint64_t count);

// Throws UNIMPLEMENTED naming what cannot be divided, and its value.
void check_division(const Description& desc, int32_t ranks);

// A description whose heads, kv_heads and widths of MLPs and experts are those of one rank; all else is the model's.
Description part_of(const Description& desc, int32_t rank, int32_t ranks);

}  // namespace mr::cuda
