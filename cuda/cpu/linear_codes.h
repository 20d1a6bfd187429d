// Blocks of the IQ2 and IQ3 types as they lie in memory. In a file an index stands for the magnitudes of 4 or 8 weights, which
// would be a table access for each of them in every product. In memory each weight has a code of its own: the place of its
// magnitude among the values of the type, and its sign above that. Products spread codes as they spread nibbles, for 1.2 to 1.6
// times the file's bytes.
//
//   IQ3      128 bytes of codes of four bits, as the indices of IQ4_XS; 4 bytes of scales; half d
//   IQ2      64 bytes of magnitudes, as the pairs of Q3_K; 32 bytes of signs, as its third bits; scales; half d
//   scales   four bits each, the low half of a byte first: 8 in IQ3 and IQ2_XXS, 16 in IQ2_XS and IQ2_S
//
// A lattice has few of the possible magnitudes, and seven bits stand for eight signs in the XXS and XS types: memory can hold what
// no file has. That is damage, which the way back reports.
#ifndef MILLRACE_CPU_LINEAR_CODES_H
#define MILLRACE_CPU_LINEAR_CODES_H

#include <stdint.h>

namespace mr {

constexpr int32_t iq3_coded_bytes = 134, iq2_xxs_coded_bytes = 102, iq2_coded_bytes = 106;
constexpr int32_t most_coded_bytes = iq3_coded_bytes;

namespace cpu {

// The block of a type with Format::coded, from its file bytes.
void code_block(int32_t type, const uint8_t* file, uint8_t* coded);

// The exact inverse of code_block. Returns false, and writes any bytes, if no file has such a block.
bool uncode_block(int32_t type, const uint8_t* coded, uint8_t* file);

} // namespace cpu
} // namespace mr

#endif
