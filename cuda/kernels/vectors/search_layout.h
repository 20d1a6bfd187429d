// search_layout: how a search cuts rows and codewords into tensor core operands, and the layout of its memory.
//
// Operands are sums of 16-bit terms. A term of 16 columns of 128 codewords (or 64 rows) is a block: rows of 32 bytes,
// where the 16-byte piece h of row r is stored at piece h ^ r / 4 % 2, as swizzled products read them. The image of a
// tile of 128 codewords is a run of blocks. The first one adds -|c|^2 / 2 to each score, as three terms that are
// multiplied by rows of ones. Then, for each chunk of columns, follow the blocks of the first terms and those of the
// second.
#pragma once

#include <cstdint>

#include "kernels/vectors/search.h"
#include "kernels/vectors/search_map.h"

namespace mr::cuda {

constexpr int32_t kSearchRows = 64;       // of a warpgroup
constexpr int32_t kSearchGroups = 4;      // warpgroups of a block that multiply, at most
constexpr int32_t kSearchTile = kSearchRows * kSearchGroups;  // rows of a tile, at most
constexpr int32_t kSearchWarps = kSearchGroups * 4;
constexpr int32_t kSearchWide = 128;      // codewords of a tile
constexpr int32_t kCodewordBlock = kSearchWide * 32, kRowBlock = kSearchRows * 32;  // bytes
constexpr int32_t kStageBlocks = 3;       // codeword blocks of a stage
constexpr int32_t kStageBytes = kStageBlocks * kCodewordBlock;
constexpr int32_t kMostStages = 16;
constexpr int32_t kRowBarriers = kSearchGroups * 2 * 2;  // two of each buffer of a warpgroup's rows
constexpr int32_t kListed = 16;           // groups of candidates that a row can list; with more, every codeword is a candidate
constexpr int32_t kSearchLists = kSearchTile * (kListed + 3) * 4;  // bytes of the groups, their numbers, rows and limits
// Bytes of the kept scores: for each of four lanes of a row, as many as it compares as a group.
constexpr int32_t kept_bytes(int32_t compared) { return kSearchTile * 4 * compared * 4; }
static_assert(kept_bytes(4) <= kSearchLists, "a block of threads has either");
constexpr float kNoScore = -0x1p126f;     // of codewords that only pad a tile: below every score that is used
constexpr float kMostReach = 0x1p62f;     // |x| + R from which every codeword is a candidate: below it no score can overflow

// Error bound e of docs/decisions/029-vector-numerics.md, for scores x.c - |c|^2 / 2 computed by tensor cores.
//
// A step multiplies 16 columns and adds to float32 sums. Tensor cores are modelled as adding 16 exact products and the
// sum so far, in one or several groups, where each addend is cut to at least 24 bits below the largest one and the
// result to 24 bits: at most 18 units of 2^-23, and less if they keep more bits, as they do: 5.25 with 2 bits more and
// groups of 16 (9.0), 11 with 1 bit more and groups of 8. No addend and no sum exceeds |x| R + R^2 / 2 = S. The bound
// counts 16 units a step for 9.0 and 32 for all others; the test of the search checks that the hardware stays within
// half of that.
constexpr float step_error(int32_t major) { return major == 9 ? 0x1p-19f : 0x1p-18f; }
// x = h + m + r and c = h' + m' + r' with h, m rounded to 8 bits: |m| <= 2^-9 |x|, |r| <= 2^-18 |x|. The products h.h',
// m.h' and h.m' are computed; m.m', r.c and (h + m).r' are left out, together less than 3.25 * 2^-18 |x| R.
constexpr float kSplitError = 3.25f * 0x1p-18f;
// Rows and codewords minus the center are rounded once each, to float32; |c|^2 / 2 has that error twice, and 24 bits of
// it are used.
constexpr float kCenterError = 0x1p-22f;

// SearchForm is how rows and codewords are cut.
struct SearchForm {
  int32_t row_terms = 0, codeword_terms = 0;
  int32_t groups = kSearchGroups;  // warpgroups that have rows: fewer if those of four do not fit shared memory
  int32_t steps = 0;        // of 16 columns, covering `width` columns
  int32_t chunk_steps = 0;  // of rows that are in shared memory at once
  int32_t chunks = 0;
  int32_t blocks = 0;       // of a codeword tile: codeword_terms * steps + 1
  int32_t stages = 0;       // of the pipeline of codewords
  int32_t row_buffers = 1;  // 2 = the next rows are loaded while these are multiplied
  int32_t held = 0;         // 1 = the pipeline holds all of a subspace's codewords at once
  int32_t half = 0;         // 1 = terms are f16, else bf16
  int32_t compared = 4;     // scores of a thread's row that are compared as a group: 4, or 8 if there is room to keep them
  int32_t shared_bytes = 0;
  float relative = 0;       // e / S
};

// SearchState is the start of the search's memory.
struct SearchState {
  uint32_t moved;  // 1 = rows and codewords are used minus a center
};

// SearchMemory is the layout of the search's memory, as offsets in bytes.
struct SearchMemory {
  uint64_t center;  // (spaces, width) float32
  uint64_t radius;  // (spaces) float32: at least the largest |c|
  uint64_t listed;  // (spaces) uint32: rows with more than one candidate; then
                    // (processors, kSearchWarps) uint32: segments of a tile of listed rows that a warp has settled
  uint64_t least, least_ids;  // (processors, kSearchTile) float64 and uint32: the best of each segment of codewords
  uint64_t list;    // (spaces, most_rows) uint32
  uint64_t limits;  // (spaces, most_rows) float32: scores at or above it are candidates
  uint64_t images;  // (spaces, tiles, blocks) codeword blocks
  uint64_t size;
};

// SearchPlan is everything that decides how a shape is searched.
struct SearchPlan {
  SearchForm plain, moved;      // without and with subtraction of a center
  bool may_be_plain = false, may_move = false;
  int64_t tiles = 0;            // of codewords, of a subspace
  bool hopper = false;
  int32_t processors = 0;
  int32_t most_shared = 0;  // bytes of shared memory that a block may have
  SearchMemory memory{};
};

SearchPlan search_plan(const SearchShape& shape, int device);

// Bytes of the counters that must be 0 when a search begins.
constexpr uint64_t listed_bytes(int64_t spaces, int32_t processors) {
  return (static_cast<uint64_t>(spaces) + static_cast<uint64_t>(processors) * kSearchWarps) * 4;
}

struct SearchParams {
  RowsMap rows_map;           // the map for rows that are copied as they are
  SearchForm form;
  uint32_t moved;             // the form is for this value of the state
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
  int32_t vector_rows;        // rows can be read 8 elements at once: all are aligned to that
  int32_t inner;              // the metric is an inner product
  float curve;                // of the margin: g / (1 - g), or 2 g
};

}  // namespace mr::cuda
