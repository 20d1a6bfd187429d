// training_memory: where a training's rows lie, how much of them is worked on at once, and every array of it in one block of the
// ledger.
#pragma once

#include <cstdint>

#include "kernels/vectors/search.h"
#include "kernels/vectors/sort.h"
#include "kernels/vectors/training.h"
#include "millrace/vectors.h"
#include "src/device.h"

namespace mr::cuda {

// n rows of `full` columns; `spaces` subspaces of `width` columns and `codewords` codewords each.
struct TrainingShape {
  explicit TrainingShape(const mr_trainer_config& config);

  int64_t n, full, width, spaces, codewords;
  int64_t values;           // of the whole codebook
  int64_t blocks;           // of kBlockRows rows
  int32_t stored;           // MR_VECTOR_* of the rows kept: F32 where the metric divides them by their length
  uint64_t given_bytes;     // of a row as it is written
  uint64_t row_bytes;       // of a row kept
  bool annealed, maintained;
  bool trimmed;             // some rounds need to know which rows are kept
};

// Decided when a trainer is made.
struct TrainingPlan {
  // Resident where that fits into `free` bytes; else spooled, where config.spool_bytes allow it and the rest fits; else resident.
  static TrainingPlan of(const Device& device, const mr_trainer_config& config, uint64_t free);

  uint64_t rows_bytes() const { return static_cast<uint64_t>(shape.n) * shape.row_bytes; }
  SearchShape search(const mr_trainer_config& config) const;

  TrainingShape shape;
  bool spooled = false;     // rows are in pinned host memory, and come in ranges through a ring
  int64_t range = 0;        // rows of one unit of work
  int64_t ranges = 0;
  int64_t piece = 0;        // rows that are written at once
  uint64_t device_bytes = 0;
};

constexpr int kRing = 2;    // ranges of spooled rows in device memory, and pieces on their way

struct TrainingMemory {
  // Lays the arrays out from `base` on; null: only `bytes` is meaningful.
  TrainingMemory(const Device& device, const mr_trainer_config& config, const TrainingPlan& plan, uint8_t* base);

  TrainingArrays arrays{};
  uint8_t* rows = nullptr;          // (n, full) stored, where they are resident
  uint8_t* ring[kRing] = {};        // (range, full) stored, where they are spooled
  uint8_t* pieces[kRing] = {};      // (piece, full) as given, where they are not written to their place at once
  uint32_t *largest = nullptr, *piece_largest = nullptr;  // (full) bits of the largest |x|, of all rows written and of a chunk
  unsigned long long* bad = nullptr;  // a row that is not finite
  uint32_t *identity = nullptr, *keys = nullptr, *order = nullptr;  // (range) of a sort by codeword
  uint64_t* wide_keys[2] = {};      // (n) of a sort by distance
  uint32_t* wide_order[2] = {};     // (n)
  uint8_t *sort_scratch = nullptr, *search = nullptr;
  uint64_t sort_bytes = 0, bytes = 0;
};

}  // namespace mr::cuda
