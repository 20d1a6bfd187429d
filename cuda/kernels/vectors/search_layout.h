// search_layout: how a search cuts rows and codewords into operands of matrix units, and where its memory lies.
//
// Operands are sums of 16-bit terms. A term of 16 columns of 128 codewords (or 64 rows) is a block: rows of 32 bytes, of which the
// 16-byte piece h of row r lies in the place of piece h ^ r / 4 % 2, as swizzled products read them. The image of a tile of 128
// codewords is a run of blocks: first that of what is added to each score, -|c|^2 / 2, as three terms that rows of ones multiply;
// then, for each chunk of columns, the blocks of the first terms and those of the second.
#pragma once

#include <cstdint>

#include "kernels/vectors/search.h"
#include "kernels/vectors/search_map.h"

namespace mr::cuda {

constexpr int32_t kSearchRows = 64;       // of a warpgroup
constexpr int32_t kSearchGroups = 4;      // warpgroups that multiply at most, of a block of threads
constexpr int32_t kSearchTile = kSearchRows * kSearchGroups;  // rows of a tile at most
constexpr int32_t kSearchWarps = kSearchGroups * 4;
constexpr int32_t kSearchWide = 128;      // codewords of a tile
constexpr int32_t kCodewordBlock = kSearchWide * 32, kRowBlock = kSearchRows * 32;  // bytes
constexpr int32_t kStageBlocks = 3;       // codeword blocks of a stage of the ring
constexpr int32_t kStageBytes = kStageBlocks * kCodewordBlock;
constexpr int32_t kMostStages = 16;
constexpr int32_t kRowBarriers = kSearchGroups * 2 * 2;  // two of each buffer of a warpgroup's rows
constexpr int32_t kListed = 16;           // groups of candidates that a row has room for; with more, every codeword is one
constexpr int32_t kSearchLists = kSearchTile * (kListed + 3) * 4;  // bytes of the groups, their numbers, rows and limits
// Bytes of the scores that are kept: of each of four lanes of a row as many as it compares as a group.
constexpr int32_t kept_bytes(int32_t compared) { return kSearchTile * 4 * compared * 4; }
static_assert(kept_bytes(4) <= kSearchLists, "a block of threads has either");
constexpr float kNoScore = -0x1p126f;     // of codewords that only fill a tile: below every score that is used
constexpr float kMostReach = 0x1p62f;     // |x| + R from which every codeword is a candidate: no score below can overflow

// e of docs/decisions/029-vector-numerics.md, for scores from products x.c - |c|^2 / 2 through matrix units.
//
// A step multiplies 16 columns and adds to float32 sums. Units are modelled as adding 16 exact products and the sum so far, in one
// or several groups, each addend cut to 24 bits at least below the largest one and the result cut to 24 bits: at most 18 units
// of 2^-23, and less where units keep more bits, as these do: 5.25 with 2 bits more and groups of 16 (9.0), 11 with 1 bit more
// and groups of 8. No addend and no sum exceeds |x| R + R^2 / 2 = S. Counted are 16 units a step for 9.0, 32 for all others; the
// test of the search holds the units to half of that.
constexpr float step_error(int32_t major) { return major == 9 ? 0x1p-19f : 0x1p-18f; }
// x = h + m + r and c = h' + m' + r' with h, m rounded to 8 bits: |m| <= 2^-9 |x|, |r| <= 2^-18 |x|. Of the products h.h', m.h'
// and h.m' are computed; m.m', r.c and (h + m).r' are left out, together less than 3.25 * 2^-18 |x| R.
constexpr float kSplitError = 3.25f * 0x1p-18f;
// Rows and codewords less center are rounded once each, to float32; |c|^2 / 2 carries that twice, and 24 bits of it are used.
constexpr float kCenterError = 0x1p-22f;

// How rows and codewords are cut.
struct SearchForm {
  int32_t row_terms = 0, codeword_terms = 0;
  int32_t groups = kSearchGroups;  // warpgroups that have rows: fewer where those of four do not fit shared memory
  int32_t steps = 0;        // of 16 columns, that hold `width` columns
  int32_t chunk_steps = 0;  // of which rows lie in shared memory at once
  int32_t chunks = 0;
  int32_t blocks = 0;       // of a codeword tile: codeword_terms * steps + 1
  int32_t stages = 0;       // of the ring of codewords
  int32_t row_buffers = 1;  // 2 = the next rows come while these are multiplied
  int32_t held = 0;         // 1 = the ring holds all of a subspace's codewords at once
  int32_t half = 0;         // 1 = terms are f16, else bf16
  int32_t compared = 4;     // scores of a thread's row that are compared as a group: 4, or 8 where there is room to keep them
  int32_t shared_bytes = 0;
  float relative = 0;       // e / S
};

// The memory's head.
struct SearchState {
  uint32_t moved;  // 1 = rows and codewords are taken less a center
};

// What the memory holds, as offsets in bytes.
struct SearchMemory {
  uint64_t center;  // (spaces, width) float32
  uint64_t radius;  // (spaces) float32: at least the largest |c|
  uint64_t listed;  // (spaces) uint32: rows with more than one candidate; behind them
                    // (processors, kSearchWarps) uint32: segments of a tile of listed rows that a warp has settled
  uint64_t least, least_ids;  // (processors, kSearchTile) float64 and uint32: what each segment of codewords has found
  uint64_t list;    // (spaces, most_rows) uint32
  uint64_t limits;  // (spaces, most_rows) float32: scores at or above it are candidates
  uint64_t images;  // (spaces, tiles, blocks) codeword blocks
  uint64_t size;
};

// All that decides how a shape is searched.
struct SearchPlan {
  SearchForm plain, moved;      // without and less a center
  bool may_be_plain = false, may_move = false;
  int64_t tiles = 0;            // of codewords, of a subspace
  bool hopper = false;
  int32_t processors = 0;
  int32_t most_shared = 0;  // bytes of shared memory that a block of threads may have here
  SearchMemory memory{};
};

SearchPlan search_plan(const SearchShape& shape, int device);

// Of the counts that are 0 when a search begins.
constexpr uint64_t listed_bytes(int64_t spaces, int32_t processors) {
  return (static_cast<uint64_t>(spaces) + static_cast<uint64_t>(processors) * kSearchWarps) * 4;
}

struct SearchParams {
  RowsMap rows_map;           // where rows are copied as they lie
  SearchForm form;
  uint32_t moved;             // the form is of that value of the state
  const SearchState* state;
  const uint8_t* images;
  const float *center, *radius, *codewords;
  uint32_t *listed, *list, *arrived;
  double* least;
  uint32_t* least_ids;
  float* limits;
  const void* rows;
  uint32_t* ids;
  uint64_t* recomputed;
  int64_t count, row_stride, stride, spaces, codewords_each, width, most_rows, tiles;
  int32_t row_type;
  int32_t vector_rows;        // rows can be read 8 elements at once: all start at multiples of that many bytes
  int32_t inner;              // the metric is an inner product
  float curve;                // of the margin: g / (1 - g), or 2 g
};

}  // namespace mr::cuda
