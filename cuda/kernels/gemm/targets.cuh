// targets: finds the weight of a row tile; a GEMM has up to kGemmTargets weights, whose tiles are numbered one after another.
#pragma once

#include "kernels/gemm/gemv.h"

namespace mr::cuda {

// Returns the index of a tile's target. Params must have `targets` and their number `count`.
template <class Params>
__device__ __forceinline__ int32_t target_index(const Params& p, int32_t tile) {
  int32_t index = 0;
#pragma unroll
  for (int32_t i = 1; i < kGemmTargets; ++i) index += i < p.count && tile >= p.targets[i].first_tile;
  return index;
}

// Returns a tile's target, and the tile's index within it.
template <class Params>
__device__ __forceinline__ const KernelTarget& target_of(const Params& p, int32_t tile, int32_t& within) {
  const KernelTarget& target = p.targets[target_index(p, tile)];
  within = tile - target.first_tile;
  return target;
}

}  // namespace mr::cuda
