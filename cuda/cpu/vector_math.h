// vector_math: what of docs/decisions/029-vector-numerics.md runs over whole rows on the host; its scalar rules are in
// vector_rules.h.
#pragma once

#include <cstdint>

#include "vector_rules.h"

namespace mr {

// The bytes of values that the type holds.
void encode_codewords(int32_t type, const float* values, int64_t n, void* to);

// The sum of v * v in the order of `dot`.
double length_squared(const double* v, int64_t n);
double length_squared(const float* v, int64_t n);

// to[j] = float32(x[j] / |x|); a row of length 0 stays. `to` may be x.
void normalise(const float* x, int64_t n, float* to);

// Sum of v over a block of at most kBlockRows rows: row i goes to partial sum i mod kBlockLanes.
double block_sum(const double* v, int64_t n, double plus);  // of v + plus

}  // namespace mr
