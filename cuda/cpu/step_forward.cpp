#pragma GCC optimize("fp-contract=off")
#include "step_forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "step_phase.h"

namespace mr::cpu {
namespace {

constexpr int64_t kTasksAThread = 6;  // least number of tasks of a GEMM for each thread, if the matrix has so many panels
constexpr int64_t kHeadPanels = 16;   // most panels of the head in one task

}  // namespace

StepForward::StepForward(std::shared_ptr<const Model> model, const mr_runner_config& config)
    : model_(std::move(model)),
      config_(config),
      desc_(model_->desc()),
      isa_(model_->device()->isa),
      ops_(vec_ops(isa_)),
      threads_(model_->device()->threads),
      kv_(model_->device()->ledger, desc_, config),
      states_(model_->device()->ledger, desc_, config),
      memory_(model_->device()->ledger.allocate(StepWorkspace(*model_, config, threads_.size(), nullptr).bytes,
                                                MR_PURPOSE_WORKSPACE, false)),
      space_(*model_, config, threads_.size(), memory_.as<uint8_t>()),
      slots_(static_cast<size_t>(config.max_sequences)),
      ranges_(new Range[static_cast<size_t>(threads_.size())]) {
  for (size_t s = 0; s < slots_.size(); ++s) slots_[s].history = space_.history + static_cast<int64_t>(s) * space_.positions;
  for (const auto& t : space_.threads) samplers_.emplace_back(t.sampler, desc_.vocab);
  int64_t at = 0;
  for (const Rope& rope : desc_.ropes) {
    rope_at_.push_back(at);
    rope_frequencies(rope.dims, rope.base, rope.scale, rope.divisors.empty() ? nullptr : rope.divisors.data(), space_.frequencies + at / 4);
    at += rope_floats(rope.dims);
  }
  lay_out_taps();
  const size_t tokens = static_cast<size_t>(config.max_batched_tokens);
  if (states_.floats != 0) {
    chains_.reserve(tokens);
    chained_.reserve(tokens);
    chained_tokens_.reserve(tokens);
    segment_token_.reserve(tokens);
  }
  token_status_.resize(tokens);
  positions_.resize(tokens);
  token_block_.resize(tokens);
  tiles_.reserve(tokens);
  long_tiles_.reserve(tokens);
  active_.reserve(static_cast<size_t>(space_.most_experts));
  expert_read_.resize(static_cast<size_t>(space_.most_experts));
  rows_.reserve(static_cast<size_t>(config.max_sample_rows) + static_cast<size_t>(config.max_score_rows));
}

// Panels in a task. A GEMM of few tokens is bound by memory, which is read fastest in whole stacks; so tasks are whole stacks if
// every thread gets one.
int64_t StepForward::task_panels(int64_t total_panels) const {
  const bool stacks = few() && total_panels >= stack_panels * threads_.size();
  const int64_t fair = total_panels / (kTasksAThread * threads_.size()), unit = stacks ? stack_panels : 1;
  return std::clamp<int64_t>(fair / unit * unit, unit, StepWorkspace::task_panels(tokens_));
}

// The first GEMMs of a layer.
Cut StepForward::mix_cut(int32_t index) const {
  const Layer& l = model_->layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  int64_t total = 0;
  if (by_latent(m)) {
    const Matrix* const queries = l.q_down == nullptr ? l.q : l.q_down;
    return Cut({queries, l.kv_down}, task_panels(panels(queries->out) + panels(l.kv_down->out)));
  }
  if (!attends(m)) {
    for (const Matrix* matrix : {l.mix_in, l.mix_gate, l.delta_beta, l.delta_alpha})
      if (matrix != nullptr) total += panels(matrix->out);
    return Cut({l.mix_in, l.mix_gate, l.delta_beta, l.delta_alpha}, task_panels(total));
  }
  // Where heads are whole panels a task is whole heads, with their gates.
  const int64_t grain = m.key_dim % panel_rows == 0 ? query_stride(m) / panel_rows : 1;
  for (const Matrix* matrix : {l.q, l.k, l.v})
    if (matrix != nullptr) total += panels(matrix->out);
  return Cut({l.q, l.k, l.v}, std::max<int64_t>(1, task_panels(total) / grain) * grain);
}

Cut StepForward::cut(const Matrix* m) const { return Cut({m}, task_panels(panels(m->out))); }

Cut StepForward::head_cut() const {
  const Matrix* const head = &model_->head();
  return Cut({head}, std::clamp<int64_t>(panels(head->out) / (kTasksAThread * threads_.size()) / stack_panels * stack_panels,
                                         stack_panels, kHeadPanels));
}

void StepForward::run(StepPlan& plan, const std::function<bool()>& masks) {
  begin(plan);
  chain_segments(plan);
  if (tokens_ != 0) {
    tiled_ = nullptr;
    embed(plan);
    if (desc_.layer_input_width != 0) layer_inputs(plan);
    for (int32_t i = 0; i < desc_.layer_count(); ++i) layer(plan, i);
    hidden_rows(plan);
  }
  heads(plan, masks);
  if (!plan.tokens.empty()) read_bytes(plan);
}

// The taps of files lie column by column.
void StepForward::lay_out_taps() {
  for (int32_t i = 0; i < desc_.layer_count(); ++i) {
    const mr_mixer_desc& m = desc_.mixer(i);
    if (keeps_keys(m)) continue;
    const int64_t width = conv_width(m, desc_.hidden);
    for (int64_t c = 0; c < width; ++c)
      for (int32_t j = 0; j < m.conv; ++j)
        space_.conv_taps[static_cast<size_t>(i)][j * width + c] = model_->layer(i).mix_conv[c * m.conv + j];
  }
}

void StepForward::pre_op(StepPlan::PreOp& op) {
  switch (op.kind) {
    case MR_PRE_BLOCK_COPY: return kv_.copy_block(op.window, op.src, op.dst);
    case MR_PRE_BLOCK_OUT: return kv_.copy_out(op.window, op.src, op.host);
    case MR_PRE_BLOCK_IN: return kv_.copy_in(op.window, op.host, op.dst);
    case MR_PRE_STATE_OUT:
    case MR_PRE_STATE_IN: return copy_state(op);
    default: break;  // SLOT_SET: the checker lets nothing else pass
  }
  Slot& slot = slots_[static_cast<size_t>(op.slot)];
  slot.generation = op.generation;
  slot.params = std::move(op.params);
  std::copy(op.history.begin(), op.history.end(), slot.history);
  slot.length = static_cast<int32_t>(op.history.size());
  slot.sampled = 0;
  slot.sampled_status = MR_ROW_OK;
}

// Pre-operations, token ids and histories; makes room for the results.
void StepForward::begin(StepPlan& plan) {
  for (StepPlan::PreOp& op : plan.pre_ops) pre_op(op);
  tokens_ = static_cast<int64_t>(plan.tokens.size());
  expert_bytes_ = 0;
  size_t at = 0;
  for (const mr_segment& s : plan.segments) {
    Slot& slot = slots_[static_cast<size_t>(s.slot)];
    for (int32_t i = 0; i < s.count; ++i, ++at) {
      token_status_[at] = MR_ROW_OK;
      if (plan.tokens[at] < 0) {
        plan.tokens[at] = slot.sampled;
        token_status_[at] = slot.sampled_status;
      }
      positions_[at] = s.first_position + i;
      token_block_[at] = plan.block_ids[static_cast<size_t>(s.block_offset + positions_[at] / config_.block_size)];
      slot.history[s.first_position + i] = plan.tokens[at];
    }
    slot.length = s.first_position + s.count;
  }
  plan.sample_results.assign(plan.samples.size(), mr_row_result{});
  plan.score_results.assign(plan.scores.size(), mr_row_result{});
  int32_t candidates = 0;
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    plan.sample_results[i].candidate_offset = candidates;
    candidates += slots_[static_cast<size_t>(plan.samples[i].slot)].params.top_n;
  }
  for (size_t i = 0; i < plan.scores.size(); ++i) {
    plan.score_results[i].candidate_offset = candidates;
    candidates += plan.scores[i].top_n;
  }
  plan.candidates.assign(static_cast<size_t>(candidates), mr_candidate{});
}

void StepForward::embed(const StepPlan& plan) {
  each_token([&](int64_t t) {
    float* const x = space_.x + t * desc_.hidden;
    dequantize_row(model_->embedding(), plan.tokens[static_cast<size_t>(t)], x);
    if (desc_.embedding_scale != 1) ops_.scale(x, desc_.embedding_scale, desc_.hidden, x);
    for (size_t r = 0; r < desc_.ropes.size(); ++r) {
      const Rope& rope = desc_.ropes[r];
      rope_turns(space_.frequencies + rope_at_[r] / 4, rope.dims, rope.style, positions_[static_cast<size_t>(t)], rope.magnitude,
                 space_.rotations + t * space_.rotation_width + rope_at_[r]);
    }
  });
}

void StepForward::prepare(const float* x, int64_t width, const Cut& cut, int64_t t0, int64_t t1,
                          const Prepared& into) const {
  bool done[activation_kinds] = {};
  for (int32_t i = 0; i < cut.count; ++i) {
    const Activation kind = activation_kind(isa_, cut.matrices[i]->type);
    bool& kind_done = done[static_cast<int>(kind)];
    if (!kind_done) prepare_activations(isa_, kind, x, width, width, tokens_, t0, t1, into.of(kind));
    kind_done = true;
  }
}

void StepForward::layer(const StepPlan& plan, int32_t index) {
  const Layer& l = model_->layer(index);
  const bool dense = l.gate != nullptr;
  const mr_mixer_desc& m = desc_.mixer(index);
  const Cut out = cut(keeps_keys(m) ? l.o : l.mix_out), mlp = cut(dense ? l.gate : l.router);
  if (attends(m)) mix(plan, index, out);
  else if (by_latent(m)) latent_attention(plan, index, out);
  else if (m.kind == MR_MIX_DELTA) gated_delta(plan, index, out);
  else short_convolution(plan, index, out);
  project(space_.attention, out.matrices[0]->in, out, l.o_bias, l.attn_end_norm, mlp);
  const Cut next = index + 1 < desc_.layer_count() ? mix_cut(index + 1) : head_cut();
  const Cut after = l.input_gate == nullptr ? next : cut(l.input_gate);
  if (dense) {
    const Cut down = cut(l.down);
    gated_product(space_.x, l.ffn_norm, *l.gate, *l.up, desc_.mlp(index).activation, mlp, down);
    project(space_.ffn, desc_.mlp(index).width, down, nullptr, l.ffn_end_norm, after);
  } else {
    mixture(index, after);
  }
  if (l.input_gate != nullptr) add_layer_input(index, after, next);
  if (l.scale != nullptr)
    each_token([&](int64_t t) { ops_.scale(space_.x + t * desc_.hidden, *l.scale, desc_.hidden, space_.x + t * desc_.hidden); });
}

// Adds a branch to the residual stream: x * m^T (+ bias), after its end norm where it has one, times the residual scale.
void StepForward::project(const float* x, int64_t width, const Cut& cut, const float* bias, const float* end_norm, const Cut& then) {
  const int64_t ld = cut.chunk * panel_rows;
  with_prepared(x, width, nullptr, cut, cut.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
    float* const y = space_.threads[static_cast<size_t>(thread)].panel[0];
    const Piece p = cut.at(task);
    const int64_t row = p.first * panel_rows, n = std::min(p.matrix.out, p.last * panel_rows) - row;
    multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), tokens_, y - row, ld, p.first, p.last,
             weights_after(cut, task, thread, then));
    for (int64_t t = 0; t < tokens_; ++t) {
      float* const part = y + t * ld;
      if (bias != nullptr) ops_.add(part, bias + row, n, part);
      if (end_norm != nullptr) {
        std::copy(part, part + n, space_.branch + t * desc_.hidden + row);
        continue;
      }
      if (desc_.residual_scale != 1) ops_.scale(part, desc_.residual_scale, n, part);
      float* const to = space_.x + t * desc_.hidden + row;
      ops_.add(to, part, n, to);
    }
  });
  if (end_norm != nullptr) finish_branch(end_norm);
}

// Adds the branch buffer to the residual stream, after its end norm where it has one, times the residual scale.
void StepForward::finish_branch(const float* end_norm) {
  each_token([&](int64_t t) {
    float* const branch = space_.branch + t * desc_.hidden;
    float* const to = space_.x + t * desc_.hidden;
    if (end_norm != nullptr) ops_.rms_norm(branch, end_norm, desc_.norm_eps, desc_.hidden, branch);
    if (desc_.residual_scale != 1) ops_.scale(branch, desc_.residual_scale, desc_.hidden, branch);
    ops_.add(to, branch, desc_.hidden, to);
  });
}

// ffn = activation(gate) * up of x, or of its norms. `cut` is that of the gate.
void StepForward::gated_product(const float* x, const float* norm, const Matrix& gate, const Matrix& up, int32_t activation, const Cut& cut,
                                const Cut& then) {
  const int64_t ld = cut.chunk * panel_rows, width = gate.out;
  const auto gated = gated_by(activation);
  const Cut both({&gate, &up}, cut.chunk);
  with_prepared(x, desc_.hidden, norm, both, cut.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
    const auto& own = space_.threads[static_cast<size_t>(thread)];
    const Piece p = cut.at(task);
    const int64_t row = p.first * panel_rows, n = std::min(p.matrix.out, p.last * panel_rows) - row;
    const auto product = [&](const Matrix& m, float* y, const uint8_t* next) {
      multiply(isa_, m, prepared.of(activation_kind(isa_, m.type)), tokens_, y - row, ld, p.first, p.last, next);
    };
    product(gate, own.panel[0], begin_of(up, p.first));
    product(up, own.panel[1], weights_after(cut, task, thread, then));
    for (int64_t t = 0; t < tokens_; ++t) gated(own.panel[0] + t * ld, own.panel[1] + t * ld, n, space_.ffn + t * width + row);
  });
}

// The states that the head would multiply; NaN where the token itself is unknown.
void StepForward::hidden_rows(StepPlan& plan) {
  if (plan.hidden.empty()) return;
  const int64_t rows = static_cast<int64_t>(plan.hidden.size()), hidden = desc_.hidden;
  phase((rows + kTokensATask - 1) / kTokensATask, [](int) {}, [&](int64_t task, int) {
    for (int64_t i = task * kTokensATask; i < std::min(rows, (task + 1) * kTokensATask); ++i) {
      const int64_t token = plan.hidden[static_cast<size_t>(i)];
      float* const to = plan.hidden_rows + i * hidden;
      ops_.rms_norm(space_.x + token * hidden, model_->output_norm(), desc_.norm_eps, hidden, to);
      if (token_status_[static_cast<size_t>(token)] != MR_ROW_OK) std::fill_n(to, hidden, std::numeric_limits<float>::quiet_NaN());
    }
  });
}

// The inputs of all layers of all tokens, from their embeddings and rows of the second embedding.
void StepForward::layer_inputs(const StepPlan& plan) {
  const int64_t width = desc_.layer_input_width, all = layer_inputs_width(desc_);
  const Cut projection = cut(model_->input_projection()), first = mix_cut(0);
  with_prepared(space_.x, desc_.hidden, nullptr, projection, projection.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
    const Piece p = projection.at(task);
    multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), tokens_, space_.layer_inputs, all, p.first, p.last,
             weights_after(projection, task, thread, first));
  });
  const float from_hidden = 1 / std::sqrt(static_cast<float>(desc_.hidden)), from_embedding = std::sqrt(static_cast<float>(width));
  const float both = 1 / std::sqrt(2.0f);
  phase(tokens_, [](int) {}, [&](int64_t t, int thread) {
    float* const row = space_.threads[static_cast<size_t>(thread)].input_row;
    float* const inputs = space_.layer_inputs + t * all;
    dequantize_row(*model_->input_embedding(), plan.tokens[static_cast<size_t>(t)], row);
    ops_.scale(row, from_embedding, all, row);
    ops_.scale(inputs, from_hidden, all, inputs);
    for (int64_t i = 0; i < all; i += width) ops_.rms_norm(inputs + i, model_->input_norm(), desc_.norm_eps, width, inputs + i);
    ops_.add(inputs, row, all, inputs);
    ops_.scale(inputs, both, all, inputs);
  });
}

// Adds the branch of a layer's input: down(activation(gate(x)) * input), after its norm.
void StepForward::add_layer_input(int32_t index, const Cut& gate, const Cut& then) {
  const Layer& l = model_->layer(index);
  const int64_t ld = gate.chunk * panel_rows, width = desc_.layer_input_width;
  const float* const inputs = space_.layer_inputs + index * width;
  const auto gated = gated_by(desc_.mlp(index).activation);
  const Cut down = cut(l.input_down);
  with_prepared(space_.x, desc_.hidden, nullptr, gate, gate.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
    float* const y = space_.threads[static_cast<size_t>(thread)].panel[0];
    const Piece p = gate.at(task);
    const int64_t row = p.first * panel_rows, n = std::min(p.matrix.out, p.last * panel_rows) - row;
    multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), tokens_, y - row, ld, p.first, p.last,
             weights_after(gate, task, thread, down));
    for (int64_t t = 0; t < tokens_; ++t) gated(y + t * ld, inputs + t * layer_inputs_width(desc_) + row, n, space_.ffn + t * width + row);
  });
  project(space_.ffn, width, down, nullptr, l.input_end_norm, then);
}

// Final norm, head and results for the tokens that rows name, a few distinct tokens at a time. The first product needs no mask.
void StepForward::heads(StepPlan& plan, const std::function<bool()>& masks) {
  rows_.clear();
  for (size_t i = 0; i < plan.samples.size(); ++i)
    rows_.push_back(LogitRow{plan.samples[i].token_index, static_cast<int32_t>(i)});
  for (size_t i = 0; i < plan.scores.size(); ++i)
    rows_.push_back(LogitRow{plan.scores[i].token_index, ~static_cast<int32_t>(i)});
  std::sort(rows_.begin(), rows_.end(), [](const LogitRow& a, const LogitRow& b) {
    return a.token != b.token ? a.token < b.token : a.index < b.index;
  });
  if (rows_.empty()) {
    (void)masks();
    return;
  }
  const Cut head = head_cut(), first = mix_cut(0);
  const int64_t hidden = desc_.hidden;
  for (size_t begin = 0; begin < rows_.size();) {
    // The residual rows move to the front of the norm buffer; tokens_ counts them, so that products see a batch.
    int64_t distinct = 0;
    size_t end = begin;
    int64_t place[StepWorkspace::head_rows];
    for (; end < rows_.size(); ++end) {
      const bool fresh = end == begin || rows_[end].token != rows_[end - 1].token;
      if (fresh && distinct == space_.logit_rows) break;
      if (fresh) place[distinct++] = rows_[end].token;
    }
    tokens_ = distinct;
    for (int64_t i = 0; i < distinct; ++i)
      ops_.rms_norm(space_.x + place[i] * hidden, model_->output_norm(), desc_.norm_eps, hidden,
                    space_.norm + i * hidden);
    with_prepared(space_.norm, hidden, nullptr, head, head.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
      const Piece p = head.at(task);
      multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), distinct, space_.logits,
               space_.vocab_stride, p.first, p.last, weights_after(head, task, thread, first));
      const int64_t row = p.first * panel_rows, n = std::min(p.matrix.out, p.last * panel_rows) - row;
      for (int64_t i = 0; i < distinct; ++i) {
        float* const logits = space_.logits + i * space_.vocab_stride + row;
        if (desc_.logit_scale != 1) ops_.scale(logits, desc_.logit_scale, n, logits);
        if (desc_.logit_cap != 0) ops_.cap(logits, desc_.logit_cap, n, logits);
      }
    });
    if (begin == 0 && !masks()) return;
    const auto result = [&](int64_t task, int thread) {
      const LogitRow& r = rows_[begin + static_cast<size_t>(task)];
      int64_t i = 0;
      while (place[i] != r.token) ++i;
      row(plan, r, space_.logits + i * space_.vocab_stride, thread);
    };
    if (end - begin == 1) result(0, 0);
    else phase(static_cast<int64_t>(end - begin), [](int) {}, result);
    begin = end;
  }
  // If a slot has several rows, the last one is kept: its token replaces the slot's token -1.
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    Slot& slot = slots_[static_cast<size_t>(plan.samples[i].slot)];
    const mr_row_result& r = plan.sample_results[i];
    slot.sampled_status = r.status;
    slot.sampled = r.status == MR_ROW_OK ? r.token : 0;
  }
}

void StepForward::row(StepPlan& plan, const LogitRow& r, const float* logits, int thread) {
  const bool sample = r.index >= 0;
  SamplerSpace& space = samplers_[static_cast<size_t>(thread)];
  mr_row_result& out = sample ? plan.sample_results[static_cast<size_t>(r.index)]
                              : plan.score_results[static_cast<size_t>(~r.index)];
  out.slot = out.position = -1;
  int32_t top_n = 0, status = token_status_[static_cast<size_t>(r.token)];
  if (sample) {
    const mr_sample_row& s = plan.samples[static_cast<size_t>(r.index)];
    out.slot = s.slot;
    out.position = s.position;
    top_n = slots_[static_cast<size_t>(s.slot)].params.top_n;
    if (r.index == plan.nan_row) status = MR_ROW_NAN;
  } else {
    top_n = plan.scores[static_cast<size_t>(~r.index)].top_n;
  }
  RowStats stats{status, 0, 0};
  if (status == MR_ROW_OK) stats = row_stats(ops_, logits, desc_.vocab);
  out.status = stats.status;
  if (stats.status != MR_ROW_OK) return;
  if (sample) {
    const mr_sample_row& s = plan.samples[static_cast<size_t>(r.index)];
    const Slot& slot = slots_[static_cast<size_t>(s.slot)];
    const uint32_t* mask = s.mask_offset < 0 ? nullptr : plan.masks.data() + s.mask_offset;
    out.token = choose_token(ops_, Choice{logits, desc_.vocab, mask, &slot.params, slot.history,
                                          std::min(slot.length, s.position), s.position}, space);
    if (out.token < 0) {
      out.token = 0;
      out.status = MR_ROW_EMPTY;
      return;
    }
  } else {
    out.token = plan.scores[static_cast<size_t>(~r.index)].target;
  }
  out.count = 1;
  out.logprob = stats.logprob(logits[out.token]);
  out.rank = row_rank(ops_, logits, desc_.vocab, out.token);
  out.candidate_count = best_tokens(ops_, logits, desc_.vocab, top_n, stats, space,
                                    plan.candidates.data() + out.candidate_offset);
}

// Every weight once, of stacks the experts that the step used, the embedding by row; keys and values of every position a segment sees,
// the state that it begins with.
void StepForward::read_bytes(StepPlan& plan) const {
  uint64_t bytes = expert_bytes_;
  for (int32_t i = 0; i < desc_.layer_count(); ++i) {
    for (const Matrix* m : matrices_of(model_->layer(i)))
      if (m != nullptr) bytes += m->bytes;
    for (const Matrix* m : head_stacks_of(model_->layer(i)))
      if (m != nullptr) bytes += static_cast<uint64_t>(desc_.mixer(i).heads) * m->bytes;
    bytes += 2 * sizeof(float) * static_cast<uint64_t>(desc_.hidden);
    const mr_mixer_desc& m = desc_.mixer(i);
    if (!keeps_keys(m)) continue;
    const int64_t width = by_latent(m) ? cached_width(desc_, m) : key_width(m) + value_width(m);
    const uint64_t position = static_cast<uint64_t>(width * kv_.layout(i).element());
    for (const mr_segment& s : plan.segments) {
      const int32_t positions = s.first_position + s.count;
      bytes += position * static_cast<uint64_t>(m.window == 0 ? positions : std::min(positions, m.window + s.count - 1));
    }
  }
  for (const mr_segment& s : plan.segments)
    if (s.first_position != 0) bytes += static_cast<uint64_t>(states_.floats) * sizeof(float);
  if (!rows_.empty()) bytes += model_->head().bytes;
  bytes += plan.tokens.size() * (model_->embedding().bytes / static_cast<uint64_t>(desc_.vocab));
  if (desc_.layer_input_width != 0)
    bytes += model_->input_projection()->bytes + plan.tokens.size() * (model_->input_embedding()->bytes / static_cast<uint64_t>(desc_.vocab));
  plan.bytes_read = bytes;
}

}  // namespace mr::cpu
