/* Vector codebooks: a training in slices, what is read of it, and a codebook made of it. */
#include "check.h"
#include "models.h"

enum { ROWS = 500, DIMENSION = 6, CODEWORDS = 5, STATE = 40 + 2 * 4 * CODEWORDS * DIMENSION };

static const mr_vector_api *v;

static mr_trainer_config config_of(void) {
  mr_trainer_config c;
  memset(&c, 0, sizeof c);
  c.struct_size = sizeof c;
  c.rows = ROWS;
  c.dimension = DIMENSION;
  c.codewords = CODEWORDS;
  c.subspaces = 1;
  c.max_iterations = 3;
  c.stable_iterations = 100;
  c.min_changes = -1;
  c.energy_tolerance = -1;
  c.seed = 9;
  return c;
}

static void fill(float *rows) {
  uint64_t state = 4;
  int i;
  for (i = 0; i < ROWS * DIMENSION; ++i) rows[i] = next_float(&state);
}

/* Waits for one slice; its phase, and how many rounds it ended, the last of them in *last. */
static int32_t wait_for(mr_trainer *trainer, int32_t capacity, mr_round *last, int32_t *count) {
  mr_round rounds[8];
  mr_training told;
  memset(&told, 0, sizeof told);
  told.struct_size = sizeof told;
  told.round_stride = sizeof rounds[0];
  told.rounds = rounds;
  told.round_capacity = capacity;
  OK(v->trainer_wait(trainer, UINT64_MAX, &told));
  CHECK(told.rows_done <= told.rows_total && told.recomputed <= told.computed);
  CHECK((told.phase == MR_TRAINING_DONE) == (told.reason != MR_REASON_NONE));
  *count = told.round_count;
  if (told.round_count > 0) *last = rounds[told.round_count - 1];
  return told.phase;
}

static void submit(mr_trainer *trainer, uint64_t budget_ns, int32_t rounds) {
  mr_slice slice;
  memset(&slice, 0, sizeof slice);
  slice.struct_size = sizeof slice;
  slice.budget_ns = budget_ns;
  slice.max_rounds = rounds;
  OK(v->trainer_submit(trainer, &slice));
}

static void test_refusals(mr_device *device) {
  mr_trainer_config config = config_of();
  mr_trainer_cost cost;
  mr_trainer *trainer = NULL;
  mr_codebook *codebook = NULL;
  mr_slice slice;
  mr_training told;
  float rows[ROWS * DIMENSION];
  fill(rows);
  memset(&cost, 0, sizeof cost);
  cost.struct_size = sizeof cost;
  FAILS(MR_INVALID_ARGUMENT, "null", v->trainer_cost(NULL, &config, &cost));
  FAILS(MR_INVALID_ARGUMENT, "null", v->trainer_cost(device, NULL, &cost));
  FAILS(MR_INVALID_ARGUMENT, "null", v->trainer_create(device, &config, NULL));
  config.struct_size = 4;
  FAILS(MR_INVALID_ARGUMENT, "struct_size", v->trainer_create(device, &config, &trainer));
  config = config_of();
  config.codewords = ROWS + 1;
  FAILS(MR_INVALID_ARGUMENT, "rows", v->trainer_create(device, &config, &trainer));
  FAILS(MR_INVALID_ARGUMENT, "no trainer", v->trainer_write((mr_trainer *)(uintptr_t)1234, 0, rows, 1));
  FAILS(MR_INVALID_ARGUMENT, "null", v->codebook_decode(NULL, rows, 1, rows));
  OK(v->trainer_destroy(NULL));
  OK(v->codebook_destroy(NULL));

  config = config_of();
  OK(v->trainer_cost(device, &config, &cost));
  CHECK(cost.device_bytes >= sizeof rows && cost.spool_bytes == 0);
  OK(v->trainer_create(device, &config, &trainer));
  FAILS(MR_FAILED_PRECONDITION, "trainers", api->device_close(device));
  memset(&slice, 0, sizeof slice);
  slice.struct_size = sizeof slice;
  slice.max_rounds = 1;
  FAILS(MR_FAILED_PRECONDITION, "0 of 500 rows", v->trainer_submit(trainer, &slice));
  OK(v->trainer_write(trainer, 0, rows, 499));
  OK(v->trainer_write(trainer, 499, NULL, 0));
  FAILS(MR_INVALID_ARGUMENT, "499", v->trainer_write(trainer, 498, rows, 1));
  FAILS(MR_INVALID_ARGUMENT, "missing", v->trainer_write(trainer, 499, rows, 2));
  FAILS(MR_INVALID_ARGUMENT, "null", v->trainer_write(trainer, 499, NULL, 1));
  FAILS(MR_INVALID_ARGUMENT, "init", v->trainer_give(trainer, rows, sizeof(float) * CODEWORDS * DIMENSION));
  OK(v->trainer_write(trainer, 499, rows, 1));
  slice.max_rounds = 0;
  FAILS(MR_INVALID_ARGUMENT, "max_rounds", v->trainer_submit(trainer, &slice));
  memset(&told, 0, sizeof told);
  told.struct_size = sizeof told;
  FAILS(MR_FAILED_PRECONDITION, "no slice", v->trainer_wait(trainer, 0, &told));
  submit(trainer, 0, 2);
  FAILS(MR_INVALID_ARGUMENT, "round_capacity", v->trainer_wait(trainer, UINT64_MAX, &told));
  told.round_capacity = 2;
  FAILS(MR_INVALID_ARGUMENT, "rounds is null", v->trainer_wait(trainer, UINT64_MAX, &told));
  OK(v->trainer_destroy(trainer)); /* with a slice in flight */
  FAILS(MR_FAILED_PRECONDITION, "given back", v->trainer_write(trainer, 0, rows, 1));
  CHECK(codebook == NULL);
}

/* Writes the training's last state. */
static void test_a_training(mr_device *device, uint8_t *state) {
  const mr_trainer_config config = config_of();
  mr_trainer *trainer = NULL;
  mr_codebook *codebook = NULL;
  mr_codebook_desc desc;
  mr_encode_args args;
  mr_digest digest, same;
  mr_round last;
  uint64_t size = 0, loads[CODEWORDS], all = 0;
  uint32_t ids[ROWS];
  uint8_t codes[ROWS], code = CODEWORDS, piece[STATE];
  float rows[ROWS * DIMENSION], codewords[CODEWORDS * DIMENSION], distances[ROWS], decoded[DIMENSION];
  int32_t count = 0, rounds = 0;
  double energy = 0, total = 0, variances[CODEWORDS];
  size_t i;
  fill(rows);
  memset(&last, 0, sizeof last);
  OK(v->trainer_create(device, &config, &trainer));
  OK(v->trainer_write(trainer, 0, rows, ROWS));
  FAILS(MR_FAILED_PRECONDITION, "seeded", v->trainer_size(trainer, MR_TRAINER_CODEWORDS, &size));
  for (submit(trainer, 1, 8); wait_for(trainer, 8, &last, &count) != MR_TRAINING_DONE; submit(trainer, 1, 8)) {
    rounds += count;
    FAILS(MR_INVALID_ARGUMENT, "what", v->trainer_size(trainer, 5, &size));
    FAILS(MR_FAILED_PRECONDITION, "", v->trainer_size(trainer, MR_TRAINER_VARIANCES, &size)); /* not seeded, or not done */
  }
  rounds += count;
  CHECK(rounds == 4 && last.iteration == 3 && last.empty == 0);

  OK(v->trainer_size(trainer, MR_TRAINER_IDS, &size));
  CHECK(size == sizeof ids);
  OK(v->trainer_read(trainer, MR_TRAINER_IDS, 0, ids, size));
  OK(v->trainer_read(trainer, MR_TRAINER_LOADS, 0, loads, sizeof loads));
  for (i = 0; i < CODEWORDS; ++i) all += loads[i];
  CHECK(all == ROWS);
  OK(v->trainer_size(trainer, MR_TRAINER_VARIANCES, &size));
  CHECK(size == sizeof variances);
  OK(v->trainer_read(trainer, MR_TRAINER_VARIANCES, 0, variances, 12)); /* pieces that begin and end within a number */
  OK(v->trainer_read(trainer, MR_TRAINER_VARIANCES, 12, (uint8_t*)variances + 12, sizeof variances - 12));
  for (i = 0; i < CODEWORDS; ++i) total += variances[i] * (double)loads[i];
  CHECK(total / ROWS > last.energy * (1 - 1e-12) && total / ROWS < last.energy * (1 + 1e-12));
  OK(v->trainer_read(trainer, MR_TRAINER_CODEWORDS, 0, codewords, sizeof codewords));
  OK(v->trainer_size(trainer, MR_TRAINER_STATE, &size));
  CHECK(size == STATE);
  OK(v->trainer_read(trainer, MR_TRAINER_STATE, 0, state, size));
  for (i = 0; i < size; i += 7) /* pieces that begin and end anywhere */
    OK(v->trainer_read(trainer, MR_TRAINER_STATE, i, piece + i, size - i < 7 ? size - i : 7));
  CHECK(memcmp(state, piece, size) == 0 && memcmp(state, "MRVSTAT\1", 8) == 0);
  FAILS(MR_OUT_OF_RANGE, "beyond", v->trainer_read(trainer, MR_TRAINER_STATE, 1, piece, size));
  OK(v->trainer_destroy(trainer));

  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.dimension = DIMENSION;
  desc.codewords = CODEWORDS;
  desc.subspaces = 1;
  FAILS(MR_INVALID_ARGUMENT, "size", v->codebook_create(device, &desc, codewords, 3, &codebook));
  OK(v->codebook_create(device, &desc, codewords, sizeof codewords, &codebook));
  FAILS(MR_FAILED_PRECONDITION, "first", api->device_close(device));
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.neighbours = 1;
  OK(v->codebook_encode(codebook, &args)); /* no rows */
  args.count = ROWS;
  FAILS(MR_INVALID_ARGUMENT, "rows is null", v->codebook_encode(codebook, &args));
  args.rows = rows;
  args.codes = codes;
  args.distances = distances;
  OK(v->codebook_encode(codebook, &args));
  for (i = 0; i < ROWS; ++i) {
    CHECK(codes[i] == ids[i]); /* the training's last assignment */
    energy += (double)distances[i];
  }
  CHECK(energy / ROWS > last.energy * 0.999999 && energy / ROWS < last.energy * 1.000001);
  FAILS(MR_INVALID_ARGUMENT, "row 0 has code 5", v->codebook_decode(codebook, &code, 1, decoded));
  code = 2;
  OK(v->codebook_decode(codebook, &code, 1, decoded));
  CHECK(memcmp(decoded, codewords + 2 * DIMENSION, sizeof decoded) == 0);

  OK(v->codebook_digest(codebook, &digest));
  FAILS(MR_INVALID_ARGUMENT, "fault", v->codebook_fault(codebook, MR_FAULT_REFUSE_FREE, 0, 0));
  FAILS(MR_INVALID_ARGUMENT, "index", v->codebook_fault(codebook, MR_FAULT_FLIP_BIT, 1, 0));
  FAILS(MR_INVALID_ARGUMENT, "bit", v->codebook_fault(codebook, MR_FAULT_FLIP_BIT, 0, 8 * sizeof codewords));
  OK(v->codebook_fault(codebook, MR_FAULT_FLIP_BIT, 0, 8 * sizeof codewords - 1));
  OK(v->codebook_digest(codebook, &same));
  CHECK(memcmp(&digest, &same, sizeof same) != 0);
  OK(v->codebook_fault(codebook, MR_FAULT_FLIP_BIT, 0, 8 * sizeof codewords - 1));
  OK(v->codebook_digest(codebook, &same));
  CHECK(memcmp(&digest, &same, sizeof same) == 0);
  OK(v->codebook_destroy(codebook));
  FAILS(MR_FAILED_PRECONDITION, "given back", v->codebook_digest(codebook, &digest));
}

/* While a runner lives trainings leave the team to it: the bits are the same. */
static void test_beside_a_runner(mr_device *device, const uint8_t *want) {
  const plain_model desc = tiny_model();
  mr_model *model = NULL;
  mr_runner *runner = NULL;
  mr_runner_config config;
  uint8_t state[STATE];
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.kv_blocks = 2;
  config.block_size = 16;
  config.max_sequences = config.max_sample_rows = 1;
  config.max_batched_tokens = 16;
  config.kv_type = gpu ? MR_KV_F16 : MR_KV_F32;
  OK(create(device, &desc, &model));
  bind_all(device, model, &desc, 0);
  OK(api->model_seal(model));
  OK(api->runner_create(model, &config, &runner));
  test_a_training(device, state);
  CHECK(memcmp(state, want, sizeof state) == 0);
  OK(api->runner_destroy(runner));
  OK(api->model_destroy(model));
}

void test_vectors(const char *path) {
  mr_device *device;
  uint8_t state[STATE];
  v = api->vectors;
  if (v == NULL) return; /* an engine may have none of it */
  device = open_device(path, 2);
  test_refusals(device);
  test_a_training(device, state);
  test_beside_a_runner(device, state);
  OK(api->device_close(device));
}
