// What each instruction-set path provides to linear.cpp, and the layout of activations between its two halves.
#ifndef MILLRACE_CPU_LINEAR_KERNELS_H
#define MILLRACE_CPU_LINEAR_KERNELS_H

#include <stdint.h>

#include "linear.h"

namespace mr::cpu {

// Products of one path with one kind of activations. Arguments as prepare_activations and multiply give them.
struct Kernels {
  void (*prepare)(const float* x, int64_t ldx, int64_t in, int64_t tokens, int64_t t0, int64_t t1, uint8_t* act);
  void (*multiply)(const Matrix& m, const uint8_t* act, int64_t tokens, float* y, int64_t ldy, int64_t panel0,
                   int64_t panel1, const uint8_t* then);
};

// By Activation: f32, int8.
extern const Kernels kernels_portable[2];
#if defined(__x86_64__)
extern const Kernels kernels_avx2[2];
extern const Kernels kernels_avx512vnni[2];
extern const Kernels kernels_avx512bf16; // bf16; the others of that path are avx512vnni's
extern const Kernels kernels_amx;        // int8; the others of that path are avx512bf16's
#endif

// Decodes `count` blocks of one row from their file bytes.
void decode_blocks(int32_t type, const uint8_t* file, int64_t count, float* out);

// Quantised activations: one block is 32 inputs of one token, one cache line. Weights are stored unsigned; a kernel
// starts its sums from -bias * sum(q) to take the bias out again.
struct alignas(64) ActBlock {
  int8_t q[32];     // -127 .. 127
  float d;          // x = q*d; NaN when the block holds a NaN or an infinity
  float s;          // fp32 sum of x
  int32_t none;     // 0
  int32_t bias8, bias16, bias128; // -bias * sum(q)
  int32_t bias32[2];              // of inputs 0..15 and 16..31
};
static_assert(sizeof(ActBlock) == 64, "one block, one cache line");

// Tokens are grouped into tiles, whose columns a kernel holds in registers. Activations lie as runs of group inputs
// (quant_group or float_group); in a run tile after tile; in a tile block after block (input after input in f32); in a
// block token after token; in bf16 pairs of inputs, the even one in the low half. The first input of a run, first token of
// a tile is at (k * tokens + t * run length) units.
constexpr int64_t int8_tile = 6, f32_tile = 12;

struct Tile { int64_t first, width; };

// The tile that token t belongs to. A short remainder shares with the last full tile, so that none is thin. Always inlined:
// with a constant width its divisions become products.
__attribute__((always_inline)) static constexpr inline Tile tile_of(int64_t width, int64_t tokens,
                                                                          int64_t t) {
  const int64_t full = tokens / width, rest = tokens % width;
  if (full > 0 && rest > 0 && 2 * rest <= width && t >= (full - 1) * width) {
    const int64_t first = (full - 1) * width, left = (width + rest + 1) / 2;
    return t < first + left ? Tile{first, left} : Tile{first + left, width + rest - left};
  }
  const int64_t first = t / width * width;
  return {first, tokens - first < width ? tokens - first : width};
}

} // namespace mr::cpu

#endif
