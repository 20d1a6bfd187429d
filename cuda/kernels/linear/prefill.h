// prefill: the prefill class's kernels as data, for the launcher that chooses among them.
#pragma once

#include <cstdint>

#include "kernels/linear/decode.h"

namespace mr::cuda {

// What launches of these kernels and of the decode class's wgmma kernels are told. Only the prefill kernels have clusters of
// several tiles: row_blocks tiles of rows by token_blocks of tokens, one a block.
struct PrefillParams {
  DecodeTarget targets[3];  // tiles of some panels, of a pair of half as many of each
  int32_t count, pair;
  int32_t tokens, units, groups;
  int64_t panel_bytes;
  int32_t tiles;                       // of rows
  int32_t row_blocks, token_blocks;    // of a cluster
  int32_t row_clusters, token_tiles;   // clusters side by side, along the rows and along the tokens
  int32_t band;                        // row clusters that go through all tokens together
  int32_t items, item_stride;          // clusters of tiles, row_clusters * token_tiles where all are whole, and the clusters that share them
  int32_t whole;                       // items; those behind are halves of a pair's widest tiles, by the tokens: two of each cluster of tiles
  int32_t parts, beside;               // of the columns (product.h); bool: each part of a tile has a cluster of its own
  int32_t prefetch;                    // units of a cluster's first tile that the second level cache is asked for in advance
  ProductEnd end;
  int32_t boxed_out;             // bool: results go out by boxes of tensor maps
  float x_scale, pair_share;     // sums are multiplied by it; what a pair gives is
  uint32_t* marks;               // ProductArgs::marks
  uint32_t part_groups, part_share;  // twice the groups of 256 columns; what 2^31 by the parts is, and a little more (prefill_parts.cuh)
};

// Groups of 256 columns, which no weight's group crosses, are shared out to parts of at most so many units (product.h).
constexpr int32_t kGroupUnits = 4, kPartUnits = 32 * kGroupUnits;
// Of several parts each has at least these: half as many groups, of which the last may be short.
constexpr int32_t kLeastPartUnits = kPartUnits / 2 - kGroupUnits + 1;
constexpr int32_t kMarksABlock = 2;  // of ProductArgs::marks

struct PrefillKernel {
  const void* function;
  int32_t shared_bytes, threads, tokens;  // tokens of a tile
  int32_t rows = 0;                       // of a tile, where kernels differ in it
  int32_t out_box[4] = {};                // tokens of the boxes by which results go out, by ProductEnd
};

// By the rows and tokens of a tile. Tiles of 64 rows are for prompts too short to give every multiprocessor one of 128.
struct PrefillForm {
  int32_t rows, tokens;
};
constexpr PrefillForm kPrefillFormList[] = {{64, 32}, {64, 64}, {64, 128}, {128, 64}, {128, 128}, {128, 256}};
constexpr int32_t kPrefillForms = sizeof(kPrefillFormList) / sizeof(kPrefillFormList[0]);
constexpr int32_t kWidestForm = kPrefillForms - 1, kHalfForm = kWidestForm - 1;  // the latter has half of the former's tokens

// Blocks of a cluster: those side by side along the rows share tokens, those along the tokens share weights, and each asks for
// its share of what it has in common with others, for all of them.
struct PrefillCluster {
  int32_t rows, tokens;

  constexpr int32_t blocks() const { return rows * tokens; }
};
constexpr PrefillCluster kPrefillClusters[] = {{2, 1}, {4, 1}, {2, 2}, {4, 2}};  // along the tokens two at most
constexpr int32_t kPrefillMostBlocks = 8;  // of a cluster

struct PrefillShape {
  int32_t form;  // of kPrefillFormList
  PrefillCluster cluster;
};

// How a unit's weights are fetched: plane by plane, each of half a tile's panels at once by a tensor map, since the unit that
// copies takes about as long for a small piece as for a large one. Bytes of plane i of one panel, 0 for none: all that a unit has,
// or where units share a group its quants, its high bits, its scales, and with the first unit the group's header. Units of
// F32 are too large for a map.
constexpr int32_t kPrefillPlanes = 4;
__host__ __device__ constexpr bool prefill_boxed(const WeightFormat& format) { return format.quants <= 2048; }
__host__ __device__ constexpr int32_t prefill_plane(const WeightFormat& format, int32_t i) {
  if (format.units == 1) return i == 0 ? format.quants + format.high + format.scales : 0;
  return i == 0 ? format.quants : i == 1 ? format.high : i == 2 ? format.scales : format.header;
}

// One file a type defines it. No function where the build has no machine code of sm_90a.
template <int32_t T>
PrefillKernel prefill_kernel(Act act, int32_t form);

// Shared with the decode class's wgmma kernels: what a launch of targets [first, last) begins with, and the tokens as
// (tokens, cols), fetched by boxes of one unit's 64 columns and some tokens, with zeros beyond the edges. map: a CUtensorMap.
// panels: of a tile; a pair's tile has half as many of each.
PrefillParams prefill_params(const ProductArgs& args, int32_t first, int32_t last, int32_t panels);
cudaError_t map_tokens(const ProductArgs& args, int32_t rows_a_box, void* map);
// What terms.h says of `tokens` tokens, fetched by boxes of one group's terms and some tokens, with zeros beyond the last.
cudaError_t map_terms(const void* terms, int32_t groups, int32_t tokens, int32_t rows_a_box, void* map);
// The panels of a target, fetched by boxes of some bytes of some panels, in eight bytes, with zeros beyond the last.
cudaError_t map_panels(const DecodeTarget& target, int64_t panel_bytes, void* map, int32_t panels_a_box = 4, int32_t bytes = 2048);

// What prefill.cu gives product.cu. prepare: as prepare_products, of the current device. available: whether it runs there.
cudaError_t prepare_prefill(int32_t device, int32_t sms);
bool prefill_available(int32_t device);
// As product.h has it.
int32_t prefill_grain(int32_t device, int64_t rows);
// Of targets [first, last) of one type, tokens > 0: what a shape is expected to take, in picoseconds, INT64_MAX where the device holds no
// such cluster; and the shape that is expected to take the least.
int64_t prefill_time(const PrefillShape& shape, int32_t device, const ProductArgs& args, int32_t first, int32_t last);
PrefillShape fastest_prefill(int32_t device, const ProductArgs& args, int32_t first, int32_t last);
// Those in that shape, or in any of kPrefillFormList and kPrefillClusters: the same bits.
cudaError_t launch_prefill(int32_t device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on);
cudaError_t launch_prefill_as(const PrefillShape& shape, int32_t device, const ProductArgs& args, int32_t first, int32_t last,
                              const Stream& on);

}  // namespace mr::cuda
