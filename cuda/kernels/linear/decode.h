// decode: the decode class's kernels as data, for the launcher that chooses among them.
#pragma once

#include <cstdint>

#include "kernels/linear/product.h"

namespace mr::cuda {

constexpr int32_t kSegments = 8;  // of the columns

// Devices that products may be prepared for, by CUDA's numbers below it: prepare_products refuses others.
constexpr int32_t kMaxDevices = 64;

// Rows are the weights' outputs; tiles of all targets follow one another.
struct DecodeTarget {
  const uint8_t* data;
  const float* bias;
  void* out;
  int64_t out_stride;
  int32_t rows, panels, first_tile;
  int32_t part = 0;  // of kHeads: 0 queries, 1 keys, 2 values
};

struct DecodeParams {
  DecodeTarget targets[3];
  const void* x;
  int64_t x_stride;
  int32_t count;        // of targets
  int32_t pair;         // bool: gate and up
  int32_t even;         // bool: one target, or a pair, of whole tiles, and one token tile
  int32_t tokens, cols;
  int32_t groups;       // of a panel
  int64_t panel_bytes;
  int64_t item_bytes;   // from an item's panels to those of the block's next one, where even
  int32_t token_tiles;           // >= 1
  int32_t items, item_stride;    // tiles * token_tiles; tile = item / token_tiles
  ProductEnd end;
  ProductNorm norm;
  ProductHeads heads;
  float x_scale, pair_share;  // sums are multiplied by it; what a pair gives is
};

// Columns of a row that a product norms: what the warps of a block hold as rms_norm holds them, in kNormKept groups of four a thread
// (norm_row.cuh). More would take more threads than a block has, or another order of the sum.
constexpr int32_t kMostNormed = 4096;

constexpr int32_t kKeptGroups = 2;  // of a segment, whose inputs a warp keeps in registers

// By the tokens of a tile, and whether a tile is one panel, a gate's and an up's, or two of one weight. Kept: kept_kernel.cuh.
// A form that a type does not have is no function.
enum class DecodeForm : int32_t { kSingle1 = 0, kPair1, kSingle8, kPair8, kDouble8, kKeptSingle8, kKeptPair8 };
constexpr int32_t kDecodeForms = 7;

struct DecodeKernel {
  const void* function;
  int32_t (*shared_bytes)(int32_t capability);  // of the machine code: 80, 86, ...
  int32_t threads;
  int32_t panels, tokens;  // of a tile; of a pair one panel of each
};

// One file a type defines it.
template <int32_t T>
DecodeKernel decode_kernel(Act act, DecodeForm form);

}  // namespace mr::cuda
