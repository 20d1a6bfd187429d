/* Runners: steps, results, faults and life cycle. */
#include <math.h>

#include "check.h"
#include "models.h"

enum { prompt_length = 5, block_size = 16, top_n = 3, hidden_width = 256 };

static const int32_t prompt[prompt_length] = {7, 1, 80, 33, 7};

static mr_runner_config tiny_config(void) {
  mr_runner_config config;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.kv_blocks = 8;
  config.block_size = block_size;
  config.max_sequences = 2;
  config.max_batched_tokens = 64;
  config.max_sample_rows = 4;
  config.max_score_rows = 8;
  config.max_top_n = top_n;
  config.max_hidden_rows = 2;
  config.kv_type = gpu ? MR_KV_F16 : MR_KV_F32;
  return config;
}

/* Elements a step may have here, with room for one of each behind the pointers. */
typedef struct request {
  mr_step step;
  mr_segment segment;
  mr_sample_row sample;
  mr_score_row score;
  mr_pre_op pre_op;
  mr_slot_params params;
  int32_t tokens[prompt_length];
  int32_t blocks[2];
  int32_t hidden[2];
} request;

typedef struct answer {
  mr_step_result result;
  mr_row_result samples[4], scores[8];
  mr_candidate candidates[64];
  float hidden[2 * hidden_width];
} answer;

static void begin(request *r, const int32_t *tokens, int32_t count, int32_t position, int32_t kernel_class) {
  memset(r, 0, sizeof *r);
  memcpy(r->tokens, tokens, (size_t)count * sizeof *tokens);
  r->blocks[0] = 5;
  r->blocks[1] = 2;
  r->step.struct_size = sizeof r->step;
  r->step.segment_stride = sizeof r->segment;
  r->step.sample_stride = sizeof r->sample;
  r->step.score_stride = sizeof r->score;
  r->step.pre_op_stride = sizeof r->pre_op;
  r->step.segments = &r->segment;
  r->step.segment_count = 1;
  r->step.tokens = r->tokens;
  r->step.token_count = count;
  r->step.block_ids = r->blocks;
  r->step.block_id_count = 2;
  r->segment.slot = 1;
  r->segment.slot_generation = 9;
  r->segment.kernel_class = kernel_class;
  r->segment.first_position = position;
  r->segment.count = count;
  r->segment.block_count = 2;
  r->sample.token_index = count - 1;
  r->sample.slot = 1;
  r->sample.slot_generation = 9;
  r->sample.position = position + count;
  r->sample.mask_offset = -1;
  r->step.samples = &r->sample;
  r->step.sample_count = 1;
}

static void set_slot(request *r) {
  r->params.struct_size = sizeof r->params;
  r->params.seed = 1;
  r->params.prompt_length = prompt_length;
  r->params.top_n = top_n;
  r->params.top_p = r->params.typical_p = r->params.repetition_penalty = 1;
  r->params.allowed_count = -1;
  r->pre_op.struct_size = sizeof r->pre_op;
  r->pre_op.kind = MR_PRE_SLOT_SET;
  r->pre_op.slot = 1;
  r->pre_op.slot_generation = 9;
  r->pre_op.params = &r->params;
  r->step.pre_ops = &r->pre_op;
  r->step.pre_op_count = 1;
}

static void prepare(answer *a) {
  memset(a, 0, sizeof *a);
  a->result.struct_size = sizeof a->result;
  a->result.row_stride = sizeof a->samples[0];
  a->result.samples = a->samples;
  a->result.sample_capacity = 4;
  a->result.scores = a->scores;
  a->result.score_capacity = 8;
  a->result.candidates = a->candidates;
  a->result.candidate_capacity = 64;
  a->result.hidden = a->hidden;
  a->result.hidden_capacity = 2 * hidden_width;
}

static mr_progress progress_of(const mr_runner *runner) {
  mr_progress progress;
  memset(&progress, 0, sizeof progress);
  progress.struct_size = sizeof progress;
  OK(api->runner_progress(runner, &progress));
  return progress;
}

static void wait_for(mr_runner *runner, answer *a) {
  prepare(a);
  OK(api->step_wait(runner, 60000000000u, &a->result));
}

/* Greedy: the prompt in one step, two tokens more at depth 2; their ids and logprobs into out[6]. */
static void generate(mr_model *model, double *out) {
  const mr_runner_config config = tiny_config();
  const int32_t previous = -1;
  mr_runner *runner = NULL;
  request r;
  answer a;
  int i;
  OK(api->runner_create(model, &config, &runner));
  begin(&r, prompt, prompt_length, 0, MR_CLASS_PREFILL);
  set_slot(&r);
  r.score.token_index = 1;
  r.score.target = prompt[2];
  r.score.top_n = 2;
  r.step.scores = &r.score;
  r.step.score_count = 1;
  r.hidden[0] = prompt_length - 1;
  r.hidden[1] = 0;
  r.step.hidden_rows = r.hidden;
  r.step.hidden_count = 2;
  OK(api->step_submit(runner, &r.step));
  begin(&r, &previous, 1, prompt_length, MR_CLASS_DECODE);
  OK(api->step_submit(runner, &r.step));
  begin(&r, &previous, 1, prompt_length + 1, MR_CLASS_DECODE);
  {
    mr_error *error = api->step_submit(runner, &r.step); /* a third step in flight, unless one has just ended */
    const int32_t code = api->error_code(error);
    CHECK(code == MR_FAILED_PRECONDITION);
    api->error_destroy(error);
  }
  for (i = 0; i < 3; ++i) {
    wait_for(runner, &a);
    CHECK(a.result.sample_count == 1);
    CHECK(a.samples[0].slot == 1 && a.samples[0].position == prompt_length + i);
    CHECK(a.samples[0].status == MR_ROW_OK && a.samples[0].count == 1);
    CHECK(a.samples[0].rank == 1);
    CHECK(a.samples[0].candidate_count == top_n);
    CHECK(a.candidates[a.samples[0].candidate_offset].token == a.samples[0].token);
    CHECK(a.candidates[a.samples[0].candidate_offset].logprob == a.samples[0].logprob);
    CHECK(isfinite(a.samples[0].logprob) && a.samples[0].logprob <= 0);
    CHECK(a.result.device_ns > 0 && a.result.bytes_read > 0);
    CHECK(a.result.score_count == (i == 0));
    CHECK(a.result.hidden_count == (i == 0 ? 2 : 0));
    if (i == 0) CHECK(isfinite(a.hidden[0]) && a.hidden[0] != 0 && isfinite(a.hidden[hidden_width]) && a.hidden[0] != a.hidden[hidden_width]);
    if (i == 0) {
      CHECK(a.scores[0].slot == -1 && a.scores[0].position == -1 && a.scores[0].token == prompt[2]);
      CHECK(a.scores[0].candidate_count == 2 && isfinite(a.scores[0].logprob));
      OK(api->step_submit(runner, &r.step));
    }
    out[2 * i] = a.samples[0].token;
    out[2 * i + 1] = a.samples[0].logprob;
  }
  CHECK(progress_of(runner).submitted == 3 && progress_of(runner).completed == 3);
  CHECK(progress_of(runner).running_ns == 0);
  OK(api->runner_destroy(runner));
  FAILS(MR_FAILED_PRECONDITION, "given back", api->runner_destroy(runner));
  OK(api->runner_destroy(NULL));
}

static void test_refusals(mr_model *model) {
  const mr_runner_config config = tiny_config();
  mr_runner *runner = NULL;
  request r;
  answer a;
  OK(api->runner_create(model, &config, &runner));
  FAILS(MR_FAILED_PRECONDITION, "1 runners", api->model_destroy(model));
  prepare(&a);
  FAILS(MR_FAILED_PRECONDITION, NULL, api->step_wait(runner, 1000000, &a.result));
  begin(&r, prompt, prompt_length, 0, MR_CLASS_PREFILL); /* a slot that was never set */
  FAILS(MR_INVALID_ARGUMENT, NULL, api->step_submit(runner, &r.step));
  set_slot(&r);
  r.tokens[2] = 83;
  FAILS(MR_INVALID_ARGUMENT, "83", api->step_submit(runner, &r.step));
  r.tokens[2] = 0;
  r.blocks[0] = 8;
  FAILS(MR_INVALID_ARGUMENT, NULL, api->step_submit(runner, &r.step));
  r.blocks[0] = 0;
  r.segment.adapter = 1;
  FAILS(MR_INVALID_ARGUMENT, NULL, api->step_submit(runner, &r.step));
  CHECK(progress_of(runner).submitted == 0);

  /* A step that lasts longer: waiting gives up and finds it later. */
  r.segment.adapter = 0;
  OK(api->runner_fault(runner, MR_FAULT_HANG_STEP, 0, 300000000));
  OK(api->step_submit(runner, &r.step));
  prepare(&a);
  FAILS(MR_DEADLINE_EXCEEDED, NULL, api->step_wait(runner, 1000000, &a.result));
  CHECK(progress_of(runner).submitted == 1 && progress_of(runner).completed == 0);
  wait_for(runner, &a);
  CHECK(a.samples[0].status == MR_ROW_OK);

  OK(api->runner_fault(runner, MR_FAULT_NAN_LOGITS, 0, 0));
  OK(api->step_submit(runner, &r.step));
  wait_for(runner, &a);
  CHECK(a.samples[0].status == MR_ROW_NAN && a.samples[0].count == 0);
  OK(api->step_submit(runner, &r.step));
  wait_for(runner, &a);
  CHECK(a.samples[0].status == MR_ROW_OK);
  OK(api->runner_destroy(runner));
}

/* The slot's prompt is in blocks 5 and 2, and one of its tokens is sampled again behind it: from the slot's own history, from one
 * given, and from blocks that were in host memory meanwhile. */
static void test_history_and_host_blocks(mr_model *model) {
  mr_runner_config config = tiny_config();
  mr_runner *runner = NULL;
  mr_pre_op ops[4];
  request r;
  answer first, a;
  int i;
  config.host_blocks = 3;
  OK(api->runner_create(model, &config, &runner));
  begin(&r, prompt, prompt_length, 0, MR_CLASS_PREFILL);
  set_slot(&r);
  OK(api->step_submit(runner, &r.step));
  wait_for(runner, &first);

  begin(&r, prompt + 4, 1, 4, MR_CLASS_PREFILL);
  set_slot(&r);
  FAILS(MR_INVALID_ARGUMENT, "slot 1 holds 0", api->step_submit(runner, &r.step));
  r.pre_op.history = prompt;
  r.pre_op.history_count = 513;
  FAILS(MR_INVALID_ARGUMENT, "513", api->step_submit(runner, &r.step));
  r.pre_op.history_count = 4;
  OK(api->step_submit(runner, &r.step));
  wait_for(runner, &a);
  CHECK(a.samples[0].token == first.samples[0].token && a.samples[0].logprob == first.samples[0].logprob);

  memset(ops, 0, sizeof ops);
  for (i = 0; i < 4; ++i) ops[i].struct_size = sizeof ops[i];
  ops[0].kind = MR_PRE_BLOCK_IN;
  ops[0].src_block = 2;
  ops[0].dst_block = 7;
  begin(&r, prompt + 4, 1, 4, MR_CLASS_PREFILL);
  r.step.pre_ops = ops;
  r.step.pre_op_count = 1;
  FAILS(MR_INVALID_ARGUMENT, "never written", api->step_submit(runner, &r.step));
  ops[1] = ops[0];
  ops[0].kind = MR_PRE_BLOCK_OUT;
  ops[0].src_block = 5;
  ops[0].dst_block = 2;
  r.blocks[0] = 7;
  r.step.pre_op_count = 2;
  OK(api->step_submit(runner, &r.step));
  wait_for(runner, &a);
  CHECK(a.samples[0].token == first.samples[0].token && a.samples[0].logprob == first.samples[0].logprob);
  ops[0].dst_block = 3;
  FAILS(MR_INVALID_ARGUMENT, "host memory", api->step_submit(runner, &r.step));
  ops[0].kind = MR_PRE_STATE_OUT;
  FAILS(MR_INVALID_ARGUMENT, "no layer of the model carries one", api->step_submit(runner, &r.step));
  r.step.pre_op_count = 0;
  r.segment.state_to = 1;
  FAILS(MR_INVALID_ARGUMENT, "names state 1, wanted 0 .. 0", api->step_submit(runner, &r.step));
  OK(api->runner_destroy(runner));
}

/* The same sample whether its mask is there or comes late; a runner that waits for one is destroyed. */
static void test_late_masks(mr_model *model) {
  const mr_runner_config config = tiny_config();
  const uint32_t masks[3] = {0x80000001u, 0, 0x40000u}; /* tokens 0, 31 and 82 */
  mr_runner *runner = NULL;
  request r;
  answer early, late;
  OK(api->runner_create(model, &config, &runner));
  begin(&r, prompt, prompt_length, 0, MR_CLASS_PREFILL);
  set_slot(&r);
  r.sample.mask_offset = 0;
  r.step.masks = masks;
  r.step.mask_words = 3;
  OK(api->step_submit(runner, &r.step));
  wait_for(runner, &early);
  CHECK(early.samples[0].token == 0 || early.samples[0].token == 31 || early.samples[0].token == 82);
  FAILS(MR_FAILED_PRECONDITION, NULL, api->step_masks(runner, masks, 3));

  r.step.flags = MR_STEP_LATE_MASKS;
  FAILS(MR_INVALID_ARGUMENT, "late", api->step_submit(runner, &r.step));
  r.step.masks = NULL;
  r.step.flags |= 2u;
  FAILS(MR_UNIMPLEMENTED, "flags", api->step_submit(runner, &r.step));
  r.step.flags = MR_STEP_LATE_MASKS;
  OK(api->step_submit(runner, &r.step));
  prepare(&late);
  FAILS(MR_DEADLINE_EXCEEDED, NULL, api->step_wait(runner, 1000000, &late.result));
  FAILS(MR_FAILED_PRECONDITION, "masks", api->step_submit(runner, &r.step));
  FAILS(MR_INVALID_ARGUMENT, "2 words", api->step_masks(runner, masks, 2));
  FAILS(MR_INVALID_ARGUMENT, "null", api->step_masks(runner, NULL, 3));
  OK(api->step_masks(runner, masks, 3));
  wait_for(runner, &late);
  CHECK(late.samples[0].token == early.samples[0].token && late.samples[0].logprob == early.samples[0].logprob);
  CHECK(late.samples[0].rank == early.samples[0].rank);
  OK(api->step_submit(runner, &r.step));
  OK(api->runner_destroy(runner));
}

static void test_cost(mr_device *device, mr_model *model) {
  mr_runner_config config = tiny_config();
  mr_runner_cost cost;
  mr_runner *runner = NULL;
  mr_device_info info;
  memset(&cost, 0, sizeof cost);
  cost.struct_size = sizeof cost;
  OK(api->runner_cost(model, &config, &cost));
  CHECK(cost.bytes_per_state == 0 && cost.host_bytes_per_state == 0);
  CHECK(cost.kv_bytes > 0 && cost.workspace_bytes > 0 && cost.bytes_per_block * 8 <= cost.kv_bytes);
  OK(api->runner_create(model, &config, &runner));
  info = info_of(device);
  CHECK(info.bytes_used[MR_PURPOSE_KV] == cost.kv_bytes);
  CHECK(info.bytes_used[MR_PURPOSE_WORKSPACE] == cost.workspace_bytes);
  OK(api->runner_destroy(runner));
  config.block_size = 17;
  FAILS(MR_INVALID_ARGUMENT, "17", api->runner_cost(model, &config, &cost));
  FAILS(MR_INVALID_ARGUMENT, "17", api->runner_create(model, &config, &runner));
  if (!gpu) {
    const int32_t kv_types[4] = {MR_KV_F8, MR_KV_F32, MR_KV_F16, MR_KV_F8}, act_types[4] = {0, MR_KV_BF16, MR_KV_F16, MR_KV_BF16};
    int i;
    for (i = 0; i < 4; ++i) {
      config = tiny_config();
      config.kv_type = kv_types[i];
      config.act_type = act_types[i];
      FAILS(MR_UNIMPLEMENTED, kv_types[i] == MR_KV_F8 ? "kv_type" : "act_type", api->runner_cost(model, &config, &cost));
      FAILS(MR_UNIMPLEMENTED, kv_types[i] == MR_KV_F8 ? "kv_type" : "act_type", api->runner_create(model, &config, &runner));
    }
    CHECK(info.one_class == 1 && cost.host_bytes_per_block == cost.bytes_per_block);
  }
  config = tiny_config();
  config.host_blocks = -1;
  FAILS(MR_INVALID_ARGUMENT, "host_blocks", api->runner_create(model, &config, &runner));
  config = tiny_config();
  config.saved_states = 1;
  FAILS(MR_INVALID_ARGUMENT, "no layer of the model carries a state", api->runner_create(model, &config, &runner));
  config = tiny_config();
  config.host_states = -1;
  FAILS(MR_INVALID_ARGUMENT, "host_states", api->runner_create(model, &config, &runner));
  config = tiny_config();
  config.window_blocks = 1;
  FAILS(MR_INVALID_ARGUMENT, "no layer of the model has a window", api->runner_create(model, &config, &runner));
  config = tiny_config();
  config.host_window_blocks = -1;
  FAILS(MR_INVALID_ARGUMENT, "host_window_blocks", api->runner_create(model, &config, &runner));
  config = tiny_config();
  config.kv_blocks = INT32_MAX;
  FAILS(MR_RESOURCE_EXHAUSTED, "bytes", api->runner_create(model, &config, &runner));
}

/* The same tokens and the same bits of their logprobs, whatever the number of threads. */
static void test_generation(const char *path) {
  double first[6], again[6];
  int32_t threads;
  for (threads = 1; threads <= 3; ++threads) {
    mr_device *device = open_device(path, threads);
    const plain_model desc = tiny_model();
    mr_model *model = NULL;
    mr_runner *runner = NULL;
    const mr_runner_config config = tiny_config();
    OK(create(device, &desc, &model));
    FAILS(MR_FAILED_PRECONDITION, NULL, api->runner_create(model, &config, &runner));
    bind_all(device, model, &desc, 0);
    OK(api->model_seal(model));
    generate(model, again);
    if (threads == 1) {
      memcpy(first, again, sizeof first);
      test_refusals(model);
      test_history_and_host_blocks(model);
      test_late_masks(model);
      test_cost(device, model);
    }
    CHECK(memcmp(first, again, sizeof first) == 0);
    OK(api->model_destroy(model));
    CHECK(info_of(device).bytes_free == info_of(device).bytes_total);
    OK(api->device_close(device));
  }
}

void test_runners(const char *path) { test_generation(path); }
