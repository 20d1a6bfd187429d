/* millrace/vectors.h: vector codebooks, a part of the ABI of engine.h, whose rules of version, errors, ownership, threads and
 * units hold here too. mr_api.vectors points at the table below, or is NULL: that engine has none of it.
 *
 * What the functions compute, down to the order of every sum, is docs/decisions/029-vector-numerics.md: equal arguments give
 * equal bits on every engine, whatever its threads, its instructions, the chunks of the rows and the slices of the work.
 *
 * Layouts  Rows are row-major (rows, dimension), elements little-endian, without gaps. A codebook has `subspaces` parts
 *          (FLAT: 1) of `codewords` codewords of dimension/subspaces elements: (subspaces, codewords, dimension/subspaces).
 *          Codes are (rows, subspaces), FLAT with neighbours (rows, neighbours); a code is a uint8 where codewords <= 256,
 *          else a uint16.
 * Threads  A trainer is used by one thread at a time. A codebook may be used from several threads, also while runners step
 *          and trainers train.
 */
#ifndef MILLRACE_VECTORS_H
#define MILLRACE_VECTORS_H

#include "millrace/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mr_trainer mr_trainer;   /* the rows of one training, its codebook and workspace */
typedef struct mr_codebook mr_codebook; /* a codebook in device memory */

/* Types of elements. Codewords are F32, F16 or BF16. */
enum { MR_VECTOR_F32 = 0, MR_VECTOR_F16 = 1, MR_VECTOR_BF16 = 2, MR_VECTOR_U8 = 3, MR_VECTOR_I8 = 4 };

enum { MR_CODEBOOK_FLAT = 0, MR_CODEBOOK_PRODUCT = 1 };

/* PRODUCT knows L2 alone. */
enum { MR_METRIC_L2 = 0, MR_METRIC_INNER_PRODUCT = 1, MR_METRIC_COSINE = 2 };

/* ANNEALED knows L2 alone. */
enum { MR_ALGORITHM_LLOYD = 0, MR_ALGORITHM_ANNEALED = 1 };

/* KMEANS_PLUS_PLUS and FARTHEST take one step a codeword: at most 4 096 codewords, and not with INNER_PRODUCT. */
enum { MR_INIT_RANDOM = 0, MR_INIT_KMEANS_PLUS_PLUS = 1, MR_INIT_FARTHEST = 2, MR_INIT_GIVEN = 3 };

enum {
  MR_VECTOR_MAX_DIMENSION = 65536,
  MR_VECTOR_MAX_CODEWORDS = 65536,
  MR_VECTOR_MAX_SEQUENTIAL = 4096, /* codewords of an init that takes one step each */
  MR_VECTOR_MAX_NEIGHBOURS = 64
};

typedef struct mr_trainer_config {
  size_t struct_size;
  uint64_t rows;              /* codewords .. 2^32 - 1: as many as will be written */
  int32_t dimension;          /* 1 .. 65 536 */
  int32_t element_type;       /* MR_VECTOR_*: of the rows */
  int32_t kind;               /* MR_CODEBOOK_* */
  int32_t codewords;          /* of each subspace, 1 .. 65 536; codewords * dimension < 2^31 */
  int32_t subspaces;          /* a divisor of dimension; FLAT: 1 */
  int32_t codeword_type;      /* MR_VECTOR_F32, F16 or BF16 */
  int32_t metric;             /* MR_METRIC_* */
  int32_t algorithm;          /* MR_ALGORITHM_* */
  int32_t init;               /* MR_INIT_* */
  int32_t max_iterations;     /* updates, 0 .. 1 000 000; 0 = the initial codebook is measured and kept */
  int32_t stable_iterations;  /* rounds in a row that must be stable before the training ends, >= 1 */
  int32_t maintenance_interval; /* ANNEALED: updates from one merge-and-split to the next; 0 = none */
  uint64_t seed;
  int64_t min_changes;        /* a round with at most so many changed ids is stable; -1 = ids do not matter */
  double energy_tolerance;    /* so is one whose energy differs from the last by at most so much of it, >= 0; -1 = energy does not
                                 matter. Where neither matters, LLOYD's round without a changed id is stable */
  /* ANNEALED; LLOYD reads none of them. */
  double temperature;         /* of the first update, 0 < t <= 1 */
  double cooling_rate;        /* what is taken off the temperature by each update, 0 <= r < 1 */
  double learning_rate;       /* 0 < r <= 1 */
  double momentum;            /* 0 <= m < 1 */
  double trim;                /* share of a codeword's rows, the farthest, that its mean leaves out, 0 .. 0.5 */
  double step_limit;          /* longest step of a codeword, in the rows' unit, > 0; 0 = none */
  double merge_distance;      /* codewords nearer than this become one, in the rows' unit, > 0; 0 = none */
  double split_load;          /* a codeword with more than so many times its share of the rows is split, > 1; 0 = none */
  uint64_t spool_bytes;       /* host memory that rows may take where device memory does not hold them; 0 = none */
} mr_trainer_config;

/* What a trainer of this configuration takes if it is made now; nothing is allocated. Rows are spooled only where they do not
 * fit in what is free. Once a trainer is made it takes no more. */
typedef struct mr_trainer_cost {
  size_t struct_size;
  uint64_t device_bytes;
  uint64_t spool_bytes;       /* of host memory; 0 = the rows are resident */
} mr_trainer_cost;

/* One slice of work: it ends when any of these is reached, and goes on for one unit of the engine's work at least. */
typedef struct mr_slice {
  size_t struct_size;
  uint64_t budget_ns;         /* about so much time on the device; 0 = no bound */
  int32_t max_rounds;         /* >= 1 */
  int32_t reserved0;
} mr_slice;

/* One round: the assignment of every row to the codebook of `iteration` updates, and the update that followed. */
typedef struct mr_round {
  int64_t iteration;          /* updates before it, 0 .. max_iterations */
  double energy;              /* mean distance of the rows from their codewords */
  int64_t changes;            /* ids, of rows * subspaces, that differ from the round before; all of them in round 0 */
  double temperature;         /* of its update; 0 for LLOYD */
  int64_t empty;              /* codewords, of subspaces * codewords, without a row */
  int64_t merged, split;      /* codewords in the maintenance behind its update */
  double imbalance;           /* mean over the subspaces of codewords * sum of squared loads / rows^2; 1 = even */
} mr_round;

enum {
  MR_TRAINING_WRITING = 0,
  MR_TRAINING_SEEDING = 1,
  MR_TRAINING_ASSIGNING = 2,
  MR_TRAINING_UPDATING = 3,
  MR_TRAINING_DONE = 4
};

enum { MR_REASON_NONE = 0, MR_REASON_MAX_ITERATIONS = 1, MR_REASON_CONVERGED = 2 };

typedef struct mr_training {
  size_t struct_size;
  size_t round_stride;        /* sizeof the caller's mr_round */
  mr_round *rounds;           /* out: those that the slice ended, in order */
  int32_t round_capacity;     /* >= max_rounds of the slice */
  int32_t round_count;        /* out */
  int32_t phase;              /* out: MR_TRAINING_* */
  int32_t reason;             /* out: MR_REASON_*; not NONE when phase is DONE */
  uint64_t rows_done, rows_total; /* out: of the phase, rows_done <= rows_total */
  uint64_t computed;          /* out: ids found since the trainer was made */
  uint64_t recomputed;        /* out: of these, those that needed float64; says nothing of bits and differs by device */
  uint64_t device_ns;         /* out: time the device worked on the slice */
} mr_training;

/* What can be read of a trainer between its slices. */
enum {
  MR_TRAINER_CODEWORDS = 0,   /* the codebook, in codeword_type; the last round's once DONE */
  MR_TRAINER_IDS = 1,         /* (rows, subspaces) uint32 of the last round; FAILED_PRECONDITION before its end */
  MR_TRAINER_LOADS = 2,       /* (subspaces, codewords) uint64 of the last round; FAILED_PRECONDITION before its end */
  MR_TRAINER_STATE = 3,       /* what trainer_restore takes, as of the last round's end: equal bytes on every engine.
                                 FAILED_PRECONDITION before the codebook is seeded */
  MR_TRAINER_VARIANCES = 4    /* (subspaces, codewords) doubles: the mean distance of a codeword's rows from it, which
                                 with L2 is their variance; 0 without rows. FAILED_PRECONDITION before the training is DONE */
};

typedef struct mr_codebook_desc {
  size_t struct_size;
  int32_t kind, metric;       /* MR_CODEBOOK_*, MR_METRIC_* */
  int32_t dimension, codewords, subspaces, codeword_type; /* as in mr_trainer_config */
} mr_codebook_desc;

typedef struct mr_encode_args {
  size_t struct_size;
  const void *rows;           /* (count, dimension) of element_type, finite */
  uint64_t count;             /* >= 0 */
  int32_t element_type;       /* MR_VECTOR_* */
  int32_t neighbours;          /* FLAT: 1 .. min(64, codewords), nearest first, lowest id first on ties; PRODUCT: 1 */
  void *codes;                /* out */
  float *distances;           /* out: one for each code; PRODUCT: one for each row. NULL = not wanted */
  uint64_t recomputed;        /* out: ids that needed float64, of count * subspaces */
} mr_encode_args;

struct mr_vector_api {
  size_t struct_size;

  /* Trainers. create takes all memory at once: RESOURCE_EXHAUSTED with bytes asked and free. INVALID_ARGUMENT names the member
   * that is out of range. write appends `count` rows and copies them before it returns; `first` is how many were written before,
   * so that a chunk is neither lost nor written twice. Rows that are not finite are INVALID_ARGUMENT with the first one's number,
   * and none of the chunk is written. give sets the codebook of MR_INIT_GIVEN, codewords all finite, before the first submit.
   * restore sets what MR_TRAINER_STATE gave, of a trainer with the same configuration (max_iterations and criteria of the end may
   * differ) and the same rows, before the first submit: what follows is what would have followed there.
   * submit returns at once; at most two slices are in flight. FAILED_PRECONDITION: rows, or the given codewords, are missing, or
   * the training is DONE. INVALID_ARGUMENT: codeword_type cannot hold the rows' largest value. wait returns the oldest slice's result
   * (DEADLINE_EXCEEDED: not done within timeout_ns, wait again; FAILED_PRECONDITION: none in flight). A slice behind one that
   * ended the training does nothing and says DONE. After MR_INTERNAL the trainer can only be destroyed. size and read want no
   * slice in flight (FAILED_PRECONDITION). destroy waits for the slices in flight, no longer than a unit of work each. */
  mr_error *(*trainer_cost)(const mr_device *, const mr_trainer_config *, mr_trainer_cost *out);
  mr_error *(*trainer_create)(mr_device *, const mr_trainer_config *, mr_trainer **out);
  mr_error *(*trainer_write)(mr_trainer *, uint64_t first, const void *rows, uint64_t count);
  mr_error *(*trainer_give)(mr_trainer *, const void *codewords, uint64_t size);
  mr_error *(*trainer_restore)(mr_trainer *, const void *state, uint64_t size);
  mr_error *(*trainer_submit)(mr_trainer *, const mr_slice *);
  mr_error *(*trainer_wait)(mr_trainer *, uint64_t timeout_ns, mr_training *out);
  mr_error *(*trainer_size)(const mr_trainer *, int32_t what, uint64_t *size);
  mr_error *(*trainer_read)(const mr_trainer *, int32_t what, uint64_t offset, void *dst, uint64_t size);
  mr_error *(*trainer_destroy)(mr_trainer *);

  /* Codebooks. create copies `size` bytes of codewords, all finite. encode and decode are done when they return; they
   * allocate nothing that outlives the call. INVALID_ARGUMENT: a row that is not finite, or a code >= codewords, by its number;
   * codes and distances may hold anything then.
   * decode gathers codewords: out is (count, dimension) of codeword_type. digest is BLAKE3 of the codewords' bytes, computed
   * from the resident bytes at any time. fault knows MR_FAULT_FLIP_BIT, with index 0. */
  mr_error *(*codebook_create)(mr_device *, const mr_codebook_desc *, const void *codewords, uint64_t size, mr_codebook **out);
  mr_error *(*codebook_encode)(const mr_codebook *, mr_encode_args *);
  mr_error *(*codebook_decode)(const mr_codebook *, const void *codes, uint64_t count, void *out);
  mr_error *(*codebook_digest)(const mr_codebook *, mr_digest *out);
  mr_error *(*codebook_fault)(mr_codebook *, int32_t fault, int32_t index, uint64_t value);
  mr_error *(*codebook_destroy)(mr_codebook *);
};

#ifdef __cplusplus
}
#endif
#endif
