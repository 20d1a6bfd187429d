// vector_kernels: the inner loops of codebooks, once for each path. Everything that decides bits is the same on
// all of them, since it is in binary64, in one order, never fused; the fast pass over a codebook alone differs.
#pragma once

#include <cstdint>

#include "isa.h"

namespace mr::cpu {

// How far below the best score a candidate may lie, for a row whose |x|^2 less center is `square`:
//     slope * length + base + curve * (length + radius)^2,  length >= |x|.
// Where length + radius is not below kMostLength a score might overflow, and every codeword is a candidate.
struct Margin {
  float slope, base, curve, radius;
};
constexpr float kMostLength = 0x1p62f;
constexpr float kMarginUp = 1 + 0x1p-10f;       // more than all roundings of a margin
constexpr float kLeastSquare = 0x1p-126f;       // more than subnormal squares can have lost: 65 536 times 2^-150

// A codebook is searched in panels of `codewords` codewords side by side, (panels, width, codewords) f32, by tiles of `rows` rows
// side by side, (width, rows) f32. The fast score of a row and a codeword is the f32 sum
//   -half + x[0] c[0] + x[1] c[1] + ...
// of which each block of kScoreBlock products is summed by itself, and then the blocks.
struct VectorKernels {
  int32_t rows;       // of a tile, at most kMostTileRows
  int32_t codewords;  // of a panel, at most kMostPanelCodewords

  // n elements of MR_VECTOR_* as f32, which holds them exactly; whether they are finite.
  void (*decode)(int32_t type, const void* from, int64_t n, float* to);
  bool (*finite)(int32_t type, const void* from, int64_t n);
  // to[j] = max(to[j], |x[j]|).
  void (*largest)(const float* x, int64_t n, float* to);

  // A tile of `rows` pointers to rows, less center: x is (width, rows), squares the sums of x^2, in blocks as a score's. Entries
  // of a short tile point to any row.
  void (*pack)(const float* const* rows, int64_t width, const float* center, float* x, float* squares);
  // Goes on with the best, its codeword and the second best score of each row of a tile over panels whose first codeword is
  // `first`. Equal scores: the lower codeword is the best, the second one equals it.
  void (*scan)(const float* x, int64_t width, const float* panels, const float* halves, int64_t first, int64_t count, float* best,
               float* second, int32_t* id);
  // limits[i]: scores at or above it, and NaN scores, are the candidates of row i. n is a multiple of `rows`.
  void (*limit)(const Margin& margin, const float* best, const float* squares, int64_t n, float* limits);
  // The scores of one row, less center already, against panels: (count, codewords).
  void (*score)(const float* x, int64_t width, const float* panels, const float* halves, int64_t count, float* scores);

  // The sums of docs/decisions/029-vector-numerics.md, bit by bit.
  double (*squared)(const float* x, const float* c, int64_t n);
  double (*dot)(const float* x, const float* c, int64_t n);
  // sums[j] += the integer nearest to x[j] * scale[j], a power of two.
  void (*add_fixed)(const float* x, const double* scale, int64_t n, int64_t* sums);
};

constexpr int64_t kScoreBlock = 256;
constexpr int kMostTileRows = 48, kMostPanelCodewords = 8;

const VectorKernels& vector_kernels(Isa isa);

}  // namespace mr::cpu
