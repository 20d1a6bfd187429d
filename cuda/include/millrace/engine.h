/* millrace/engine.h: the one C ABI of every native Millrace engine, with model.h and vectors.h. C99.
 *
 * Version    mr_engine_api(MR_ABI_MAJOR) returns a table of function pointers, or NULL when the library does not speak that
 *            major version. Within a major version the table and every struct only grow at the end; struct_size, their first member,
 *            says how much of one the other side knows: whole members. Missing ones read as zero. So it is with strides of arrays.
 * Errors     A function that can fail returns mr_error*: NULL is success, anything else belongs to the caller and is
 *            freed by error_destroy. There is no last-error state: callers may change threads between calls.
 * Ownership  An out-pointer to a handle belongs to the caller and is given back to the matching *_close, *_free or
 *            *_destroy, which accept NULL. Every other returned pointer is borrowed from the handle it came from.
 *            Input pointers are read during the call only; what must outlive it is copied.
 * Threads    A runner is used by one thread at a time, runner_progress excepted, which any thread may call. Devices,
 *            buffers and models may be used from several threads while a runner steps. A handle is destroyed after
 *            its dependants (runner, model, buffer, device).
 * Failure    Unless a function says otherwise, a failed call changes nothing. After MR_INTERNAL from step_submit or
 *            step_wait the runner can only be destroyed. No C++ exception and no signal crosses this boundary, and the
 *            engine never calls back into its caller, opens no file and prints nothing.
 * Units      Sizes in bytes, times in nanoseconds, positions and counts in tokens. "bool" members are int32_t 0 or 1.
 *
 * 2.0  models as data: mr_model_desc has ropes and layers. Major version 1, which knew one decoder, ended with 1.7
 * 2.1  hidden rows of a step: mr_runner_config.max_hidden_rows, mr_device_info.hidden_rows
 * 2.2  attention temperature: temperature_scale and temperature_length of a mixer
 * 2.3  inputs of layers: mr_model_desc.layer_input_width and the roles of LAYER_INPUT
 * 2.4  attention to later positions: MR_MIX_BIDIRECTIONAL
 * 2.5  mixtures of experts: MR_MLP_EXPERTS, mr_layer_desc.experts and their roles, the third dim of a tensor
 * 2.6  layers that carry state: MR_MIX_DELTA, MR_MIX_CONV, MR_MIX_OUT_GATE and their roles; saved_states and host_states of a runner,
 *      state_from and state_to of a segment, MR_PRE_STATE_OUT and _IN
 * 2.7  a group of cache blocks for layers with a window: window_blocks and host_window_blocks of a runner, the second block table of a
 *      segment, mr_pre_op.window
 * 2.8  attention over a latent: latent and query_latent of a mixer, the roles of MR_MIX_LATENT
 */
#ifndef MILLRACE_ENGINE_H
#define MILLRACE_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "millrace/model.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MR_ABI_MAJOR 2u
#define MR_ABI_MINOR 8u

typedef struct mr_error mr_error;   /* code, message, native code */
typedef struct mr_device mr_device; /* one CPU or GPU with a ledger of the bytes it holds */
typedef struct mr_buffer mr_buffer; /* bytes in device memory */
typedef struct mr_model mr_model;   /* weights of one model, repacked */
typedef struct mr_runner mr_runner; /* KV cache, slots and workspace of one model; runs steps */
typedef struct mr_vector_api mr_vector_api; /* functions of vector codebooks; see vectors.h */

/* Canonical gRPC codes: the same numbers in C, Go and on the wire. */
enum {
  MR_OK = 0,
  MR_CANCELLED = 1,
  MR_UNKNOWN = 2,
  MR_INVALID_ARGUMENT = 3,
  MR_DEADLINE_EXCEEDED = 4,
  MR_NOT_FOUND = 5,
  MR_ALREADY_EXISTS = 6,
  MR_RESOURCE_EXHAUSTED = 8,
  MR_FAILED_PRECONDITION = 9,
  MR_ABORTED = 10,
  MR_OUT_OF_RANGE = 11,
  MR_UNIMPLEMENTED = 12,
  MR_INTERNAL = 13,
  MR_UNAVAILABLE = 14,
  MR_DATA_LOSS = 15
};

/* ---- device ---------------------------------------------------------------------------------------------------- */

/* What bytes are for: the ledger counts each apart. */
enum { MR_PURPOSE_STAGING = 0, MR_PURPOSE_WEIGHTS = 1, MR_PURPOSE_KV = 2, MR_PURPOSE_WORKSPACE = 3, MR_PURPOSE_COUNT = 4 };

typedef struct mr_device_options {
  size_t struct_size;
  int32_t index;         /* which device, 0 <= index < device_count; of a GPU the driver's own number, whatever else is usable */
  int32_t threads;       /* CPU: worker threads, 0 = as many as the CPU quota and affinity allow; GPU: ignored */
  uint64_t bytes_limit;  /* ceiling of the ledger; 0 = the engine's default (CPU: 80 % of available memory; GPU: what is
                            free less a margin for the driver, which is also the most) */
  uint64_t pool_limit;   /* freed bytes kept for reuse; 0 = default, UINT64_MAX = none kept */
  const char *path;      /* CPU: force an instruction-set path ("amx", "avx512bf16", "avx512vnni", "avx2", "portable"); NULL = best */
  /* Further GPUs, of the same kind and connected to each other, that hold every model together with `index`: NULL and
     0 = none. Limits and sizes are those of all together. Buffers, plain operations and vectors are the first GPU's. */
  const int32_t *others;
  int32_t other_count;
  int32_t reserved0;
} mr_device_options;

typedef struct mr_device_info {
  size_t struct_size;
  char kind[16];         /* "cpu", "cuda" */
  char name[128];        /* "Intel(R) Xeon(R) ...", "NVIDIA H200" */
  char uuid[64];         /* empty when the device has none */
  char path[32];         /* instruction-set path or sm_NN: part of the class id */
  char numerics[64];     /* version of every rule that decides bits: part of the class id */
  int32_t compute_major; /* GPU compute capability, 0 on a CPU */
  int32_t compute_minor;
  int32_t sm_count;      /* SMs, or threads on a CPU (which never change bits) */
  int32_t reserved0;
  uint64_t bytes_total;  /* the ledger's ceiling */
  uint64_t bytes_free;   /* bytes_total - sum(bytes_used) - bytes_pooled where pooled bytes cannot be reused; on a GPU at most
                            what its driver has free and the pool holds, so that what others take is missed here too */
  uint64_t bytes_used[MR_PURPOSE_COUNT]; /* live bytes by purpose; sum <= bytes_total */
  uint64_t bytes_pooled; /* freed and kept for reuse */
  uint64_t pool_hits, pool_misses;
  uint64_t live_buffers; /* buffers not freed yet */
  int32_t temperature_c; /* INT32_MIN = unknown */
  int32_t power_mw;      /* INT32_MIN = unknown */
  uint64_t errors;       /* uncorrected memory errors since the driver was loaded; UINT64_MAX = unknown */
  uint64_t physical_total;   /* bytes of the whole device as its driver counts them, whoever holds them; UINT64_MAX = unknown */
  uint64_t physical_free;    /* of these, free; UINT64_MAX = unknown */
  uint64_t corrected_errors; /* corrected memory errors since the driver was loaded; UINT64_MAX = unknown */
  uint64_t failed_frees;     /* frees that the driver refused since the device was opened */
  char management_problem[128]; /* why readings of the driver's management library are unknown; empty where none should be */
  int32_t one_class;         /* bool: both kernel classes give the same bits, so that what one has computed stands for the other */
  int32_t devices;           /* how many GPUs hold every model together, 1 on a CPU. bytes_total and bytes_free are what
                                the tightest has times their number, all other counts sums, the temperature the highest. Buffers, plain
                                operations and vectors lie on the first. How a model is divided changes no bits */
  int32_t hidden_rows;       /* bool: runners of this device give hidden rows */
  int32_t reserved1;
} mr_device_info;

/* ---- buffer and digest ----------------------------------------------------------------------------------------- */

typedef struct mr_digest { uint8_t bytes[32]; } mr_digest; /* BLAKE3 */

/* ---- plain operations ------------------------------------------------------------------------------------------ */

/* f32, row-major, rows x cols unless stated; `out` may be an input where the operation is elementwise. */
enum {
  MR_OP_MATMUL = 0,   /* out(rows,cols) = b(rows,inner) * a(cols,inner)^T; a is a weight matrix of ggml type a_type, each
                           weight what its type stands for in f32. Products and sums are f32: an element is at most
                           (inner + 8) * 2^-24 * sum |a b| away. A row's bits do not depend on the other rows */
  MR_OP_MATVEC = 1,   /* MATMUL with rows == 1, each of the batch on its own */
  MR_OP_SOFTMAX = 2,  /* each row of a; a row of -inf gives zeros */
  MR_OP_RMS_NORM = 3, /* out = a / sqrt(mean(a^2) + eps) * b(cols) */
  MR_OP_ADD = 4,      /* out = a + b */
  MR_OP_MUL = 5,      /* out = a * b */
  MR_OP_SCALE = 6,    /* out = a * scale */
  MR_OP_SILU = 7,     /* out = a / (1 + exp(-a)) */
  MR_OP_SWIGLU = 8,   /* out = silu(a) * b */
  MR_OP_COPY = 9,     /* out = a */
  MR_OP_ROPE = 10,    /* a(rows, heads*cols): row r at position first_position + r, head dim cols, style rope_style */
  MR_OP_ATTENTION = 11, /* causal: a = Q(rows, heads*cols), b = K(inner, kv_heads*cols), c = V(same); row r sees keys
                           0 .. inner-rows+r; scale on the scores; out(rows, heads*cols) */
  MR_OP_MATMUL_F16 = 12, /* MATMUL as fast as the device can: b, and a, rounded to f16 at most once each (beyond 65504
                           infinite), sums in f32: at most 2^-10 * sum |a b| + 2^-25 * sum (|a| + |b|) further away */
  MR_OP_MATVEC_F16 = 13, /* MATMUL_F16 with rows == 1, each of the batch on its own, by the kernels that decode tokens */
  MR_OP_COUNT = 14
};

typedef struct mr_op_args {
  size_t struct_size;
  int32_t op;            /* MR_OP_* */
  int32_t a_type;        /* ggml type of a; 0 (F32) except for the weights of MATMUL, MATVEC and their F16 forms */
  int64_t rows, cols, inner;
  int32_t batch;         /* >= 1: how many independent problems lie one after another in every operand but the a of products */
  int32_t heads, kv_heads;
  int32_t rope_style;    /* MR_ROPE_* */
  int32_t first_position;
  float eps, scale, rope_base;
  const mr_buffer *a, *b, *c;
  mr_buffer *out;
} mr_op_args;

/* ---- runner and steps ------------------------------------------------------------------------------------------ */

/* What keys and values are kept as. The first three are ggml type ids. F8 is E4M3: each head of each token has an f32 scale
 * beside it, the largest absolute value divided by 448 (1 where all are zero), by which its elements were divided. */
enum { MR_KV_F32 = 0, MR_KV_F16 = 1, MR_KV_BF16 = 30, MR_KV_F8 = 256 };

typedef struct mr_runner_config {
  size_t struct_size;
  int32_t kv_blocks;         /* blocks in the pool, ids 0 .. kv_blocks-1 */
  int32_t block_size;        /* tokens a block: 16 or 32 */
  int32_t max_sequences;     /* slots 0 .. max_sequences-1 */
  int32_t max_batched_tokens;/* tokens a step */
  int32_t max_sample_rows;   /* sample rows a step, >= 1 */
  int32_t max_score_rows;    /* score rows a step, >= 0 */
  int32_t max_top_n;         /* candidates a row, 0 .. 64 */
  int32_t kv_type;           /* MR_KV_* */
  int32_t act_type;          /* what activations are kept as between kernels: MR_KV_F16 or MR_KV_BF16; 0 = the engine's own for
                                the model (CPU: f32; GPU: f16 for F16 matrices, bf16 if a BF16 or F32 matrix shares them, whatever
                                the kv_type). A GPU keeps those of quantised matrices as f16 always. Beside MR_KV_F8 attention
                                computes in bf16 unless this is MR_KV_F16. UNIMPLEMENTED: a pair that the engine has no kernels for */
  int32_t host_blocks;       /* blocks of host memory, ids 0 .. host_blocks-1, for MR_PRE_BLOCK_OUT and _IN; >= 0. Their memory is
                                taken, some blocks at a time, when they are first written */
  int32_t max_hidden_rows;   /* hidden rows a step, >= 0. UNIMPLEMENTED unless 0: the engine does not give them */
  /* States of a model with layers that carry one: f32, over all of these layers. Each slot has its own, besides the saved ones. Both
     members are 0 for other models. */
  int32_t saved_states;      /* saved states 1 .. saved_states; >= 0 */
  int32_t host_states;       /* states of host memory, ids 0 .. host_states-1, for MR_PRE_STATE_OUT and _IN; >= 0. Their memory is
                                taken, some at a time, when they are first written */
  /* The window group: layers whose window, and that of all layers that read their keys, is shorter than the context, unless a layer
     sees later positions. With window_blocks above 0 their keys and values are in a pool of their own, and mr_segment has a second
     table. At 0 all layers are in the first pool. Both members are 0 for models without such layers. */
  int32_t window_blocks;     /* blocks in the pool of the window group, ids 0 .. window_blocks-1; >= 0. UNIMPLEMENTED unless 0: the
                                engine has no such pool */
  int32_t host_window_blocks;/* blocks of it in host memory, as host_blocks */
  int32_t reserved0;
} mr_runner_config;

/* Bytes a runner of this configuration takes, by purpose; nothing is allocated. Of a model that is not sealed yet it is
 * an upper bound, so that what cannot fit is refused before its tensors are read. */
typedef struct mr_runner_cost {
  size_t struct_size;
  uint64_t kv_bytes, workspace_bytes, bytes_per_block;
  uint64_t host_bytes_per_block; /* of host memory, counted nowhere in the device's ledger */
  int32_t prefill_grain;         /* a step whose PREFILL tokens are a multiple of so many leaves the fewest processors idle; 0 = any
                                    number is as good. A hint: it changes no bits */
  int32_t reserved0;
  uint64_t bytes_per_state;      /* 0 without layers that carry state. kv_bytes has max_sequences + saved_states of them */
  uint64_t host_bytes_per_state; /* of host memory */
  /* 0 without window_blocks. kv_bytes has window_blocks + 1 of them: one block holds zeros. bytes_per_block is then without the layers of
     the window group, and 0 if that has all layers. */
  uint64_t bytes_per_window_block;
  uint64_t host_bytes_per_window_block; /* of host memory */
} mr_runner_cost;

enum { MR_CLASS_PREFILL = 0, MR_CLASS_DECODE = 1 };

/* A run of consecutive positions of one slot. Tokens of all segments lie one after another in mr_step.tokens. A block may stand
   in a table several times, and in those of other slots, as long as no step writes a token to it. If a layer of the model is
   MR_MIX_BIDIRECTIONAL, a segment is a whole text: it begins at position 0, and no other segment of the step has its slot. */
typedef struct mr_segment {
  int32_t slot;
  uint32_t slot_generation; /* as given by the slot's last SLOT_SET */
  int32_t kernel_class;     /* MR_CLASS_*: which kernels compute it; prompts PREFILL, generated tokens DECODE */
  int32_t first_position;   /* the slot's length must be at least this; longer history is dropped first (rollback) */
  int32_t count;            /* >= 1 */
  int32_t block_offset;     /* first entry of this segment's block table in mr_step.block_ids */
  int32_t block_count;      /* >= ceil((first_position + count) / block_size) */
  int32_t adapter;          /* 0 */
  uint32_t flags;           /* 0 */
  /* Where the states of the slot are read before the segment and written after it: 0 = the slot's own, else a saved state. A state
     remembers up to which position it has read. That of state_from must be first_position; at position 0 it is not read, and the
     segment begins with zeros. A state that the segments of one slot write in a step is named by no other slot's, and each of them
     reads what the one before it wrote. */
  int32_t state_from, state_to;
  /* The segment's table of the window group; 0 and 0 without window_blocks. Entry i is for the same positions as entry i of the first
     table. Entries of blocks with positions below first_position - w + 1 alone, w the largest window of the group, may be -1: they are
     not read. */
  int32_t window_block_offset, window_block_count;
} mr_segment;

/* Samples one token for a slot from the logits of one computed token. Several rows may name the same token, and several rows
 * the same slot, at different positions: each sees the slot's history below its own position, and the sample of the last of
 * them is the slot's token -1. What such a step computed too much of is dropped by the next segment's first_position. */
typedef struct mr_sample_row {
  int32_t token_index;      /* into mr_step.tokens */
  int32_t slot;             /* whose parameters, seed and history are used */
  uint32_t slot_generation;
  int32_t position;         /* absolute position of the token to be sampled: part of the random counter */
  int32_t mask_offset;      /* first word of the allowed-token bitmask in the step's masks, or -1; ceil(vocab/32) words */
} mr_sample_row;

/* Scores a given next token against the logits of one computed token (prompt logprobs). */
typedef struct mr_score_row {
  int32_t token_index;
  int32_t target;           /* token id whose logprob and rank are wanted */
  int32_t top_n;            /* 0 .. max_top_n */
} mr_score_row;

/* Sampling parameters and identity of a slot. Order of application: mask, allowed tokens, suppressed tokens (while
 * fewer than min_tokens are generated), bias, penalties, then temperature, top-k, typical-p, top-p, min-p, draw. */
typedef struct mr_slot_params {
  size_t struct_size;
  uint64_t seed;
  int32_t output_index;
  int32_t prompt_length;    /* positions below it are the prompt */
  int32_t min_tokens;
  int32_t top_n;            /* candidates reported a sample, 0 .. max_top_n */
  float temperature;        /* 0 = greedy, lowest id wins ties */
  int32_t top_k;            /* 0 = all */
  float top_p, min_p, typical_p; /* 1, 0, 1 = off */
  float repetition_penalty; /* > 0; 1 = off. logit > 0 ? logit / p : logit * p, once per distinct token */
  float presence_penalty, frequency_penalty; /* 0 = off; subtracted once, and times the count */
  int32_t penalty_window;   /* last tokens of the history counted, prompt included; 0 = none, -1 = all */
  int32_t bias_count, allowed_count, suppressed_count;
  const int32_t *bias_ids; const float *bias_values; /* added to the logit; -inf forbids */
  const int32_t *allowed_ids;    /* allowed_count -1 = every token; 0 is refused */
  const int32_t *suppressed_ids; /* forbidden while fewer than min_tokens are generated (end tokens) */
} mr_slot_params;

/* Ordered operations done before the step's segments, after the step before. */
enum {
  MR_PRE_SLOT_SET = 0,   /* gives a slot parameters and a history */
  MR_PRE_BLOCK_COPY = 1, /* src_block to dst_block, both on the device */
  MR_PRE_BLOCK_OUT = 2,  /* src_block on the device to dst_block in host memory. RESOURCE_EXHAUSTED from step_submit: the host
                            has no memory for it, and nothing has changed */
  MR_PRE_BLOCK_IN = 3,   /* src_block in host memory, written by an OUT before, to dst_block on the device */
  MR_PRE_STATE_OUT = 4,  /* state src_block, 0 = that of `slot`, which a step has written, to state dst_block of host memory.
                            RESOURCE_EXHAUSTED as for BLOCK_OUT */
  MR_PRE_STATE_IN = 5    /* state src_block of host memory, written by an OUT before, to state dst_block, 0 = that of `slot` */
};
typedef struct mr_pre_op {
  size_t struct_size;
  int32_t kind;
  int32_t slot; uint32_t slot_generation; const mr_slot_params *params; /* SLOT_SET */
  int32_t src_block, dst_block;                                         /* BLOCK_*; STATE_*, which also have a slot: states */
  /* SLOT_SET: ids of positions 0 .. history_count-1, 0..vocab-1 each; the slot's length becomes history_count, so that
   * its first segment may begin there. Their keys and values are in the blocks that the segment's table names, where an earlier
   * step (of any slot), a BLOCK_COPY or a BLOCK_IN has put them: that is the caller's word. So are the ids that a state has read.
   * SLOT_SET leaves the slot's own state as it is. */
  int32_t history_count;
  const int32_t *history;
  int32_t window;   /* bool, BLOCK_*: the blocks are those of the window group */
  int32_t reserved0;
} mr_pre_op;

/* Flags of a step. */
enum {
  MR_STEP_LATE_MASKS = 1u /* the masks come by step_masks; all but the sampling is done meanwhile */
};

typedef struct mr_step {
  size_t struct_size;
  size_t segment_stride, sample_stride, score_stride, pre_op_stride; /* sizeof the caller's element types */
  const mr_segment *segments; int32_t segment_count;
  int32_t token_count;          /* == sum of segment counts, <= max_batched_tokens */
  const int32_t *tokens;        /* ids; -1 = what the same slot and generation sampled in the step before, allowed only
                                   as the single token of a DECODE segment; anything else outside 0..vocab-1 is refused */
  const int32_t *block_ids; int32_t block_id_count;
  int32_t sample_count;
  const mr_sample_row *samples;
  const mr_score_row *scores; int32_t score_count;
  int32_t pre_op_count;
  const mr_pre_op *pre_ops;
  const uint32_t *masks; int64_t mask_words; /* with MR_STEP_LATE_MASKS: NULL, and how many words step_masks will give */
  uint32_t flags;               /* MR_STEP_* */
  uint32_t reserved0;
  /* Indexes into tokens, in any order: of each, the hidden state behind the last layer and the output norm is wanted, which the
   * head would multiply. A row's bits depend on the slot's tokens up to its own alone, or on those of its segment if a layer sees
   * later positions, as those of its logits do. */
  const int32_t *hidden_rows; int32_t hidden_count;
  int32_t reserved1;
} mr_step;

enum { MR_ROW_OK = 0, MR_ROW_NAN = 1 /* logits held NaN */, MR_ROW_EMPTY = 2 /* no token left to choose from */ };

typedef struct mr_candidate { int32_t token; float logprob; } mr_candidate; /* best first; ties by lowest id */

/* Logprobs are the log-softmax of the raw logits, before any sampling parameter. Rank 1 is the best token. */
typedef struct mr_row_result {
  int32_t slot;         /* of a sample row; -1 for a score row */
  int32_t position;     /* of the sampled or scored token; -1 for a score row */
  int32_t status;       /* MR_ROW_* */
  int32_t count;        /* tokens in this result: 1 when status is OK, else 0 */
  int32_t token;
  float logprob;
  int32_t rank;
  int32_t candidate_offset, candidate_count; /* into mr_step_result.candidates */
} mr_row_result;

/* The caller gives room; the engine fills it. Rows come in the order of the step's sample and score rows. */
typedef struct mr_step_result {
  size_t struct_size;
  size_t row_stride;                           /* sizeof the caller's mr_row_result */
  mr_row_result *samples; int32_t sample_capacity; int32_t sample_count;
  mr_row_result *scores; int32_t score_capacity; int32_t score_count;
  mr_candidate *candidates; int32_t candidate_capacity; int32_t candidate_count;
  uint64_t device_ns;                          /* time the device worked on the step */
  uint64_t bytes_read;                         /* bytes of weights, KV blocks and states the step had to read */
  float *hidden; int64_t hidden_capacity;      /* in floats: mr_model_desc.hidden for each hidden row of the step */
  int32_t hidden_count;                        /* rows given, in the step's order */
  int32_t reserved0;
} mr_step_result;

/* Readable while a step runs, or hangs. */
typedef struct mr_progress {
  size_t struct_size;
  uint64_t submitted, completed;  /* steps; completed <= submitted <= completed + 2 */
  uint64_t running_ns;            /* age of the step now on the device; 0 = none */
} mr_progress;

/* Faults a test may ask for; they change nothing until asked. */
enum {
  MR_FAULT_FLIP_BIT = 0,   /* model: flips bit `value` (from the start of the resident bytes) of tensor `index` */
  MR_FAULT_HANG_STEP = 1,  /* runner: the next step lasts `value` ns longer */
  MR_FAULT_NAN_LOGITS = 2, /* runner: the logits of sample row `index` of the next step are NaN */
  MR_FAULT_REFUSE_ALLOC = 3, /* device: after `index` more allocations, `value` are refused as by a system without memory */
  MR_FAULT_REFUSE_FREE = 4   /* device: after `index` more blocks given back to the system, it refuses `value` of them, and
                                while the next one would be refused no block is kept for reuse in its stead */
};

typedef struct mr_api {
  size_t struct_size;
  uint32_t abi_major, abi_minor;
  const char *build;      /* what built this engine: name, compiler, source digest; static */

  /* Errors. */
  int32_t (*error_code)(const mr_error *);
  const char *(*error_message)(const mr_error *);
  int64_t (*error_native)(const mr_error *); /* cudaError_t, errno, or 0 */
  void (*error_destroy)(mr_error *);

  /* Devices. A device's close fails FAILED_PRECONDITION while buffers, models or runners live. device_count counts those
   * that the driver shows; one of them that this engine has no code for fails to open with UNIMPLEMENTED, by name. */
  mr_error *(*device_count)(int32_t *count);
  mr_error *(*device_open)(const mr_device_options *, mr_device **out);
  mr_error *(*device_info)(const mr_device *, mr_device_info *out);
  mr_error *(*device_close)(mr_device *);

  /* Buffers: bounds and lifetime are checked; a freed handle is an error, never undefined. RESOURCE_EXHAUSTED gives
   * bytes asked and free. New bytes are zero. buffer_free fails INTERNAL when the system refuses the bytes: the buffer
   * lives on, is counted as before, and may be freed again. A free beside other calls on the buffer succeeds at once, and
   * the last of those calls gives the bytes back. buffer_copy between two devices is INVALID_ARGUMENT.
   *
   * Bytes that have no owner to fail to (of such a last call, of a bound buffer, of a model or a runner destroyed) and that
   * the system refuses are never lost from sight: they stay counted under their purpose and in failed_frees, and are
   * offered again with the next allocation that lacks memory and when the device is closed. */
  mr_error *(*buffer_alloc)(mr_device *, uint64_t size, int32_t purpose, mr_buffer **out);
  mr_error *(*buffer_write)(mr_buffer *, uint64_t offset, const void *src, uint64_t size);
  mr_error *(*buffer_read)(const mr_buffer *, uint64_t offset, void *dst, uint64_t size);
  mr_error *(*buffer_copy)(mr_buffer *dst, uint64_t dst_offset, const mr_buffer *src, uint64_t src_offset, uint64_t size);
  mr_error *(*buffer_fill)(mr_buffer *, uint64_t offset, uint8_t value, uint64_t size);
  mr_error *(*buffer_digest)(const mr_buffer *, uint64_t offset, uint64_t size, mr_digest *out);
  mr_error *(*buffer_free)(mr_buffer *);

  /* Plain operations, done when the call returns; device_ns (may be NULL) is the time they took. */
  mr_error *(*op_run)(mr_device *, const mr_op_args *, uint64_t *device_ns);

  /* Models. bind consumes the buffer, also when it fails, repacks it and gives the tensor the next index (0, 1, ...).
   * seal checks that every role is bound, after which runners may be made. digest computes BLAKE3 of the tensor's file
   * bytes from the resident bytes, at any time, beside running steps. destroy of a model without runners always gives the
   * handle up, whatever the system says to its bytes. */
  mr_error *(*model_create)(mr_device *, const mr_model_desc *, mr_model **out);
  mr_error *(*model_resident_size)(const mr_device *, const mr_tensor_desc *, uint64_t *bytes); /* after repacking */
  mr_error *(*model_bind)(mr_model *, const mr_tensor_desc *, mr_buffer *);
  mr_error *(*model_seal)(mr_model *);
  mr_error *(*model_digest)(const mr_model *, int32_t tensor_index, mr_digest *out);
  mr_error *(*model_fault)(mr_model *, int32_t fault, int32_t index, uint64_t value);
  mr_error *(*model_destroy)(mr_model *);

  /* Runners. step_submit copies its arguments and returns at once; at most two steps are in flight; step_wait returns
   * the oldest (DEADLINE_EXCEEDED: not done within timeout_ns, wait again; FAILED_PRECONDITION: none in flight). A step
   * refused by step_submit leaves every slot as it was; ABORTED is such a refusal by the driver, which did not take the
   * step: it may be submitted again. destroy always gives the handle up, as a model's does. */
  mr_error *(*runner_cost)(const mr_model *, const mr_runner_config *, mr_runner_cost *out);
  mr_error *(*runner_create)(mr_model *, const mr_runner_config *, mr_runner **out);
  mr_error *(*step_submit)(mr_runner *, const mr_step *);
  mr_error *(*step_wait)(mr_runner *, uint64_t timeout_ns, mr_step_result *);
  mr_error *(*runner_progress)(const mr_runner *, mr_progress *out);
  mr_error *(*runner_fault)(mr_runner *, int32_t fault, int32_t index, uint64_t value);
  mr_error *(*runner_destroy)(mr_runner *);

  /* Roofs of this machine for benchmarks: sustained rates by all of the device's threads. */
  mr_error *(*device_measure)(mr_device *, int32_t what, uint64_t duration_ns, double *rate);

  /* Host memory that buffer_write and buffer_read copy at the full rate of the device's link, without a copy of their own; `size` bytes of
   * any content, which belong to the caller until host_free or device_close. The device keeps some of what is given back,
   * for the next who asks for as much. INVALID_ARGUMENT: size 0, or memory that is not the caller's.
   * RESOURCE_EXHAUSTED: the machine has no more of it. UNIMPLEMENTED: any memory is as good. host_free fails, and leaves
   * the memory the caller's, with FAILED_PRECONDITION while a copy still uses it, and with INTERNAL when the driver
   * refuses it. */
  mr_error *(*host_alloc)(mr_device *, uint64_t size, void **out);
  mr_error *(*host_free)(mr_device *, void *);

  /* A fault of the device's memory: MR_FAULT_REFUSE_*. A later one of the same kind replaces it; value 0 ends it. */
  mr_error *(*device_fault)(mr_device *, int32_t fault, int32_t index, uint64_t value);

  /* The masks of the step submitted last, which has MR_STEP_LATE_MASKS: as many words as it said, copied before the
   * call returns. Until then step_wait answers DEADLINE_EXCEEDED for that step, and step_submit FAILED_PRECONDITION: a step
   * behind it needs its samples. However late they come, the samples are the same. FAILED_PRECONDITION: no step waits for
   * masks. INVALID_ARGUMENT: another number of words; the step still waits. */
  mr_error *(*step_masks)(mr_runner *, const uint32_t *masks, int64_t mask_words);

  const mr_vector_api *vectors;  /* NULL: this engine has no vector codebooks */
} mr_api;

/* What device_measure measures, in units a second. */
enum {
  MR_MEASURE_READ_BYTES = 0, /* streaming read of a buffer far above the last-level cache, where half of what is free allows it */
  MR_MEASURE_INT8_OPS = 1,   /* multiply-adds count two; the widest int8 dot product of the path, from registers */
  MR_MEASURE_F32_OPS = 2,    /* fused multiply-adds count two */
  MR_MEASURE_BF16_OPS = 3    /* what the path's bf16 product runs on: bf16 dot products, or f32 FMA where it has none */
};

/* The only exported symbol. NULL: this library does not speak abi_major; *supported (may be NULL) says what it does. */
const mr_api *mr_engine_api(uint32_t abi_major, uint32_t *supported);

#ifdef __cplusplus
}
#endif
#endif
