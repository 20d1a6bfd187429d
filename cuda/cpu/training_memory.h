// training_memory: every array of a training, in one block of the ledger.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "millrace/vectors.h"
#include "search.h"
#include "vector_kernels.h"

namespace mr::cpu {

// The shape of a training. n rows of `full` columns; `spaces` subspaces of `width` columns and `codewords` codewords each.
struct TrainingShape {
  TrainingShape(const mr_trainer_config& config, const VectorKernels& kernels, int threads);

  int64_t n, full, width, spaces, codewords, panels;
  int64_t values;       // of the whole codebook
  int32_t stored;       // MR_VECTOR_* of the rows kept: F32 where the metric divides them by their length
  uint64_t row_bytes;   // of a row kept
  int64_t group;        // rows that one task assigns: whole tiles
  int64_t run, runs;    // codewords of a subspace that one task moves, and how many such tasks a subspace has
  int64_t added;        // rows that one task adds to sums, of those that are sorted by their ids
  int64_t tallied;      // and of those that each thread adds to sums of its own first; 0 = there are too many sums for that
  int64_t blocks;       // of kBlockRows rows
  int threads;
  bool annealed, maintained;
};

constexpr int64_t kSpreadRows = 512;  // that one task compares with a new codeword while seeding
constexpr int64_t kMeasuredBlocks = 8;      // of kBlockRows rows, that one task measures
constexpr int64_t kSummedRows = 64 << 10;   // whose distances one task adds to those of their codewords

// One thread's scratch.
struct TrainingLane {
  float* rows;          // (group, full), or (full) where rows are kept as F32
  SearchScratch search;
  double* distances;    // (group)
  uint32_t* ids;        // (group)
  int64_t* sums;        // (width)
  int64_t* tally;       // (spaces, codewords, width), where rows are tallied
  uint32_t* counts;     // kCountedCodewords
};
constexpr int64_t kSortedRows = 16 << 10;    // that one task puts into their codewords' segments
constexpr int64_t kCountedCodewords = 1024;  // up to this many, threads count loads separately and then add them

struct TrainingMemory {
  // Lays the arrays out from `base` on; null: only `bytes` is meaningful.
  TrainingMemory(const TrainingShape& shape, const VectorKernels& kernels, uint8_t* base);

  uint8_t* rows;              // (n, full) of the stored type
  float* largest;             // (full) of |x|
  double* scale;              // (full) 2^E
  int32_t* exponent;          // (full) E
  float *now, *last, *next;   // (spaces, codewords, width): the codebook of this round, of the one before, of the one to come
  double *place, *next_place, *velocity, *next_velocity;  // (spaces, codewords, width); ANNEALED
  uint32_t *ids, *new_ids;    // (spaces, n): of the last round, and of the one at work
  uint64_t *loads, *new_loads;  // (spaces, codewords) likewise
  double* distances;          // (spaces, n) Q, of the round at work; while seeding the least ones so far
  double* block_sums;         // (spaces, blocks)
  double* spread_most;        // (n / kSpreadRows) while seeding: the largest of some rows' least distances
  uint32_t* order;            // (n) rows by id
  uint64_t* starts;           // (codewords + 1) of a subspace's segments in order
  std::atomic<uint32_t>* cursors;  // (codewords)
  std::atomic<int64_t>* sums;  // (spaces, codewords, width); 0 before a round's first row is added. Once the training is done the
                               // first spaces * codewords of them are the sums of the rows' distances
  int32_t* variance_exponent;  // (spaces) E of these sums
  uint32_t* farthest;         // (spaces, codewords) last kept row; ANNEALED with maintenance
  uint32_t* nearest;          // (codewords) likewise: whom to merge with, or the codeword itself
  uint64_t* left;             // (codewords) likewise: loads between merges and splits
  uint8_t* touched;           // (codewords) likewise
  uint32_t* listed;           // (codewords): codewords of a kind, in the order of some rule
  std::vector<Searchable> spaces;
  std::vector<TrainingLane> lanes;
  uint64_t bytes = 0;
};

}  // namespace mr::cpu
