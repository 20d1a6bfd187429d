// wide: the decode class by wgmma, for more than a few tokens, as data. The same sums in the same order as decode_kernel.cuh,
// and the same bits: mma.m16n8k16 and wgmma add sixteen products alike (alike.h).
#pragma once

#include <cstdint>

#include "kernels/linear/decode.h"
#include "kernels/linear/prefill.h"

namespace mr::cuda {

constexpr int32_t kWideCluster = 2;  // blocks that share a tile by columns
constexpr int32_t kWidePanels = 4;   // of a tile: 64 rows
constexpr int32_t kWideMost = 128;   // tokens of a tile

// Tokens of a tile: 8, 16, 32, 64, and 128 of weights and tokens of one float type, of which a cluster takes one tile alone.
// Given: 64 tokens whose terms are made once for all tiles (terms.h), of types that fold.
constexpr int32_t kWideForms = 6, kWideSingle = 4, kWideGiven = 5;

// Blocks that a multiprocessor holds at once, of a tile's tokens; the fragments of types whose scales fold need registers.
constexpr int32_t wide_blocks(int32_t tokens, bool folds) { return tokens <= 16 && !folds ? 2 : 1; }

// One file a type defines it. No function where the weights or tokens would be split into terms, or without sm_90a.
template <int32_t T>
PrefillKernel wide_kernel(Act act, int32_t form);

// As prepare_prefill, after it, and launch_prefill. wide_available: whether it runs on the device for a type. wide_time: of a
// launch, as the rows and tokens of the tiles that one cluster takes, whose bytes are what tiles of float weights wait for;
// INT64_MAX where none runs.
cudaError_t prepare_wide(int32_t device);
bool wide_available(int32_t device, int32_t type, Act act);
int64_t wide_time(int32_t device, const ProductArgs& args, int32_t first, int32_t last);
cudaError_t launch_wide(int32_t device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on);

}  // namespace mr::cuda
