// rank: one of the GPUs that hold a model together, and the kernels of a step on it: token ids through the layers into logits, and from
// there to results. A model on one GPU has one rank.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "kernels/experts/combine.h"
#include "kernels/experts/experts.h"
#include "kernels/launch.h"
#include "kernels/norm.h"
#include "kernels/gemm/gemm.h"
#include "kernels/states/states.h"
#include "millrace/engine.h"
#include "src/activations.h"
#include "src/kinds.h"
#include "src/model.h"
#include "src/step_input.h"
#include "src/workspace.h"

namespace mr::cuda {

// Allocates its memory once; queueing allocates nothing and waits for nothing. The caller has made the GPU the thread's own. What is
// queued depends on the shape alone.
//
// A step is queued stage by stage, as the functions below follow one another. A stage that is said to write a part gives its rank's
// columns of every row; before the next stage the rows are made whole (forward.h). The others are computed alike on every rank.
class Rank {
 public:
  // Throws RESOURCE_EXHAUSTED when the ledger does not allow the cache or the workspace.
  Rank(std::shared_ptr<const Model> model, int32_t rank, const mr_runner_config& config, const Sizes& sizes);

  const Workspace& space() const { return space_; }
  int32_t index() const { return shard_.rank(); }
  const Shard& shard() const { return shard_; }
  Device& device() const { return shard_.device(); }
  uint8_t* cache() const { return kv_.data(); }
  uint8_t* states() const { return states_.data(); }  // null if no layer carries one

  // Pre-operation, before everything that follows on the stream.
  void set_slots(const StepShape& shape, cudaStream_t stream);

  void begin(const StepShape& shape, const Stream& on);
  // If heads_apart(), a part of space().heads, which mix_tokens() reads.
  void multiply_heads(const StepShape& shape, int32_t layer, const Stream& on);
  void mix_tokens(const StepShape& shape, int32_t layer, const Stream& on);    // a part of space().attention
  // Adds to a part of space().x, or if more than a sum ends the mixer's branch, writes a part of space().branch.
  void project(const StepShape& shape, int32_t layer, const Stream& on);
  void end_mixer_branch(const StepShape& shape, int32_t layer, const Stream& on);
  // Of a dense MLP: a part of space().ffn, and then as project().
  void feed_forward(const StepShape& shape, int32_t layer, const Stream& on);
  void project_down(const StepShape& shape, int32_t layer, const Stream& on);

  struct Span {  // rows of one kernel class
    int32_t first, count;
    GemmClass kind;
  };
  struct Spans {
    Span decode, prefill;
    const Span* begin() const { return &decode; }
    const Span* end() const { return &decode + 2; }
  };
  static Spans spans(const StepShape& shape);

  // Of a mixture of experts, for expert_rows() rows of one class at most: routes the rows, and writes a part of
  // space().experts.ffn by pair, and of space().experts.shared_ffn.
  void gate_experts(const StepShape& shape, const Span& rows, int32_t layer, const Stream& on);
  // As project(). If sums_apart(), it writes a part of space().experts.sums instead, and combine_experts() adds them to space().x or
  // writes space().branch.
  void project_experts(const Span& rows, int32_t layer, const Stream& on);
  void combine_experts(const Span& rows, int32_t layer, const Stream& on);
  int32_t expert_rows(int32_t layer) const;  // the same on all ranks
  bool is_mixture(int32_t layer) const { return desc_.mlp(layer).kind == MR_MLP_EXPERTS; }
  bool sums_apart(int32_t layer) const { return model_->ranks() > 1 && reads_whole_sums(desc_.experts(layer)); }

  // Whether norms read all heads of Q and of K, of which each rank has some.
  bool heads_apart(int32_t layer) const {
    return model_->ranks() > 1 && (desc_.mixer(layer).flags & MR_MIX_QK_ROW_NORM) != 0;
  }

  // What follows the MLP in some models: the end of its branch, the layer's input, and its scale.
  void finish_layer(const StepShape& shape, int32_t layer, const Stream& on);
  bool ends_layer(int32_t layer) const;  // whether finish_layer() queues anything
  // The last norm and the head of the rows that jobs [first, first + count) name, into space().logits from row 0 on: vocab().
  void head(const StepShape& shape, int32_t first, int32_t count, const Stream& on);
  // Of jobs [first, first + count), whose rows of logits lie from row 0 on. Jobs of kJobNone are not sampled.
  void sample(const StepShape& shape, int32_t first, int32_t count, const Stream& on);
  // The rows that the last norm makes of those that the step's hidden rows name, into space().hidden. The layers have made the residual
  // stream whole on every rank, and nothing after them changes it, so that this may come after a captured graph.
  cudaError_t hidden_rows(const StepShape& shape, const Stream& on) const;

 private:
  // The norm of the residual stream that a branch begins with.
  struct BranchNorm {
    const float* weight;   // null: the residual stream is converted as it is
    InputType type;        // of its output
    bool applied = false;  // by the kernel that ended the branch before
  };
  BranchNorm mixer_norm(int32_t layer) const;
  BranchNorm mlp_norm(int32_t layer) const;  // of a mixture: of its experts

  Rows rows_from(const StepShape& shape, int32_t first) const;
  Rows rows_of(const StepShape& shape, int32_t first, int32_t layer) const;  // with the block tables of the layer's group
  void begin_rows(const StepShape& shape, const Stream& on);
  void layer_inputs(const StepShape& shape, const Stream& on);
  void attend(const StepShape& shape, int32_t layer, const Stream& on);
  void plan_heads(const StepShape& shape, const Stream& on);
  void attend_by_latent(const StepShape& shape, int32_t layer, const Stream& on);
  void latent_products(const StepShape& shape, int32_t layer, const Stream& on);
  void finish_latent(const StepShape& shape, int32_t layer, const Stream& on);
  // Multiplies each head of all rows with its own matrix. Head h of row r is at x + (r heads + h) x_stride, of type act; its product, of
  // type out_act, goes to out + r out_stride + h head_stride.
  struct HeadProducts {
    const PackedWeight* stack;  // the matrices of heads
    Act act;
    void* x;
    int64_t x_stride;
    void* out;
    int64_t out_stride, head_stride;
    Act out_act;
  };
  void multiply_heads(const StepShape& shape, int32_t layer, const HeadProducts& products, const Stream& on);
  void gated_delta(const StepShape& shape, int32_t layer, const Stream& on);
  void short_convolution(const StepShape& shape, int32_t layer, const Stream& on);
  InputType mixed_type(int32_t layer) const;  // of what O or MIX_OUT multiplies
  StateRows state_rows(const StepShape& shape) const;
  StateMemory state_memory(int32_t layer) const;
  ConvolveArgs convolve_args(const StepShape& shape, int32_t layer) const;
  StoreInputsArgs store_inputs_args(const StepShape& shape, int32_t layer) const;
  void lay_out_taps();
  void finish_qkv(const StepShape& shape, int32_t layer, const Stream& on);
  void gate_output(const StepShape& shape, int32_t layer, const Stream& on);
  void attention(const StepShape& shape, int32_t layer, const Stream& on);
  void feed_forward(const Span& span, int32_t layer, const Stream& on);
  // out = activation(gate) * up of the residual stream, normed as `source` says.
  void gated_pair(const Span& span, int32_t layer, const BranchNorm& source, const PackedWeight& gate, const PackedWeight& up,
                  const ActRows& out, const Stream& on);
  void choose_experts(const StepShape& shape, const Span& rows, int32_t layer, const BranchNorm& source, const Stream& on);
  ExpertBytes expert_bytes(const StepShape& shape, const Span& rows, int32_t layer) const;
  ExpertGemmArgs expert_args(const Span& rows, int32_t layer) const;
  ExpertGemmArgs down_args(const Span& rows, int32_t layer) const;
  void multiply_gates(const Span& rows, int32_t layer, bool ahead, const Stream& on);  // ahead: as of ExpertGemmArgs
  ActRows shared_ffn(const Span& rows, int32_t layer) const;  // row 0, of which the first of `rows` is in the buffer
  void gate_shared(const Span& rows, int32_t layer, const Stream& on);
  void project_shared(const Span& rows, int32_t layer, float* out, const Stream& on);
  CombineArgs combine_args(const Span& rows, int32_t layer) const;
  DecodePlan decode_plan(int32_t kind, int32_t part) const;
  Act mlp_act(const Layer& l) const;
  Act experts_act(const Layer& l) const;
  bool shared_as_experts(int32_t layer) const;
  bool branch_adds_shared(const Span& rows, int32_t layer) const;
  void gated(int32_t layer, const Span& rows, const float* up, int64_t up_stride, const InputType& type, const ActRows& out, int32_t width,
             const Stream& on);
  void add_layer_input(const StepShape& shape, int32_t layer, const BranchNorm& source, const Stream& on);
  // Multiplies x with m and adds the product to the residual stream, or if `ends`, leaves it in space().branch.
  void branch_gemm(const StepShape& shape, const PackedWeight& m, const float* bias, const ActRows& x, const InputType& type, bool ends,
                   const Stream& on);
  // Adds space().branch, normed if norm is not null, to the residual stream, which is then multiplied by `then` if that is not null.
  // Without `branch` only the product is queued. If next is not null, the norm that it describes goes into space().norm.
  void end_branch(const StepShape& shape, bool branch, const float* norm, const float* then, const BranchNorm* next, const Stream& on);
  // The same at the end of a layer, whose scale is applied.
  void end_layer(const StepShape& shape, int32_t layer, bool branch, const float* norm, const Stream& on);
  // Into space().norm: the residual stream normed, unless the kernel that ended the branch before has done it. Returns whether
  // the sums of the rows were written into input_sums, which may be null; they are if this kernel norms rows of f16.
  bool norm(const BranchNorm& source, const Span& span, const Stream& on, void* input_sums = nullptr);
  RmsNormArgs norm_args(const BranchNorm& source, const Span& span) const;
  InputType normed_type(Act act, const float* weight) const;
  // Queues one GEMM of rows [span.first, + count) of the residual stream, normed as `source` says, with the weights of `count` targets,
  // which share an epilogue; out of each target is its row 0. A rank writes its part of the columns to where the part begins.
  void normed_gemm(const Span& span, const BranchNorm& source, Epilogue epilogue, int32_t count, const GemmTarget* targets,
                   const Stream& on);
  void normed_gemm(GemmArgs args, const Span& span, const BranchNorm& source, const Stream& on);
  bool try_heads_epilogue(const StepShape& shape, int32_t layer, const Stream& on);
  GemmArgs gemm_args(const Span& span, const InputType& type, const void* x, int64_t x_stride, Epilogue epilogue, int32_t count,
                     const GemmTarget* targets) const;

  const std::shared_ptr<const Model> model_;
  const Shard& shard_;
  const Description& desc_;  // of the shard
  const mr_runner_config config_;
  const Sizes sizes_;
  const Activations activations_;
  const Memory kv_;
  const Memory states_;
  const Memory memory_;
  const Workspace space_;
};

}  // namespace mr::cuda
