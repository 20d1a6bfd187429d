// prefill: the prefill class's kernels as data, for the launcher that chooses among them.
#pragma once

#include <cstdint>

#include "kernels/linear/decode.h"

namespace mr::cuda {

constexpr int32_t kPrefillRows = 128;   // of a block's tile: two warpgroups of four panels
constexpr int32_t kPrefillCluster = 2;  // blocks that share a tile of tokens

struct PrefillParams {
  DecodeTarget targets[3];  // tiles of 8 panels, or of 4 pairs
  int32_t count, pair;
  int32_t tokens, units, groups;
  int64_t panel_bytes;
  int32_t tiles;                 // of rows
  int32_t row_pairs;             // clusters side by side: two tiles of rows each
  int32_t band;                  // row pairs that go through all tokens together
  int32_t token_tiles;
  int32_t items, item_stride;    // row pairs by tiles of tokens
  ProductEnd end;
  float x_scale, pair_share;     // sums are multiplied by it; what a pair gives is
};

struct PrefillKernel {
  const void* function;
  int32_t shared_bytes, threads, tokens;  // tokens of a tile
  bool boxed = false;                     // whether weights come by tensor maps of their panels
};

// By the tokens of a tile: 64, 128, 256.
constexpr int32_t kPrefillForms = 3, kWidestTile = 256;

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
// The panels of a target whose groups are `group` bytes, at most 2048, fetched by boxes of a group of four panels, with zeros
// beyond the last.
cudaError_t map_panels(const DecodeTarget& target, int64_t panel_bytes, int32_t group, void* map);

// What prefill.cu gives product.cu. prepare: as prepare_products, of the current device. available: whether it runs there.
cudaError_t prepare_prefill(int32_t device, int32_t sms);
bool prefill_available(int32_t device);
// As product.h has it.
int32_t prefill_grain(int32_t device, int64_t rows);
// Targets [first, last) of one type, tokens > 0.
cudaError_t launch_prefill(int32_t device, const ProductArgs& args, int32_t first, int32_t last, const Stream& on);

}  // namespace mr::cuda
