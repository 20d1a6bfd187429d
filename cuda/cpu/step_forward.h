// step_forward: runs accepted steps: token ids through the layers into logits, and from there to results.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kv.h"
#include "ledger.h"
#include "model.h"
#include "runner_config.h"
#include "sampler.h"
#include "slot.h"
#include "step_cut.h"
#include "step_plan.h"
#include "step_workspace.h"
#include "vecops.h"

namespace mr::cpu {

// Used by the runner's own thread only. Nothing is allocated by run.
class StepForward {
 public:
  // Throws RESOURCE_EXHAUSTED when the ledger does not allow the cache or the workspace.
  StepForward(std::shared_ptr<const Model> model, const mr_runner_config& config);

  // Fills the plan's results. Slots change as the step says. Once, when all is computed that needs no mask, `masks` is called: it
  // returns true when the plan's masks are there, or false to abandon the step, whose results are unspecified then.
  void run(StepPlan& plan, const std::function<bool()>& masks);

 private:
  struct Tile {      // consecutive tokens of one segment whose rows are attended together
    int32_t segment;
    int32_t token;   // into the step
    int32_t count;
    int32_t end;     // of its segment's positions
  };
  enum class Part { query, key, value };
  struct Chain {            // the segments of one slot in the step, each of which goes on where the one before it ended
    int32_t first_segment;  // into chained_
    int32_t segments;
    int32_t first_token;    // into chained_tokens_
    int32_t from;           // the state that it begins with; -1 = zeros
  };
  struct ChainedToken {
    int32_t token, chain;
  };
  // The states of all slots, and the saved ones. A fresh state holds anything: it is written before it is read.
  struct States {
    States(Ledger& ledger, const Description& model, const mr_runner_config& config);  // throws RESOURCE_EXHAUSTED
    float* of(int32_t state, int32_t layer) const { return memory.as<float>() + state * floats + at[static_cast<size_t>(layer)]; }

    const int64_t floats;     // of a state; 0 = no layer carries one
    const Memory memory;
    std::vector<int64_t> at;  // by layer: where its numbers begin in a state
  };
  struct LogitRow {  // one sample row (index >= 0) or score row (~index)
    int32_t token;
    int32_t index;
  };
  struct alignas(64) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  template <class Prologue, class Body>
  void phase(int64_t tasks, Prologue prologue, Body body);
  bool few() const { return tokens_ <= StepWorkspace::few_tokens; }
  int64_t task_panels(int64_t total_panels) const;

  void begin(StepPlan& plan);
  void embed(const StepPlan& plan);
  void cut_tiles(const StepPlan& plan, const mr_mixer_desc& m, int64_t first, int64_t last);
  void share_long_tiles(const mr_mixer_desc& m);
  int32_t first_key(int32_t token, const mr_mixer_desc& m) const;
  int32_t end_key(const Tile& tile, int32_t token, const mr_mixer_desc& m) const;
  int32_t end_of(const Tile& tile, const mr_mixer_desc& m) const;
  int32_t chunks_of(const Tile& tile, const mr_mixer_desc& m) const;
  void layer(const StepPlan& plan, int32_t index);
  void layer_inputs(const StepPlan& plan);
  void add_layer_input(int32_t index, const Cut& gate, const Cut& then);
  Cut mix_cut(int32_t index) const;
  Cut cut(const Matrix* m) const;
  Cut head_cut() const;
  template <class Now, class Then>
  const uint8_t* weights_after(const Now& cut, int64_t task, int thread, const Then& then) const;
  // Prepares x (or its norms with `weight`) of all tokens for products with the cut's matrices, then runs body over tasks.
  template <class Body>
  void with_prepared(const float* x, int64_t width, const float* weight, const Cut& cut, int64_t tasks, Body body);
  void prepare(const float* x, int64_t width, const Cut& cut, int64_t t0, int64_t t1, const Prepared& into) const;
  void mix(const StepPlan& plan, int32_t index, const Cut& o);
  void gate_outputs(const mr_mixer_desc& m);
  void latent_attention(const StepPlan& plan, int32_t index, const Cut& o);
  void store_latents(int32_t index);
  const float* rotations_of(const mr_mixer_desc& m, int64_t token) const;
  template <class Body>
  void each_head(const mr_mixer_desc& m, int64_t first, int64_t last, Body body);
  void head_product(const Matrix* stack, int32_t head, const float* x, int64_t ldx, int64_t tokens, float* y, int64_t ldy,
                    int thread) const;
  void absorb(int32_t index, int64_t first, int64_t last);
  void give_values(int32_t index, int64_t first, int64_t last);
  void chain_segments(const StepPlan& plan);
  void copy_state(const StepPlan::PreOp& op) const;
  void lay_out_taps();
  const float* before(const Chain& chain, int32_t index) const;
  void inputs_of(const Chain& chain, int32_t conv, int64_t width, int32_t n, const float* rows, const float* before,
                 const float** out) const;
  template <class Body>
  void convolve(int32_t index, const float* rows, Body body);
  void keep_inputs(const StepPlan& plan, int32_t index, const Chain& chain, const float* rows, int thread);
  void mix_products(int32_t index, const Cut& cut, float* const* outputs, const int64_t* widths, const Cut& then);
  void short_convolution(const StepPlan& plan, int32_t index, const Cut& out);
  void gated_delta(const StepPlan& plan, int32_t index, const Cut& out);
  void delta_head(const StepPlan& plan, int32_t index, const Chain& chain, int32_t head, int thread);
  void norm_rows(int32_t index);
  void finish_head(const StepPlan& plan, int32_t index, Part part, int32_t head);
  const int32_t* block_table(const StepPlan& plan, const mr_segment& segment, int32_t index) const;
  AttentionArgs attention_of(const StepPlan& plan, const Tile& tile, int32_t part, int32_t index, int thread);
  void attend(const StepPlan& plan, int32_t index, int64_t first, int64_t last);
  void attend_in_chunks(const StepPlan& plan, const Tile& tile, int32_t index);
  // `then` is the product after this one.
  void project(const float* x, int64_t width, const Cut& cut, const float* bias, const float* end_norm, const Cut& then);
  void gated_product(const float* x, const float* norm, const Matrix& gate, const Matrix& up, int32_t activation, const Cut& cut,
                     const Cut& then);
  void finish_branch(const float* end_norm);
  auto gated_by(int32_t activation) const {
    return activation == MR_ACT_GELU_TANH ? ops_.geglu : activation == MR_ACT_CLAMPED ? ops_.clamped_glu : ops_.swiglu;
  }
  void mixture(int32_t index, const Cut& then);
  void route_rows(int32_t index, const float* h);
  void gather_rows(const mr_experts_desc& e, int64_t first, int64_t last);
  void mix_experts(int32_t index, const float* h, int64_t first, int64_t last, const Cut& then);
  void add_shared_expert(int32_t index, const float* h, const Cut& then);
  template <class Body>
  void each_token(Body body);
  void pre_op(StepPlan::PreOp& op);
  void hidden_rows(StepPlan& plan);
  void heads(StepPlan& plan, const std::function<bool()>& masks);
  void row(StepPlan& plan, const LogitRow& r, const float* logits, int thread);
  void read_bytes(StepPlan& plan) const;

  const std::shared_ptr<const Model> model_;
  const mr_runner_config config_;
  const Description& desc_;
  const Isa isa_;
  const VecOps& ops_;
  Threads& threads_;
  KvCache kv_;
  States states_;
  Memory memory_;
  StepWorkspace space_;
  std::vector<Slot> slots_;
  std::vector<SamplerSpace> samplers_;  // by thread
  const std::unique_ptr<Range[]> ranges_;  // of the phase's tasks, by thread

  // The step in progress.
  int64_t tokens_ = 0;
  std::vector<int32_t> token_status_;   // by token: the status its rows must give (MR_ROW_OK: none)
  std::vector<int32_t> positions_;    // by token
  std::vector<int32_t> token_block_;  // by token: its KV block
  std::vector<int64_t> rope_at_;  // of a token's rotations, where those of each rope begin
  std::vector<Tile> tiles_;       // for attention, longest history first
  const mr_mixer_desc* tiled_ = nullptr;  // the mixer that the tiles are cut for, and
  int64_t tiled_first_ = 0, tiled_last_ = 0;  // the tokens
  std::vector<Tile> long_tiles_;  // those of tiles_ whose chunks the threads share: they are in this list alone
  std::vector<LogitRow> rows_;    // by token
  std::vector<ActiveExpert> active_;  // by ascending expert
  std::vector<uint8_t> expert_read_;  // by expert: 1 if the layer has read it in this step
  // Empty without layers that carry a state.
  std::vector<Chain> chains_;
  std::vector<int32_t> chained_;               // segments, chain by chain
  std::vector<ChainedToken> chained_tokens_;   // chain by chain
  std::vector<int32_t> segment_token_;         // by segment: its first token
  uint64_t expert_bytes_ = 0;     // of the experts that the step read, each once a layer
};

}  // namespace mr::cpu
