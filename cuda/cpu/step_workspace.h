// step_workspace: the memory that steps of one runner work in, laid out once.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "model.h"
#include "millrace/engine.h"
#include "route.h"

namespace mr::cpu {

// Activations as products read them: one region for each kind that the model's matrices use, null for the others.
struct Prepared {
  uint8_t* act[activation_kinds] = {};  // by Activation
  uint8_t* of(Activation kind) const { return act[static_cast<int>(kind)]; }
};

struct StepWorkspace {
  // Steps of up to this many tokens prepare activations on every thread for itself, which is cheaper than to meet.
  static constexpr int32_t few_tokens = 4;
  // Distinct rows of logits that are held at once.
  static constexpr int32_t head_rows = 32;
  // Most panels of a GEMM in one task; fewer for many tokens, so that a task's results stay in the cache.
  static constexpr int64_t task_panels(int64_t tokens) { return tokens <= 64 ? 8 : tokens <= 256 ? 4 : 2; }

  // The threads share a tile's chunks if it has at least shared_chunks, and if one of its heads is more than a shared_parts-th
  // of a thread's part of the step's attention.
  static constexpr int32_t shared_chunks = 8, shared_parts = 3;

  // Tokens that one task multiplies by the matrix of a head, and the most numbers of queries of latents that are held at once.
  static constexpr int64_t head_tokens = 64, most_latent_floats = int64_t{1} << 24;

  struct PerThread {
    float* rows;           // few_tokens rows of the widest activation
    Prepared prepared;     // of few_tokens tokens
    float* panel[2];       // results of a task's GEMM: tokens x 16 * task_panels
    float* input_row;      // inputs of all layers of one token; null without them
    float* attention;      // scratch of one attention tile
    Prepared head_rows;    // of head_tokens tokens of one head; null without latents
    // Of layers that carry a state; null without them.
    float* convolved;      // columns of one token
    float* inputs;         // of the convolution, that a chain begins with
    float* decay;          // (T)
    float* beta;           // (T)
    const float** q;       // rows of a tile
    float** out;
    int32_t* visible;
    int32_t* first;
    uint8_t* sampler;
    RouteSpace route;
  };

  // Tokens T = max_batched_tokens; f32 unless stated.
  float* x;          // (T, hidden) residual stream
  float* norm;       // (T, hidden), or wider: of latents of Q
  float* qkv;        // (T, qkv_width): a layer's Q, K and V, one after another, or what a layer that carries a state makes of its input
  float* attention;  // (T, attended width): what attention gives
  float* ffn;        // (T, width): activation(gate) * up
  float* branch;     // (T, hidden): a branch before its end norm, or of experts; null where no layer has one
  float* layer_inputs;  // (T, layers*layer_input_width); null without them
  float* rotations;  // (T, rotation_width): cosines and sines of each rope, one after another
  float* logits;     // (logit_rows, vocab_stride)
  float* chunks;     // (chunk_floats): records of attention's chunks that threads share; null where they never do
  double* frequencies;  // (rotation_width / 4): those of each rope, one after another
  int32_t* history;     // (max_sequences, positions)
  Prepared prepared;    // of T tokens
  std::vector<PerThread> threads;

  // Of layers that carry a state; null without them.
  float* mix_gates;  // (T, heads*value_dim)
  float* betas;      // (T, heads)
  float* alphas;     // (T, heads)
  float* convolved;  // (T, conv_width): queries, keys and values
  std::vector<float*> conv_taps;  // by layer: (conv, conv_width), the columns of a tap one after another; null of attention

  // Of attention over latents; null without it.
  float* query_latents;  // (T, query_latent)
  float* latent_rows;    // (latent_tokens, heads*padded cached_width): queries of latents, and then the sums of latents

  // Of experts; null where no layer has them. A row is one of expert_rows tokens at one of its experts, of which there are R = expert_rows
  // times the most experts used; rows lie by expert.
  float* router_logits;     // (T, experts)
  RoutedExpert* routed;     // (T, used)
  int32_t* expert_end;      // (experts)
  int32_t* row_token;       // (R): the token of a row
  int32_t* row_of;          // (expert_rows, used): the row of each of a token's experts
  Prepared expert_rows_prepared;  // of R rows
  float* expert_ffn;        // (R, width)
  float* expert_out;        // (R, hidden)
  float* shared_weights;    // (T)

  int64_t latent_tokens;  // tokens whose attention over latents is computed at once
  int64_t expert_rows, most_experts;  // tokens whose experts are computed at once
  int64_t qkv_width, rotation_width, logit_rows, vocab_stride, positions, chunk_floats;
  int32_t tile_rows;  // rows of one attention tile, at most
  uint64_t bytes;     // of all of the above

  // Lays out a workspace that begins at base (64-byte aligned); base null only counts bytes.
  StepWorkspace(const Model& model, const mr_runner_config& config, int threads, uint8_t* base);

  // Rows of experts that are computed at once, if a token's do not need more: with many tokens each weight is read for many of them.
  static constexpr int64_t most_expert_rows = 4096;

  // Tokens of history a slot can have: the context, or the whole pool if that is less.
  static int64_t history_positions(const Description& model, const mr_runner_config& config);
};

}  // namespace mr::cpu
