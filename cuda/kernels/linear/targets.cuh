// targets: a product may be of up to three weights, whose tiles of rows follow one another: which weight a tile is of.
#pragma once

#include "kernels/linear/decode.h"

namespace mr::cuda {

// The index of a tile's target; Params have `targets` and how many they are, `count`.
template <class Params>
__device__ __forceinline__ int32_t target_index(const Params& p, int32_t tile) {
  return (p.count > 1 && tile >= p.targets[1].first_tile) + (p.count > 2 && tile >= p.targets[2].first_tile);
}

// A tile's target, and the tile within it.
template <class Params>
__device__ __forceinline__ const DecodeTarget& target_of(const Params& p, int32_t tile, int32_t& within) {
  const DecodeTarget& target = p.targets[target_index(p, tile)];
  within = tile - target.first_tile;
  return target;
}

}  // namespace mr::cuda
