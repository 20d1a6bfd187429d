// Weight matrices and their products with activations: y(tokens, out) = x(tokens, in) * W(out, in)^T.
//
// A matrix lies in memory as panels of 16 rows; every format keeps exactly the bits of its file, reordered so that one
// row of lanes is one row of weights and a product reads memory as one forward stream. The IQ2 and IQ3 types are coded
// otherwise (linear_codes.h), from which their file's bits can be had again. The layout is the same for every
// path. Nothing here allocates, locks, or starts a thread: callers split the work by panels and tokens.
//
// Bits: for one path, y[t][row] depends on that row's weights and that token's x alone. How many tokens a call has, how
// panels are split over calls, and which thread runs them change nothing.
//   Quantised types: x becomes int8 per 32 (d = amax/127, nearest even); every 32-block (16 for types with a scale for 16
//   weights) is an exact int32 dot product; blocks are added in fp32 in ascending order. Mins are multiplied by the fp32 sum
//   of x, in Q2_K, which has one for 16 weights, by d times the exact sum of the int8.
//   avx2, avx512vnni, avx512bf16 and amx give the same bits for these.
//   F32, F16, BF16: fp32 products and sums over runs of 128 inputs in ascending order, then over the runs.
//   BF16 on a path with BF16 dot products: x is rounded to bf16 (nearest even) first, pairs of inputs are added at once, and
//   numbers below 2^-126 count as zero.
// A NaN or infinity in x makes every y of that token NaN or infinite in quantised types, and follows IEEE in the others.
#ifndef MILLRACE_CPU_LINEAR_H
#define MILLRACE_CPU_LINEAR_H

#include <stdint.h>

#include "isa.h"

namespace mr {

// ggml type ids of the weight formats.
enum : int32_t {
  type_f32 = 0, type_f16 = 1, type_q4_0 = 2, type_q4_1 = 3, type_q5_0 = 6, type_q5_1 = 7, type_q8_0 = 8,
  type_q2_k = 10, type_q3_k = 11, type_q4_k = 12, type_q5_k = 13, type_q6_k = 14, type_iq2_xxs = 16, type_iq2_xs = 17,
  type_iq3_xxs = 18, type_iq4_nl = 20, type_iq3_s = 21, type_iq2_s = 22, type_iq4_xs = 23, type_bf16 = 30,
  type_mxfp4 = 39, type_nvfp4 = 40
};

constexpr int64_t panel_rows = 16, stack_panels = 4;
static constexpr int64_t panels(int64_t out) { return (out + panel_rows - 1) / panel_rows; }

struct Matrix {
  int32_t type;     // type_*
  int64_t in, out;  // supported(type, in), out >= 1
  uint8_t* data;    // packed_size bytes, 64-byte aligned, owned by the caller
  uint64_t bytes;   // packed_size(type, in, out)
};

// Whether the type is known and `in` is a positive multiple of its block (1, 32, 64 or 256).
bool supported(int32_t type, int64_t in);

// Bytes of the matrix in a file and in memory; 0 when unsupported or beyond 2^62. Memory is at most 3 % above the file
// for in >= 256 and out a multiple of 16; of the IQ2 and IQ3 types 24 to 58 %. A panel takes packed_size / panels(out) bytes.
uint64_t file_size(int32_t type, int64_t in, int64_t out);
uint64_t packed_size(int32_t type, int64_t in, int64_t out);

}  // namespace mr

namespace mr::cpu {

// Packs rows [row0, row0+n) from their file bytes, one row after another. row0 is a multiple of 16, n too unless the
// range ends at `out`. Any thread, on disjoint ranges. Lanes beyond `out` become zero bytes.
void pack_rows(Matrix& m, const uint8_t* file_rows, int64_t row0, int64_t n);

// The exact inverse for every byte pattern of a file; row0 and n as for pack_rows. Safe while GEMMs read the matrix. Returns false
// if memory holds what no file leaves there, which only IQ2 and IQ3 types can: the bytes are then those of another file.
bool unpack_rows(const Matrix& m, int64_t row0, int64_t n, uint8_t* file_rows);

// Writes one row as fp32 to out[in]: the values that the format represents, rounded once per operation.
void dequantize_row(const Matrix& m, int64_t row, float* out);

// n rows of `in` as fp32 into out[n * in], from their file bytes: as dequantize_row.
void decode_rows(int32_t type, const uint8_t* file_rows, int64_t in, int64_t n, float* out);

// What a product reads x from. Types of one kind share prepared activations.
enum class Activation { f32, int8, bf16 };
constexpr int activation_kinds = 3;
Activation activation_kind(Isa isa, int32_t type);

// Bytes of the prepared activations of `tokens` tokens; a multiple of 64, at most 4.5 bytes an input and token.
uint64_t activation_size(Activation kind, int64_t in, int64_t tokens);

// Prepares tokens [t0, t1) of `tokens`; token t is x + t*ldx, `in` floats. act is 64-byte aligned, activation_size bytes,
// and laid out for exactly `tokens` tokens. Any thread, on disjoint ranges.
void prepare_activations(Isa isa, Activation kind, const float* x, int64_t ldx, int64_t in, int64_t tokens, int64_t t0,
                         int64_t t1, void* act);

// y[t*ldy + row] for every token and every row < m.out of panels [panel0, panel1). act comes from prepare_activations of
// the same isa, activation_kind(isa, m.type), m.in and tokens. y must not overlap act. Any thread, on disjoint panels.
// `then` is what this thread reads afterwards, begin_of the panels of its next product: a hint, and any address may be given.
// Calls are fastest on whole stacks, four panels from a multiple of four on.
void multiply(Isa isa, const Matrix& m, const void* act, int64_t tokens, float* y, int64_t ldy, int64_t panel0,
              int64_t panel1, const uint8_t* then);

// Where the weights of a panel and of those after it begin; 0 <= panel < panels(m.out).
const uint8_t* begin_of(const Matrix& m, int64_t panel);

} // namespace mr::cpu

#endif
