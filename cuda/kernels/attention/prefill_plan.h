// prefill_plan: cuts the work of prefill attention: the keys of a row into pieces, and the tiles of a step among
// blocks.
//
// A row's result is defined piece by piece: each piece has a softmax of its own, and pieces are merged in ascending
// order. The cuts depend on absolute positions alone. Which block computes which piece is decided here by the amount of
// work, and changes no bits.
#pragma once

#include <cstdint>
#include <vector>

// Functions for both sides. The host compiler, with which the plan is tested, knows only one.
#if defined(__CUDACC__)
#define MR_BOTH_SIDES __host__ __device__
#else
#define MR_BOTH_SIDES
#endif

namespace mr::cuda {

// Pieces of keys: [0, 1024), [1024, 2048), [2048, 4096), and from there on 4096 keys each. Each border costs a row one
// trip of its partial result through memory if one block walks all pieces: about 27 ns for 128 rows of 128 dims on an
// H200, so a prompt of 4096 tokens pays one percent of its step, and prompts up to 1024 tokens pay nothing. The time of
// a block of a split tile is bounded by one piece (about 2 us for 64 keys), so the pieces in which most conversations
// end are the shorter ones.
constexpr int32_t kFirstPiece = 1024, kWholePiece = 4096;
MR_BOTH_SIDES constexpr int32_t prefill_piece_of(int32_t position) {
  return position < kFirstPiece ? 0 : position < 2 * kFirstPiece ? 1 : 2 + position / kWholePiece;
}
// Returns the first position of a piece; positions stay below 2^31 - kWholePiece.
MR_BOTH_SIDES constexpr int32_t prefill_piece_begin(int32_t piece) {
  return piece <= 2 ? piece * kFirstPiece : (piece - 2) * kWholePiece;
}
static_assert(prefill_piece_of(1023) == 0 && prefill_piece_of(1024) == 1 && prefill_piece_of(2047) == 1 &&
              prefill_piece_of(2048) == 2 && prefill_piece_of(4095) == 2 && prefill_piece_of(4096) == 3 &&
              prefill_piece_begin(2) == 2048 && prefill_piece_begin(3) == 4096 && prefill_piece_begin(4) == 8192);

// Returns the width of the kernel by wgmma that computes heads of a width of pad_head_dim: 64, 128 or 256; 0 if none does. It takes the
// dims that heads lack as zeros.
constexpr int32_t wgmma_width(int32_t padded_dim) {
  return padded_dim < 64 || padded_dim > 256 ? 0 : padded_dim == 64 ? 64 : padded_dim <= 128 ? 128 : 256;
}

// PrefillTile is consecutive rows of one segment that are computed together.
struct PrefillTile {
  int32_t row;       // first row of the step
  int32_t count;     // rows at consecutive positions of one slot; 1 .. prefill_tile_rows(...)
  int32_t position;  // of the first row
  int32_t segment = 0;  // tiles of one segment follow one another and have equal numbers; neighbouring segments have different ones
};

// PrefillItem is the work of some blocks, in device memory: a tile over all pieces of its keys, or over one of them.
// Partial results are in slots of the workspace, one for each row of the tile with all its heads.
struct PrefillItem {
  int32_t row, count;  // of the tile
  int32_t piece;       // -1: all, merged one after another
  int32_t place;       // slot of the first row's partial result; -1: the tile has a single piece and needs none
  int32_t position;    // of the tile's first row
  int32_t wide = 0;    // entry 0 of the row's block table is this block of the scratch; for plans that widen blocks
};

// PrefillMerge is a row of a split tile. Its partial results are in slots place, place + stride, ... in the order of
// its pieces.
struct PrefillMerge {
  int32_t row, place, stride;
};

enum class PrefillSplit { kByWork, kNever, kAlways };  // all but the first are for tests

// PrefillWide describes the scratch for widened blocks of an 8-bit cache (prefill_widen.cuh).
struct PrefillWide {
  int32_t blocks = 0;   // KV blocks that it holds; 0: blocks are not widened ahead
  int32_t block_size = 0, kv_heads = 0, padded_dim = 0;
  int32_t window = 0;   // of the rows; 0: none
  bool always = false;  // if there is room, at any cost; for tests
};

struct PrefillWork {
  int32_t columns;   // blocks of one item: kv heads, or more if a group of query heads is wider than a tile
  int32_t sm_count;
  int32_t capacity;  // slots of the workspace
  PrefillSplit split = PrefillSplit::kByWork;
  PrefillWide wide = {};
};

// PrefillSpan is the KV blocks that the rows of a segment see: entries [first, first + count) of the block table of row `row` are
// widened into the blocks [place, place + count) of the scratch.
struct PrefillSpan {
  int32_t row, first, count, place;
};

// PrefillGroup is items and merges that run together, after those of the groups before. Each group may use all slots.
struct PrefillGroup {
  int32_t items, merges;
};
constexpr int32_t kMostPrefillGroups = 4;

struct PrefillPlan {
  std::vector<PrefillItem> items;    // by group, longest first
  std::vector<PrefillMerge> merges;  // by group
  PrefillGroup groups[kMostPrefillGroups];
  int32_t group_count;  // no group is empty
  std::vector<PrefillSpan> spans;  // in ascending order of places, without gaps; none: attention reads the cache as it is
  int32_t wide_blocks;             // of all spans
};

// Splits tiles that would take longer than the rest of the step's attention spread over the device, as long as some
// group has slots; all other tiles are in the first group. Makes at most one item a tile, plus as many as there are
// slots in all groups. Returns false if there are too few slots even if nothing is split: see
// prefill_attention_capacity.
//
// Plans to widen the blocks of an 8-bit cache once, for all groups, if that takes less time than widening them again for each
// tile. Tiles are in ascending order of rows.
bool plan_prefill(const std::vector<PrefillTile>& tiles, const PrefillWork& work, PrefillPlan* plan);

// Slots that a runner's workspace must hold: tokens is the most rows of a step, positions the longest history.
int32_t prefill_attention_capacity(int32_t tokens, int32_t positions);

}  // namespace mr::cuda
