// search_work: which rows and codewords a block of a search has, one tile of rows after another.
#pragma once

#include "kernels/vectors/search_layout.h"

namespace mr::cuda {

// WorkOfAll: an equal share of consecutive tiles of all rows, subspace by subspace, each with all codewords.
struct WorkOfAll {
  const SearchParams& p;
  int32_t space, tile, left;  // tiles: device memory holds ids of fewer than 2^31 of them
  int32_t across, most;       // tiles of a subspace, and rows of a tile
  int64_t begin = 0, end;     // tiles of codewords

  __device__ __forceinline__ explicit WorkOfAll(const SearchParams& params)
      : p(params), most(params.form.groups * kSearchRows), end(params.tiles) {
    across = static_cast<int32_t>((p.count + most - 1) / most);
    const int64_t all = across * p.spaces, blocks = gridDim.x, b = blockIdx.x;
    const int64_t first = all / blocks * b + (b < all % blocks ? b : all % blocks);
    left = static_cast<int32_t>(all / blocks + (b < all % blocks ? 1 : 0));
    space = static_cast<int32_t>(first / across);
    tile = static_cast<int32_t>(first % across) - 1;
  }
  __device__ __forceinline__ bool next() {
    if (left-- <= 0) return false;
    if (++tile < across) return true;
    tile = 0;
    ++space;
    return true;
  }
  // Returns whether the next tile is of another space, or there is none.
  __device__ __forceinline__ bool last_of_space() const { return left <= 0 || tile + 1 >= across; }
  __device__ __forceinline__ int64_t first() const { return int64_t{tile} * most; }
  __device__ __forceinline__ int64_t rows() const { return p.count - first() < most ? p.count - first() : most; }
};

// WorkOfListed: every gridDim-th unit of listed rows, which are few. To occupy every SM, a space's rows are cut into
// tiles of `each`, and the codewords of a tile into segments; the units of one tile are settled together.
struct WorkOfListed {
  const SearchParams& p;
  int64_t space = -1, tile = 0, unit, units = 0, many = 0, share;
  int32_t each = 1, segment = 0, segments = 1;
  int64_t begin = 0, end = 0;  // tiles of codewords

  __device__ __forceinline__ explicit WorkOfListed(const SearchParams& params)
      : p(params), unit(int64_t{blockIdx.x} - gridDim.x), share(gridDim.x / p.spaces > 1 ? gridDim.x / p.spaces : 1) {}

  __device__ __forceinline__ bool next() {
    unit += gridDim.x;
    while (space < 0 || unit >= units) {
      if (space >= 0) unit -= units;
      if (++space == p.spaces) return false;
      cut(p.listed[space]);
    }
    tile = unit / segments;
    segment = static_cast<int32_t>(unit % segments);
    begin = p.tiles * segment / segments;
    end = p.tiles * (segment + 1) / segments;
    return true;
  }
  __device__ __forceinline__ bool last_of_space() const { return true; }
  __device__ __forceinline__ int64_t first() const { return tile * each; }
  __device__ __forceinline__ int64_t rows() const { return many - first() < each ? many - first() : each; }
  // Returns this tile's first unit; below gridDim if there are several segments.
  __device__ __forceinline__ int64_t first_unit() const { return space * share + tile * segments; }

 private:
  __device__ __forceinline__ void cut(uint32_t listed) {
    many = listed < p.most_rows ? listed : p.most_rows;
    const int32_t most = p.form.groups * kSearchRows, warps = p.form.groups * 4;
    const int64_t whole = (many + most - 1) / most;
    int64_t s = whole > 0 ? share / whole : 1;
    if (s > p.tiles) s = p.tiles;
    segments = s < 1 ? 1 : static_cast<int32_t>(s);
    const int64_t tiles = share / segments, of = (many + tiles - 1) / tiles;
    each = of >= most || of == 0 ? most : static_cast<int32_t>((of + warps - 1) / warps * warps);
    units = (many + each - 1) / each * segments;
  }
};

}  // namespace mr::cuda
