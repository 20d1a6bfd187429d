// step_workspace: the memory that steps of one runner work in, laid out once.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "model.h"
#include "millrace/engine.h"

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
  // Panels of a product in one task, at most; fewer for many tokens, so that what a task gives stays in the cache.
  static constexpr int64_t task_panels(int64_t tokens) { return tokens <= 64 ? 8 : tokens <= 256 ? 4 : 2; }

  // A tile of at least so many chunks whose one head is more than this share of a thread's part of a step's attention has its
  // chunks shared among the threads.
  static constexpr int32_t shared_chunks = 8, shared_parts = 3;

  struct PerThread {
    float* rows;           // few_tokens rows of the widest activation
    Prepared prepared;     // of few_tokens tokens
    float* panel[2];       // what a task's product gives: tokens x 16 * task_panels
    float* attention;      // scratch of one attention tile
    const float** q;       // rows of a tile
    float** out;
    int32_t* visible;
    uint8_t* sampler;
  };

  // Tokens T = max_batched_tokens; f32 unless stated.
  float* x;          // (T, hidden) residual stream
  float* norm;       // (T, hidden)
  float* qkv;        // (T, qkv_width): Q, K, V behind one another
  float* attention;  // (T, heads * head_dim)
  float* ffn;        // (T, ffn): silu(gate) * up
  float* turns;      // (T, rope_floats(rope_dims))
  float* logits;     // (logit_rows, vocab_stride)
  float* chunks;     // (chunk_floats): records of attention's chunks that threads share; null where they never do
  double* frequencies;  // (rope_dims / 2)
  int32_t* history;     // (max_sequences, positions)
  Prepared prepared;    // of T tokens
  std::vector<PerThread> threads;

  int64_t qkv_width, logit_rows, vocab_stride, positions, chunk_floats;
  int32_t tile_rows;  // rows of one attention tile, at most
  uint64_t bytes;     // of all of the above

  // Lays out a workspace that begins at base (64-byte aligned); base null only counts bytes.
  StepWorkspace(const Model& model, const mr_runner_config& config, int threads, uint8_t* base);

  // Tokens of history a slot can have: the context, or the whole pool if that is less.
  static int64_t history_positions(const mr_model_desc& model, const mr_runner_config& config);
};

}  // namespace mr::cpu
