// workspace: the device memory that steps of one runner work in, laid out once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/block_copy.h"
#include "kernels/experts/plan.h"
#include "kernels/kv.h"
#include "kernels/rows.h"
#include "kernels/sampler/state.h"
#include "kernels/types.h"
#include "millrace/engine.h"
#include "src/kinds.h"
#include "src/model.h"

namespace mr::cuda {

constexpr int32_t kLogitRows = 256;      // rows of logits held at once, at most
constexpr int32_t kGateRows = 512;       // most rows of separate gate and up GEMMs, or of layer inputs, held at once
constexpr int32_t kExpertPairs = 32768;  // pairs of a row and an expert computed at once, unless one row has more
constexpr int32_t kHeadPairs = 16384;    // pairs of a row and a head multiplied at once by matrices of heads, unless one row has more
constexpr int32_t kBiasCapacity = 1024;  // logit biases a slot may have
constexpr int64_t kRowAlign = 64;        // elements: activation rows are padded with zeros to whole units of weights
constexpr int64_t kStateUnit = 4;        // numbers: 16 bytes, which kernels load and copies move at once

// Where the cache of a layer begins in the pool, in bytes: of a layer that reads another layer's cache, where that begins.
struct LayerCache {
  uint64_t keys, values;
};

// Elements of a row of activations.
inline int64_t row_stride(int64_t width) { return (width + kRowAlign - 1) / kRowAlign * kRowAlign; }

// Numbers of a row of queries and keys.
inline int64_t heads_width(const mr_mixer_desc& m) { return query_width(m) + (m.kv_layer != 0 ? 0 : key_width(m)); }

// Sizes that follow from a model and a configuration; of one rank, and the same on each.
struct Sizes {
  Kinds kinds;                            // of the rank's heads
  std::vector<KvLayout> layouts;          // by kind
  // The pool: group after group, in each the keys and the values of one layer after another, in each all blocks. Those of the window
  // group (engine.h) follow the others; the last block of each of their planes holds zeros.
  std::vector<BlockGroup> cache_groups, window_groups;
  std::vector<bool> windowed;             // by layer: whether its blocks are those of the window group
  std::vector<LayerCache> caches;         // by layer; zeros of one that carries a state
  // A state has the numbers of one layer after those of another, each layer's padded to whole units of kStateUnit. f32.
  std::vector<int64_t> state_at;          // by layer: where its numbers begin
  int64_t state_floats;                   // of a state, padding included; 0 = no layer carries one
  // Activations between GEMMs have all of a row; those between q, k and v and attention have the rank's heads. The widest
  // layer's, where layers differ.
  int64_t hidden_stride, q_stride, qkv_stride, gate_stride, inputs_stride, vocab_stride;  // elements
  int64_t heads_stride;   // of several ranks with norms over all heads; else 0
  int64_t convolved_stride, mix_gate_stride, scalar_stride;  // of gated delta nets; 0 without them
  // Of attention over a latent, 0 without it: elements of a row's heads before and after its matrices of heads, in act, and f32 numbers of
  // the products of a head.
  int64_t plain_stride, summed_stride, product_stride;
  int32_t tokens;         // rows of one step, at most
  int32_t decode_rows;    // rows that decode attention takes at once, at most
  int32_t decode_parts;   // such pieces in one step, at most
  int32_t decode_units;   // of decode attention's workspace
  int32_t prefill_places; // of prefill attention's
  std::vector<int32_t> wide_blocks;  // by kind: KV blocks that its prompts widen ahead at once, at most (attention.h)
  int32_t logit_rows;     // at once
  int32_t positions;      // history kept for a slot: the context, or the whole pool if that is less
  int32_t rows_wanted;    // sample and score rows of one step, at most
  int32_t hidden_rows;    // of one step, at most
  int32_t hidden;         // numbers of a hidden row
  int64_t candidates;     // of one step, at most
  uint64_t input_bytes;   // of what one step uploads, at most
  uint64_t kv_block_bytes, window_block_bytes;  // over all layers of a group; 0 without a window group
  uint64_t record_bytes;    // of the slot records that travel at once, at most
  uint64_t mask_bytes;      // of the masks of one step, at most

  // Throws INVALID_ARGUMENT or UNIMPLEMENTED naming what this engine does not run. Some sizes depend on the current device.
  Sizes(const Description& model, const mr_runner_config& config, int32_t ranks = 1);

  uint64_t state_bytes() const { return static_cast<uint64_t>(state_floats) * sizeof(float); }
  // Rows of a mixture that are computed at once.
  int32_t expert_rows(const mr_experts_desc& experts) const { return std::min(tokens, std::max(1, kExpertPairs / experts.used)); }
  // Rows whose heads are multiplied at once by matrices of heads.
  int32_t head_rows(int32_t heads) const { return std::min(tokens, std::max(1, kHeadPairs / heads)); }
  const KvLayout& layout(int32_t layer) const { return layouts[static_cast<size_t>(kinds.of_layer[static_cast<size_t>(layer)])]; }

 private:
  void lay_out_cache(const Description& part, const mr_runner_config& config);
  // The layers of one group, from byte `begin` of the pool on. Returns the bytes of a block.
  uint64_t lay_out_group(const Description& part, const mr_runner_config& config, bool window, uint64_t begin);
  void lay_out_state(const Description& part);
};

// Rows of activations. Behind a row's width there are zeros up to a whole unit of weights, so layers of different widths
// have different rows.
struct ActRows {
  void* base;
  int64_t stride;  // elements
};

// Row `row` of activations whose rows are `stride` elements apart.
inline void* act_row(void* base, int64_t row, int64_t stride) {
  return static_cast<uint8_t*>(base) + row * stride * static_cast<int64_t>(kActBytes);
}

// Column `column` of activations.
inline void* act_column(void* base, int64_t column) { return act_row(base, column, 1); }

// Where mixtures of experts compute their rows, at most `rows` at a time; null without mixtures. Pairs are of a row and one
// of its experts. As large as any layer needs.
struct ExpertSpace {
  float* logits;     // (rows, experts)
  int32_t* ids;      // (pairs)
  float* weights;    // (pairs)
  ExpertPlan plan;
  void* ffn;         // (pairs, width) act
  int64_t out_count; // numbers in out
  float* out;        // (pairs, hidden_stride), before that gate and up of (pairs, width) each if their types differ
  std::vector<ActRows> shared_ffn;  // by layer: (rows, stride) act
  float* shared;     // (rows, hidden_stride)
  float* shared_weight;  // (1) of a single row
  float* sums;       // (2 * rows, hidden_stride) of several ranks where a branch reads whole rows of sums (kinds.h), else null: over the
                     // rows' experts, and after these rows, of the shared expert
  uint64_t* bytes;   // (1) of the experts that the step has read
  int32_t* read;     // (experts): ExpertBytes::read
};

// Memory of gated delta nets; null without them. The products of MIX_IN are in qkv. f32.
struct StateSpace {
  float* convolved;          // (T, convolved_stride): queries, keys, values, over which the recurrence writes its results
  float* gates;              // (T, mix_gate_stride): products of MIX_GATE
  float *alpha, *beta;       // (T, scalar_stride) each
  std::vector<float*> taps;  // by layer: (conv, width), the columns of a tap one after another; null of attention
};

// Elements from head to head of the queries' parts that are not rotated: whole pieces of 16 bytes.
inline int64_t plain_dims(const Description& d, const mr_mixer_desc& m) { return (m.key_dim - rotated_dims(d, m) + 7) / 8 * 8; }

// Where a row of space().qkv has the products of attention over a latent: Q, the latent of queries, the latent and its key. Each begins at
// a multiple of 16 bytes.
struct LatentRow {
  int64_t query_latent, cached, width;
  LatentRow(const Description& d, const mr_mixer_desc& m)
      : query_latent((query_width(m) + 3) / 4 * 4), cached(query_latent + (m.query_latent + 3) / 4 * 4),
        width(cached + cached_width(d, m)) {}
};

// The plans by which matrices of heads are multiplied, for the rows of each class: [0] of head_rows(heads) rows, [1] of the rest.
struct HeadPlans {
  ExpertPlan of[2][2];  // by GemmClass
};

// Memory of attention over a latent; null without it.
struct LatentSpace {
  std::vector<ActRows> queries;  // by layer: (T, stride) act: the normed latent of queries; null without one
  void* plain;                   // (T, plain_stride) act: by head, the part of the queries that is not rotated
  void* summed;                  // (T, summed_stride) act: by head, the weighted sum of latents
  float* products;               // (pairs, product_stride) of a matrix of heads
  std::vector<HeadPlans> plans;  // by kind of attention; null of other kinds
};

// f32 unless stated; T = tokens, L = logit_rows.
struct Workspace {
  float* x;        // (T, hidden_stride) residual stream
  void* norm;      // (T, hidden_stride) act (activations.h); of the head: (L, hidden_stride)
  float* qkv;      // (T, qkv_stride): Q, K, V one after another, a LatentRow, or MIX_IN's product
  float* heads;    // (T, heads_stride): heads_width() numbers of one rank after another
  void* q;         // (T, q_stride) of the cache's act: heads of padded_dim
  std::vector<ActRows> attention;  // by layer: (T, stride) act: heads of head_dim, or what MIX_OUT multiplies
  std::vector<ActRows> ffn;        // by layer: (T, stride) act; null of mixtures
  float* branch;   // (T, hidden_stride) where branches end with more than a sum; null elsewhere
  // Of layer inputs, null without them.
  float* layer_inputs;   // (T, inputs_stride)
  float* input_rows;     // (min(T, kGateRows), inputs_stride): rows of their embedding
  ActRows input_ffn;     // (T, stride) act: layer_input_width
  ExpertSpace experts;
  StateSpace states;
  LatentSpace latents;
  void* input_sums;     // of a GEMM of T or L rows (input_sums.h)
  uint32_t* semaphores; // (kGemmSemaphores) zeros between GEMMs (gemm.h)
  float *gate, *up;  // (min(T, kGateRows), gate_stride) each
  std::vector<float*> rope_tables;    // by rotation: (T, dims)
  int32_t* token;  // (T) resolved ids
  int32_t* nan_flags; // (T)
  float* logits;   // (L, vocab_stride)
  std::vector<double*> frequencies;   // by rotation: (dims / 2)
  int32_t* plan_first;  // (kinds, decode_parts, decode_rows + 1)
  int32_t* plan_span;   // (kinds, decode_parts)
  std::vector<void*> decode;          // by kind: decode attention's own
  void* prefill;   // prefill attention's own
  void* wide;      // widened KV blocks of the layer that prompts attend in; null if no kind has any
  void* sampler;   // the sampler's own
  SlotTables slots;
  mr_row_result* results;   // (rows_wanted)
  mr_candidate* candidates; // (candidates)
  float* hidden;            // (hidden_rows, hidden): of the first rank alone
  uint8_t* input;           // (input_bytes) the input that a step uploads
  uint32_t* masks;          // (mask_bytes) and its masks: at one place, which captured graphs know
  // Of several ranks (gather.h):
  uint64_t* step;           // (1)
  uint64_t* arrived;        // (kMostRanks, kGatherBlocks)
  uint8_t* packets;         // gather_packet_bytes(ranks)
  uint64_t bytes;           // of all of the above

  // Lays out a workspace that begins at base (256-byte aligned); base null only counts bytes.
  Workspace(const Model& model, const mr_runner_config& config, const Sizes& sizes, uint8_t* base);
};

}  // namespace mr::cuda
