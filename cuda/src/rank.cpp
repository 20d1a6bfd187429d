#include "src/rank.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cpu/runner_config.h"
#include "kernels/branch.h"
#include "kernels/elementwise.h"
#include "kernels/gemm/repack.h"
#include "kernels/norm.h"
#include "kernels/rows.h"
#include "kernels/sampler/sampler.h"
#include "src/error.h"
#include "src/kinds.h"

namespace mr::cuda {
Rank::Rank(std::shared_ptr<const Model> model, int32_t rank, const mr_runner_config& config, const Sizes& sizes)
    : model_(std::move(model)), shard_(model_->shard(rank)), desc_(shard_.desc()), config_(config), sizes_(sizes),
      activations_(shard_, config),
      kv_(device().ledger.allocate(pool_bytes(config, false, sizes.kv_block_bytes) + pool_bytes(config, true, sizes.window_block_bytes),
                                    MR_PURPOSE_KV)),
      states_(device().ledger.allocate(states_bytes(config, sizes.state_bytes()), MR_PURPOSE_KV)),
      memory_(device().ledger.allocate(Workspace(*model_, config, sizes, nullptr).bytes, MR_PURPOSE_WORKSPACE)),
      space_(*model_, config, sizes, memory_.data()) {
  device().enter();
  device().transfers.fill(memory_.data(), 0, memory_.size());  // padding behind activation rows stays zero, marks return to it
  for (const BlockGroup& group : sizes.window_groups)  // the blocks of zeros
    for (int32_t plane = 0; plane < group.planes; ++plane)
      device().transfers.fill(kv_.data() + group.pool_at + (plane + 1) * group.pool_stride - group.plane_bytes, 0,
                              static_cast<uint64_t>(group.plane_bytes));
  for (size_t i = 0; i < desc_.ropes.size(); ++i) {
    const Rope& rope = desc_.ropes[i];
    std::vector<double> frequencies(static_cast<size_t>(rope.dims / 2));
    rope_frequencies(rope.dims, rope.base, rope.scale, rope.divisors.empty() ? nullptr : rope.divisors.data(), frequencies.data());
    device().transfers.upload(space_.frequencies[i], frequencies.data(), frequencies.size() * sizeof(double));
  }
  lay_out_taps();
}

void Rank::set_slots(const StepShape& shape, cudaStream_t stream) {
  if (shape.sets == 0) return;
  CUDA_CHECK(launch_slot_sets(space_.slots, reinterpret_cast<const SlotSet*>(space_.input + shape.set), shape.sets,
                              shape.most_history, {stream, false}));
}

Rows Rank::rows_from(const StepShape& shape, int32_t first) const {
  const auto at = [&](uint64_t offset) { return reinterpret_cast<const int32_t*>(space_.input + offset) + first; };
  return {at(shape.slot), at(shape.position), at(shape.table),
          reinterpret_cast<const int32_t*>(space_.input + shape.block_ids)};
}

Rows Rank::rows_of(const StepShape& shape, int32_t first, int32_t layer) const {
  Rows rows = rows_from(shape, first);
  if (sizes_.windowed[static_cast<size_t>(layer)]) rows.table = reinterpret_cast<const int32_t*>(space_.input + shape.window_table) + first;
  return rows;
}

Rank::Spans Rank::spans(const StepShape& shape) {
  return {{0, shape.decode_rows, GemmClass::kDecode},
          {shape.decode_rows, shape.rows - shape.decode_rows, GemmClass::kPrefill}};
}

void Rank::begin(const StepShape& shape, const Stream& on) {
  begin_rows(shape, on);
  CUDA_CHECK(launch_dequant_rows({shard_.embedding(), space_.token, shape.rows, space_.x, sizes_.hidden_stride, desc_.embedding_scale}, on));
  if (desc_.layer_input_width != 0) layer_inputs(shape, on);
  plan_heads(shape, on);
}

// Products of the embeddings with their projection for all layers, and from these and a second embedding the layers' inputs.
void Rank::layer_inputs(const StepShape& shape, const Stream& on) {
  const GemmTarget projection{shard_.input_projection(), nullptr, space_.layer_inputs, sizes_.inputs_stride};
  const Act act = activations_.act_of({&shard_.input_projection()});
  for (const Span& span : spans(shape)) normed_gemm(span, {nullptr, activations_.residual(act)}, Epilogue::kStoreF32, 1, &projection, on);
  for (int32_t first = 0; first < shape.rows; first += kGateRows) {
    LayerInputsArgs args{};
    args.rows = std::min(kGateRows, shape.rows - first);
    CUDA_CHECK(launch_dequant_rows({shard_.input_embedding(), space_.token + first, args.rows, space_.input_rows, sizes_.inputs_stride}, on));
    args.inputs = space_.layer_inputs + first * sizes_.inputs_stride;
    args.embedding = space_.input_rows;
    args.inputs_stride = args.embedding_stride = sizes_.inputs_stride;
    args.norm = shard_.input_norm();
    args.eps = desc_.norm_eps;
    args.layers = desc_.layer_count();
    args.width = desc_.layer_input_width;
    args.hidden = desc_.hidden;
    CUDA_CHECK(launch_layer_inputs(args, on));
  }
}

// Token ids, histories, rotations and the division of decode attention: decode rows in parts, prefill rows at once.
void Rank::begin_rows(const StepShape& shape, const Stream& on) {
  for (int32_t first = 0, part = 0; first < shape.rows; ++part) {
    const bool decode = first < shape.decode_rows;
    const int32_t count = decode ? std::min(sizes_.decode_rows, shape.decode_rows - first) : shape.rows - first;
    BeginArgs args{};
    args.rows = rows_from(shape, first);
    args.count = count;
    args.decode_rows = decode ? count : 0;
    args.token_in = reinterpret_cast<const int32_t*>(space_.input + shape.token) + first;
    args.token = space_.token + first;
    args.nan_flags = space_.nan_flags + first;
    args.feeds = space_.slots.feeds;
    args.history = space_.slots.history;
    args.history_stride = space_.slots.history_stride;
    args.rope_count = static_cast<int32_t>(desc_.ropes.size());
    for (int32_t i = 0; i < args.rope_count; ++i) {
      const size_t at = static_cast<size_t>(i);
      const Rope& rope = desc_.ropes[at];
      args.ropes[i] = {space_.frequencies[at], rope.dims, rope.magnitude, space_.rope_tables[at] + int64_t{first} * rope.dims};
    }
    args.plan_count = decode ? sizes_.kinds.count() : 0;
    for (int32_t kind = 0; kind < args.plan_count; ++kind) {
      args.plans[kind] = decode_plan(kind, part);
      args.windows[kind] = sizes_.kinds.kinds[static_cast<size_t>(kind)].window;
    }
    if (part == 0) {
      args.step = space_.step;
      args.expert_bytes = space_.experts.bytes;
    }
    CUDA_CHECK(launch_begin(args, on));
    first += count;
  }
}

DecodePlan Rank::decode_plan(int32_t kind, int32_t part) const {
  const int64_t at = int64_t{kind} * sizes_.decode_parts + part;
  return {space_.plan_first + at * (sizes_.decode_rows + 1), space_.plan_span + at, sizes_.decode_units};
}

InputType Rank::normed_type(Act act, const float* weight) const {
  return weight == nullptr ? activations_.residual(act) : activations_.normed(act);
}

bool Rank::norm(const BranchNorm& source, const Span& span, const Stream& on, void* input_sums) {
  if (source.applied) return false;
  const InputType& type = source.type;
  if (source.weight == nullptr) {  // padding after rows is zero on both sides
    const int64_t skip = span.first * sizes_.hidden_stride;
    CUDA_CHECK(launch_to_act({space_.x + skip, act_row(space_.norm, span.first, sizes_.hidden_stride), type.act,
                              span.count * sizes_.hidden_stride, 1 / type.scale, true}, on));
    return false;
  }
  RmsNormArgs args = norm_args(source, span);
  if (args.act == Act::kF16 && args.dim % 256 == 0) args.input_sums = input_sums;
  CUDA_CHECK(launch_rms_norm(args, on));
  return args.input_sums != nullptr;
}

RmsNormArgs Rank::norm_args(const BranchNorm& source, const Span& span) const {
  const InputType& type = source.type;
  RmsNormArgs args{};
  args.x = space_.x + span.first * sizes_.hidden_stride;
  args.weight = source.weight;
  args.out = act_row(space_.norm, span.first, sizes_.hidden_stride);
  args.act = type.act;
  args.rows = span.count;
  args.dim = desc_.hidden;
  args.x_stride = args.out_stride = sizes_.hidden_stride;
  args.eps = desc_.norm_eps;
  args.scale = 1 / type.scale;
  return args;
}

GemmArgs Rank::gemm_args(const Span& span, const InputType& type, const void* x, int64_t x_stride, Epilogue epilogue, int32_t count,
                         const GemmTarget* targets) const {
  GemmArgs args;
  const bool f32 = epilogue == Epilogue::kStoreF32 || epilogue == Epilogue::kAddF32;
  for (int32_t i = 0; i < count; ++i) {
    args.targets[i] = targets[i];
    if (targets[i].out == nullptr) continue;
    const int64_t skip = span.first * targets[i].out_stride;
    args.targets[i].out = f32 ? static_cast<void*>(static_cast<float*>(targets[i].out) + skip)
                              : act_row(targets[i].out, span.first, targets[i].out_stride);
  }
  args.count = count;
  args.epilogue = epilogue;
  args.kind = span.kind;
  args.x = act_row(const_cast<void*>(x), span.first, x_stride);
  args.x_stride = x_stride;
  args.act = type.act;
  args.x_scale = type.scale;
  args.tokens = span.count;
  if (epilogue == Epilogue::kSwiGLU) args.pair_scale = activations_.gated(type.act).scale;
  args.input_sums = space_.input_sums;
  args.semaphores = space_.semaphores;
  return args;
}

void Rank::branch_gemm(const StepShape& shape, const PackedWeight& m, const float* bias, const ActRows& x, const InputType& type, bool ends,
                       const Stream& on) {
  const GemmTarget target{m, bias, (ends ? space_.branch : space_.x) + shard_.hidden().first, sizes_.hidden_stride};
  for (const Span& span : spans(shape)) {
    if (span.count == 0) continue;
    CUDA_CHECK(launch_gemm(gemm_args(span, type, x.base, x.stride, ends ? Epilogue::kStoreF32 : Epilogue::kAddF32, 1, &target), on));
  }
}

void Rank::end_branch(const StepShape& shape, bool branch, const float* norm, const float* then, const BranchNorm* next, const Stream& on) {
  EndBranchArgs args{};
  args.x = space_.x;
  args.branch = branch ? space_.branch : nullptr;
  args.x_stride = args.branch_stride = sizes_.hidden_stride;
  args.norm = norm;
  args.then = then;
  args.eps = desc_.norm_eps;
  args.scale = desc_.residual_scale;
  args.rows = shape.rows;
  args.dim = desc_.hidden;
  if (next != nullptr) {
    args.out = space_.norm;
    args.out_norm = next->weight;
    args.out_stride = sizes_.hidden_stride;
    args.act = next->type.act;
    args.out_scale = 1 / next->type.scale;
  }
  CUDA_CHECK(launch_end_branch(args, on));
}

Rank::BranchNorm Rank::mixer_norm(int32_t index) const {
  const Layer& l = shard_.layer(index);
  const Act act = activations_.act_of({&l.q, &l.k, &l.v, &l.q_down, &l.kv_down, &l.mix_in, &l.mix_gate, &l.delta_beta,
                                       &l.delta_alpha});
  return {l.attn_norm, normed_type(act, l.attn_norm), index > 0 && ends_layer(index - 1)};
}

Rank::BranchNorm Rank::mlp_norm(int32_t index) const {
  const Layer& l = shard_.layer(index);
  const float* const weight = l.expert_norm != nullptr ? l.expert_norm : l.ffn_norm;
  return {weight, normed_type(is_mixture(index) ? experts_act(l) : mlp_act(l), weight), ends_mixer(desc_, index)};
}

bool Rank::ends_layer(int32_t index) const {
  return ends_mlp(desc_, index) || desc_.layer_input_width != 0 || shard_.layer(index).scale != nullptr;
}

void Rank::end_layer(const StepShape& shape, int32_t index, bool branch, const float* norm, const Stream& on) {
  const float* const scale = shard_.layer(index).scale;
  if (index + 1 == desc_.layer_count()) return end_branch(shape, branch, norm, scale, nullptr, on);
  const BranchNorm next = mixer_norm(index + 1);
  end_branch(shape, branch, norm, scale, &next, on);
}

void Rank::normed_gemm(const Span& span, const BranchNorm& source, Epilogue epilogue, int32_t count, const GemmTarget* targets,
                       const Stream& on) {
  if (span.count == 0) return;
  normed_gemm(gemm_args(span, source.type, space_.norm, sizes_.hidden_stride, epilogue, count, targets), span, source, on);
}

// If the kernel can, its own blocks norm a single row.
void Rank::normed_gemm(GemmArgs args, const Span& span, const BranchNorm& source, const Stream& on) {
  if (source.weight != nullptr && !source.applied && gemm_fuses_norm(args))
    args.norm = {space_.x + span.first * sizes_.hidden_stride, source.weight, desc_.norm_eps, 1 / args.x_scale};
  else args.summed = norm(source, span, on, gemm_reads_input_sums(args) ? args.input_sums : nullptr);
  CUDA_CHECK(launch_gemm(args, on));
}

void Rank::mix_tokens(const StepShape& shape, int32_t index, const Stream& on) {
  switch (desc_.mixer(index).kind) {
    case MR_MIX_DELTA: return gated_delta(shape, index, on);
    case MR_MIX_CONV: return short_convolution(shape, index, on);
    case MR_MIX_LATENT: return attend_by_latent(shape, index, on);
    default: return attend(shape, index, on);
  }
}

InputType Rank::mixed_type(int32_t index) const {
  const Layer& l = shard_.layer(index);
  const Act act = activations_.act_of({&l.o, &l.mix_out});
  return keeps_keys(desc_.mixer(index)) ? activations_.attended(act) : activations_.carried(act);
}

void Rank::project(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const PackedWeight& out = keeps_keys(desc_.mixer(index)) ? l.o : l.mix_out;
  branch_gemm(shape, out, l.o_bias, space_.attention[static_cast<size_t>(index)], mixed_type(index), ends_mixer(desc_, index), on);
}

void Rank::end_mixer_branch(const StepShape& shape, int32_t index, const Stream& on) {
  if (!ends_mixer(desc_, index)) return;
  const BranchNorm next = mlp_norm(index);
  end_branch(shape, true, shard_.layer(index).attn_end_norm, nullptr, &next, on);
}

void Rank::feed_forward(const StepShape& shape, int32_t index, const Stream& on) {
  for (const Span& span : spans(shape)) feed_forward(span, index, on);
}

void Rank::project_down(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  branch_gemm(shape, l.down, nullptr, space_.ffn[static_cast<size_t>(index)], activations_.gated(mlp_act(l)), ends_mlp(desc_, index), on);
}

void Rank::finish_layer(const StepShape& shape, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const bool has_input = desc_.layer_input_width != 0, ends = ends_mlp(desc_, index);
  if (has_input) {
    const BranchNorm input{nullptr, activations_.residual(activations_.act_of({&l.input_gate, &l.input_down})), ends};
    if (ends) end_branch(shape, true, l.ffn_end_norm, nullptr, &input, on);
    add_layer_input(shape, index, input, on);
  } else if (ends_layer(index)) {
    end_layer(shape, index, ends, l.ffn_end_norm, on);
  }
}

// Adds the branch of a layer's input: down(activation(gate(x)) * input), after its norm.
void Rank::add_layer_input(const StepShape& shape, int32_t index, const BranchNorm& source, const Stream& on) {
  const Layer& l = shard_.layer(index);
  const int32_t width = desc_.layer_input_width;
  const InputType& type = source.type;
  for (const Span& span : spans(shape)) {
    if (span.count == 0) continue;
    norm(source, span, on);
    for (int32_t done = 0; done < span.count; done += kGateRows) {
      const Span rows{span.first + done, std::min(kGateRows, span.count - done), span.kind};
      GemmArgs args = gemm_args(rows, type, space_.norm, sizes_.hidden_stride, Epilogue::kStoreF32, 0, nullptr);
      args.targets[0] = {l.input_gate, nullptr, space_.gate, sizes_.gate_stride};
      args.count = 1;
      CUDA_CHECK(launch_gemm(args, on));
      const float* const inputs = space_.layer_inputs + rows.first * sizes_.inputs_stride + int64_t{index} * width;
      gated(index, rows, inputs, sizes_.inputs_stride, activations_.gated(type.act), space_.input_ffn, width, on);
    }
  }
  branch_gemm(shape, l.input_down, nullptr, space_.input_ffn, activations_.gated(type.act), true, on);
  end_layer(shape, index, true, l.input_end_norm, on);
}

// out = activation(space().gate) * up, for `width` columns.
void Rank::gated(int32_t index, const Span& rows, const float* up, int64_t up_stride, const InputType& type, const ActRows& out,
                 int32_t width, const Stream& on) {
  SwigluArgs args{};
  args.gate = space_.gate;
  args.up = up;
  args.act = type.act;
  args.out = act_row(out.base, rows.first, out.stride);
  args.rows = rows.count;
  args.dim = width;
  args.in_stride = sizes_.gate_stride;
  args.up_stride = up_stride;
  args.out_stride = out.stride;
  args.scale = 1 / type.scale;
  args.activation = desc_.mlp(index).activation;
  CUDA_CHECK(launch_swiglu(args, on));
}

// The kernel that makes a pair's results gives them the type of its own inputs, so the three matrices share a type.
Act Rank::mlp_act(const Layer& l) const { return activations_.act_of({&l.gate, &l.up, &l.down}); }
Act Rank::experts_act(const Layer& l) const { return activations_.act_of({&l.expert_gate, &l.expert_up, &l.expert_down}); }

void Rank::feed_forward(const Span& span, int32_t index, const Stream& on) {
  const Layer& l = shard_.layer(index);
  ActRows out = space_.ffn[static_cast<size_t>(index)];
  out.base = act_column(out.base, shard_.rows(index).ffn.first);
  gated_pair(span, index, mlp_norm(index), l.gate, l.up, out, on);
}

// In one kernel where the pair and the activation allow it, else through both GEMMs.
void Rank::gated_pair(const Span& span, int32_t index, const BranchNorm& source, const PackedWeight& gate, const PackedWeight& up,
                      const ActRows& out, const Stream& on) {
  if (span.count == 0) return;
  const InputType& type = source.type;
  const int32_t activation = desc_.mlp(index).activation;
  if (swiglu_supported(gate, up) && activation != MR_ACT_CLAMPED) {
    const GemmTarget pair[2] = {{gate, nullptr, out.base, out.stride}, {up, nullptr, nullptr, 0}};
    GemmArgs args = gemm_args(span, type, space_.norm, sizes_.hidden_stride, Epilogue::kSwiGLU, 2, pair);
    args.gelu = activation == MR_ACT_GELU_TANH;
    normed_gemm(args, span, source, on);
    return;
  }
  norm(source, span, on);
  for (int32_t done = 0; done < span.count; done += kGateRows) {
    const Span rows{span.first + done, std::min(kGateRows, span.count - done), span.kind};
    GemmArgs args = gemm_args(rows, type, space_.norm, sizes_.hidden_stride, Epilogue::kStoreF32, 0, nullptr);
    args.targets[0] = {gate, nullptr, space_.gate, sizes_.gate_stride};
    args.targets[1] = {up, nullptr, space_.up, sizes_.gate_stride};
    args.count = 2;
    CUDA_CHECK(launch_gemm(args, on));
    gated(index, rows, space_.up, sizes_.gate_stride, activations_.gated(type.act), out, static_cast<int32_t>(gate.rows), on);
  }
}

void Rank::head(const StepShape& shape, int32_t first, int32_t count, const Stream& on) {
  const InputType type = activations_.normed(activations_.act_of({&shard_.head()}));
  RmsNormArgs norm{};
  norm.x = space_.x;
  norm.weight = shard_.output_norm();
  norm.gather = reinterpret_cast<const int32_t*>(space_.input + shape.gather) + first;
  norm.out = space_.norm;
  norm.act = type.act;
  norm.rows = count;
  norm.dim = desc_.hidden;
  norm.x_stride = norm.out_stride = sizes_.hidden_stride;
  norm.eps = desc_.norm_eps;
  norm.scale = 1 / type.scale;
  CUDA_CHECK(launch_rms_norm(norm, on));
  const GemmTarget head{shard_.head(), nullptr, space_.logits + shard_.vocab().first, sizes_.vocab_stride};
  const Span rows{0, count, GemmClass::kDecode};
  if (count > 0) CUDA_CHECK(launch_gemm(gemm_args(rows, type, space_.norm, sizes_.hidden_stride, Epilogue::kStoreF32, 1, &head), on));
  if (desc_.logit_scale == 1 && desc_.logit_cap == 0) return;
  ScaleArgs scale{space_.logits + shard_.vocab().first, count, static_cast<int32_t>(shard_.vocab().count), sizes_.vocab_stride,
                  desc_.logit_scale, desc_.logit_cap};
  CUDA_CHECK(launch_scale(scale, on));
}

void Rank::sample(const StepShape& shape, int32_t first, int32_t count, const Stream& on) {
  SampleArgs args{};
  args.jobs = reinterpret_cast<const SampleJob*>(space_.input + shape.job) + first;
  args.job_count = count;
  args.logits = space_.logits;
  args.logits_stride = sizes_.vocab_stride;
  args.vocab = desc_.vocab;
  args.nan_flags = space_.nan_flags;
  args.masks = space_.masks;
  args.slots = space_.slots;
  args.results = space_.results + first;
  args.candidates = space_.candidates;
  args.workspace = space_.sampler;
  args.workspace_jobs = sizes_.logit_rows;
  CUDA_CHECK(launch_sample(args, on));
}

cudaError_t Rank::hidden_rows(const StepShape& shape, const Stream& on) const {
  HiddenRowsArgs args{};
  args.x = space_.x;
  args.weight = shard_.output_norm();
  args.gather = reinterpret_cast<const int32_t*>(space_.input + shape.hidden);
  args.nan_flags = space_.nan_flags;
  args.out = space_.hidden;
  args.rows = shape.hidden_rows;
  args.dim = desc_.hidden;
  args.x_stride = sizes_.hidden_stride;
  args.eps = desc_.norm_eps;
  return launch_hidden_rows(args, on);
}

}  // namespace mr::cuda
