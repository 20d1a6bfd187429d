// training: the kernels of codebook training. Together with Search they do what docs/decisions/029-vector-numerics.md
// specifies, bit by bit.
//
// Launchers put their work on a stream and return the launch's error; none waits, allocates or reads back, so all of
// them may be captured in a graph. What a round's later kernels do depends on what its earlier ones found: they read
// that on the device, and do nothing in a round that is skipped or comes after the last one. The ids and distances of
// such a round are computed for nothing and discarded.
#pragma once

#include <cstdint>

#include "cpu/vector_rules.h"
#include "kernels/launch.h"
#include "millrace/vectors.h"

namespace mr::cuda {

// Control is the state of a training, in device memory.
struct Control {
  // As of the last round's end.
  int64_t iteration, stable;
  double temperature, energy;
  int32_t has_ids, done, reason;
  int32_t hold;            // LLOYD: the current round waits until codewords without rows have been reseeded
  // The current round.
  int32_t skip, over;      // it must be skipped; it is the last
  int64_t next_stable, empty;
  double next_energy, imbalance;
  uint64_t changes, merged, split;
  uint64_t donors;         // of the subspace in maintenance
  // Of the trainer's lifetime.
  uint64_t recomputed;
  uint64_t sequence;       // rounds ended, held or skipped
};

// RoundReport is a round's report to the host. `ended` is 0 if it was skipped or is held.
struct RoundReport {
  mr_round round;
  int64_t iteration, stable;
  double temperature, energy;
  uint64_t recomputed;
  int32_t ended, hold, done, reason;
};
constexpr uint64_t kReports = 8;  // round i reports in slot i mod kReports

// TrainingParameters is a configuration as kernels read it.
struct TrainingParameters {
  uint64_t seed;
  int64_t n, full, width, spaces, codewords, blocks;  // as cpu::TrainingShape
  int32_t metric, stored, codeword_type, annealed;
  EndRule end;
  double cooling_rate, learning_rate, momentum, trim, step_limit, merge_distance, split_load;
};

// TrainingArrays are in device memory unless stated. Shapes are row-major, n rows and k codewords.
struct TrainingArrays {
  const void* any_rows;      // (n, full) of the stored type, in device or pinned host memory: for single rows
  double* scale;             // (full) 2^E
  int32_t* exponent;         // (full) E
  float *now, *last, *next;  // (spaces, k, width)
  double *place, *next_place, *velocity, *next_velocity;  // the same shape; ANNEALED, otherwise null
  uint32_t *ids, *new_ids;   // (spaces, n)
  uint32_t* sum_ids;         // (spaces, n) new_ids of the rows kept, k for the others; if rows are trimmed, otherwise null
  double* distances;         // (spaces, n)
  uint64_t *loads, *new_loads;  // (spaces, k)
  int64_t* sums;             // (spaces, k, width); of launch_variances the first spaces * k of them are doubles
  double* block_values;      // (spaces, blocks) sums; of FARTHEST the largest distance
  uint32_t* block_rows;      // (blocks) the row of that
  double *space_energy, *space_squares;  // (spaces)
  int32_t* space_exponent;   // (spaces) E of the sums of distances
  uint32_t* space_empty;     // (spaces)
  uint32_t* farthest;        // (spaces, k) last kept row; if rows are trimmed
  uint64_t* starts;          // (k) first index of a codeword in the order of the trimmed
  uint32_t *nearest, *listed;  // (k) merges; donors in their order
  uint64_t* left;            // (k) loads between merges and splits
  uint8_t* touched;          // (k)
  Control* control;
  RoundReport* reports;      // (kReports) in pinned host memory
};

// TrainingView is a training's parameters and arrays, the parameter of every kernel.
struct TrainingView {
  TrainingParameters p;
  TrainingArrays a;
};

// ---- rows: training_rows.cu ------------------------------------------------------------------------------------------

// For `count` rows of `full` elements of `type`: *bad becomes the least `first` + i whose row i is not finite, if less
// than before, and largest[j] the bits of the largest |x_j|, if more. Either may be null.
cudaError_t launch_inspect_rows(const void* rows, int32_t type, int64_t count, int64_t full, uint64_t first, unsigned long long* bad,
                                uint32_t* largest, const Stream& on);
// to[j] = max(to[j], from[j]), bits of magnitudes.
cudaError_t launch_raise_largest(uint32_t* to, const uint32_t* from, int64_t full, const Stream& on);
// Divides rows of `type` by their lengths.
cudaError_t launch_normalise_rows(const void* rows, int32_t type, int64_t count, int64_t full, float* to, const Stream& on);
// to[i] = the ids of rows first .. first + count - 1, (count, spaces).
cudaError_t launch_gather_ids(const TrainingView& t, int64_t first, int64_t count, uint32_t* to, const Stream& on);

// ---- the first codewords: training_seed.cu ---------------------------------------------------------------------------

cudaError_t launch_seed_random(const TrainingView& t, const Stream& on);
// Updates the least distances of rows first .. first + count - 1 to codewords 0 .. c - 1 of a subspace; they are known
// for c - 2.
cudaError_t launch_spread(const TrainingView& t, const void* rows, int64_t first, int64_t count, int64_t space, int64_t c, const Stream& on);
// Chooses codeword c of a subspace: the first one, or one by its rows' least distances.
cudaError_t launch_choose(const TrainingView& t, bool farthest, int64_t space, int64_t c, const Stream& on);
// ANNEALED: places are codewords, without velocity.
cudaError_t launch_places(const TrainingView& t, const Stream& on);

// ---- a round: training_round.cu --------------------------------------------------------------------------------------

cudaError_t launch_begin_round(const TrainingView& t, const Stream& on);
// Computes loads, changes and energy, and whether the round is the last.
cudaError_t launch_measure(const TrainingView& t, const Stream& on);
// Ends the round unless it is held, and writes its report.
cudaError_t launch_end_round(const TrainingView& t, const Stream& on);
// Releases a held round.
cudaError_t launch_release(const TrainingView& t, const Stream& on);
// Makes the ids found the ones against which changes are counted.
cudaError_t launch_adopt_ids(const TrainingView& t, const Stream& on);

// ---- variances: training_variances.cu --------------------------------------------------------------------------------

// After a training: the variance of each codeword's rows, as doubles in place of the first sums.
cudaError_t launch_variances(const TrainingView& t, const Stream& on);

// ---- sums and codewords: training_sums.cu, training_sums_distances.cu, training_move.cu ------------------------------

// Adds rows, sorted by codeword: entry i is row order[i] of `rows` and belongs to codeword keys[i] of the subspace, or
// to none if keys[i] is not below k. processors: SMs of the device.
cudaError_t launch_add_rows(const TrainingView& t, const void* rows, const uint32_t* keys, const uint32_t* order, int64_t count,
                            int64_t space, int processors, const Stream& on);
// The same for rows that all belong to a codeword; also writes distances[first + order[i]] = their Q. Requires
// adds_rows_with_distances.
cudaError_t launch_add_rows_with_distances(const TrainingView& t, const void* rows, const uint32_t* keys, const uint32_t* order,
                                           int64_t count, int64_t first, int64_t space, int processors, const Stream& on);
bool adds_rows_with_distances(const TrainingParameters& p);
// Computes the next codebook from the sums, and zeroes them.
cudaError_t launch_move(const TrainingView& t, const Stream& on);
// LLOYD: codewords of a subspace without rows become the first rows of `order`.
cudaError_t launch_reseed(const TrainingView& t, const uint32_t* order, int64_t space, const Stream& on);

// ---- ANNEALED: training_annealed.cu ----------------------------------------------------------------------------------

// keys[i] = the codeword of row order[i] in a subspace.
cudaError_t launch_keys_of(const TrainingView& t, const uint32_t* order, uint32_t* keys, int64_t space, const Stream& on);
// For rows in the order (codeword, Q, row): decides which are kept, and finds each codeword's last one.
cudaError_t launch_trim(const TrainingView& t, const uint32_t* keys, const uint32_t* order, int64_t space, const Stream& on);
// Finds the codewords to merge codewords first .. first + count - 1 of a subspace with.
cudaError_t launch_find_near(const TrainingView& t, int64_t space, int64_t first, int64_t count, const Stream& on);
cudaError_t launch_merge_and_split(const TrainingView& t, int64_t space, const Stream& on);

}  // namespace mr::cuda
