// Layers that carry a state: gated delta nets and short convolutions. Positions of a slot are computed one after another, so that a
// prompt may be cut anywhere: the state after a position has the same bits however its tokens came. The segments of one slot in a step
// form a chain: each of them goes on where the one before it ended.
#pragma GCC optimize("fp-contract=off")
#include <algorithm>
#include <cmath>
#include <cstring>

#include "mathfn.h"
#include "route.h"
#include "step_forward.h"
#include "step_phase.h"

namespace mr::cpu {
namespace {

float softplus(float x) { return static_cast<float>(std::max<double>(x, 0) + log_f64(1 + exp_f64(-std::fabs(double{x})))); }

}  // namespace

StepForward::States::States(Ledger& ledger, const Description& model, const mr_runner_config& config)
    : floats(state_floats(model)),
      memory(ledger.allocate(states_bytes(config, static_cast<uint64_t>(floats) * sizeof(float)), MR_PURPOSE_KV, false)) {
  int64_t begin = 0;
  for (const mr_layer_desc& layer : model.layers) {
    at.push_back(begin);
    begin += state_width(layer.mixer, model.hidden);
  }
}

void StepForward::copy_state(const StepPlan::PreOp& op) const {
  const size_t size = static_cast<size_t>(states_.floats) * sizeof(float);
  if (op.kind == MR_PRE_STATE_OUT) std::memcpy(op.host, states_.of(op.src, 0), size);
  else std::memcpy(states_.of(op.dst, 0), op.host, size);
}

void StepForward::chain_segments(const StepPlan& plan) {
  chains_.clear();
  chained_.clear();
  chained_tokens_.clear();
  if (states_.floats == 0) return;
  segment_token_.clear();
  int32_t token = 0;
  for (const mr_segment& s : plan.segments) {
    chained_.push_back(static_cast<int32_t>(segment_token_.size()));
    segment_token_.push_back(token);
    token += s.count;
  }
  const auto segment = [&plan](int32_t i) -> const mr_segment& { return plan.segments[static_cast<size_t>(i)]; };
  std::stable_sort(chained_.begin(), chained_.end(), [&](int32_t a, int32_t b) { return segment(a).slot < segment(b).slot; });
  for (size_t i = 0; i < chained_.size(); ++i) {
    const mr_segment& s = segment(chained_[i]);
    if (i == 0 || s.slot != segment(chained_[i - 1]).slot)
      chains_.push_back(Chain{static_cast<int32_t>(i), 0, static_cast<int32_t>(chained_tokens_.size()),
                              s.first_position == 0 ? -1 : s.state_from});
    ++chains_.back().segments;
    for (int32_t t = 0; t < s.count; ++t)
      chained_tokens_.push_back({segment_token_[static_cast<size_t>(chained_[i])] + t, static_cast<int32_t>(chains_.size()) - 1});
  }
}

// The inputs of the convolution at the n-th token of a chain and before it, oldest first: conv rows, null before position 0. The row of
// token t is rows + t * space_.qkv_width; `before` has those that the chain begins with.
void StepForward::inputs_of(const Chain& chain, int32_t conv, int64_t width, int32_t n, const float* rows, const float* before,
                            const float** out) const {
  for (int32_t j = 0; j < conv; ++j) {
    const int32_t at = n - (conv - 1) + j;
    if (at >= 0) out[j] = rows + int64_t{chained_tokens_[static_cast<size_t>(chain.first_token + at)].token} * space_.qkv_width;
    else out[j] = before == nullptr ? nullptr : before + (conv - 1 + at) * width;
  }
}

// Calls body(token, convolution of its inputs' columns), on all threads.
template <class Body>
void StepForward::convolve(int32_t index, const float* rows, Body body) {
  const mr_mixer_desc& m = desc_.mixer(index);
  const int64_t width = conv_width(m, desc_.hidden), grain = few() ? 1 : kTokensATask;
  const float* const taps = space_.conv_taps[static_cast<size_t>(index)];
  phase((tokens_ + grain - 1) / grain, [](int) {}, [&](int64_t task, int thread) {
    float* const out = space_.threads[static_cast<size_t>(thread)].convolved;
    const float* inputs[kMostTaps];
    for (int64_t i = task * grain; i < std::min(tokens_, (task + 1) * grain); ++i) {
      const ChainedToken& t = chained_tokens_[static_cast<size_t>(i)];
      const Chain& chain = chains_[static_cast<size_t>(t.chain)];
      inputs_of(chain, m.conv, width, static_cast<int32_t>(i) - chain.first_token, rows, before(chain, index), inputs);
      ops_.convolve(inputs, taps, m.conv, width, out);
      body(int64_t{t.token}, out);
    }
  });
}

// The state of a layer that a chain begins with; null for zeros.
const float* StepForward::before(const Chain& chain, int32_t index) const {
  return chain.from < 0 ? nullptr : states_.of(chain.from, index);
}

// Stores the last inputs of the convolution after each segment of a chain.
void StepForward::keep_inputs(const StepPlan& plan, int32_t index, const Chain& chain, const float* rows, int thread) {
  const mr_mixer_desc& m = desc_.mixer(index);
  const int64_t width = conv_width(m, desc_.hidden), kept = (m.conv - 1) * width;
  const float* first = before(chain, index);
  if (first != nullptr) {  // which a segment may overwrite
    float* const copy = space_.threads[static_cast<size_t>(thread)].inputs;
    first = std::copy(first, first + kept, copy) - kept;
  }
  const float* inputs[kMostTaps];
  int32_t end = 0;
  for (int32_t i = chain.first_segment; i < chain.first_segment + chain.segments; ++i) {
    const mr_segment& s = plan.segments[static_cast<size_t>(chained_[static_cast<size_t>(i)])];
    end += s.count;
    inputs_of(chain, m.conv, width, end - 1, rows, first, inputs);
    float* const to = states_.of(s.state_to, index);
    for (int32_t j = 1; j < m.conv; ++j) {
      if (inputs[j] == nullptr) std::fill_n(to + (j - 1) * width, width, 0.0f);
      else std::copy(inputs[j], inputs[j] + width, to + (j - 1) * width);
    }
  }
}

// Products of the normed residual with some matrices, each into rows of its own.
void StepForward::mix_products(int32_t index, const Cut& cut, float* const* outputs, const int64_t* widths, const Cut& then) {
  const float* const norm = model_->layer(index).attn_norm;
  with_prepared(space_.x, desc_.hidden, norm, cut, cut.tasks, [&](int64_t task, int thread, const Prepared& prepared) {
    const Piece p = cut.at(task);
    multiply(isa_, p.matrix, prepared.of(activation_kind(isa_, p.matrix.type)), tokens_, outputs[p.index], widths[p.index], p.first, p.last,
             weights_after(cut, task, thread, then));
  });
}

void StepForward::short_convolution(const StepPlan& plan, int32_t index, const Cut& out) {
  const int64_t hidden = desc_.hidden;
  float* const rows = space_.qkv;
  mix_products(index, mix_cut(index), &rows, &space_.qkv_width, out);
  each_token([&](int64_t t) {
    float* const b = rows + t * space_.qkv_width;
    ops_.mul(b, b + 2 * hidden, hidden, b);
  });
  convolve(index, rows, [&](int64_t t, const float* convolved) {
    ops_.mul(convolved, rows + t * space_.qkv_width + hidden, hidden, space_.attention + t * hidden);
  });
  phase(static_cast<int64_t>(chains_.size()), [](int) {},
        [&](int64_t chain, int thread) { keep_inputs(plan, index, chains_[static_cast<size_t>(chain)], rows, thread); });
}

void StepForward::gated_delta(const StepPlan& plan, int32_t index, const Cut& out) {
  const mr_mixer_desc& m = desc_.mixer(index);
  const int64_t keys = key_width(m), values = attended_width(m), width = conv_width(m, desc_.hidden);
  float* const outputs[] = {space_.qkv, space_.mix_gates, space_.betas, space_.alphas};
  const int64_t widths[] = {space_.qkv_width, values, m.heads, m.heads};
  mix_products(index, mix_cut(index), outputs, widths, out);
  const float scale = attention_scale(m);
  convolve(index, space_.qkv, [&](int64_t t, float* convolved) {
    ops_.silu(convolved, width, convolved);
    float* const row = space_.convolved + t * width;
    for (int32_t h = 0; h < m.kv_heads; ++h) {
      const int64_t at = int64_t{h} * m.key_dim;
      ops_.unit(convolved + at, scale, m.key_dim, row + at);
      ops_.unit(convolved + keys + at, 1, m.key_dim, row + keys + at);
    }
    std::copy(convolved + 2 * keys, convolved + width, row + 2 * keys);
  });
  const int64_t tasks = int64_t{m.heads} + 1;  // of a chain: its heads, and the inputs that it keeps
  phase(static_cast<int64_t>(chains_.size()) * tasks, [](int) {}, [&](int64_t task, int thread) {
    const Chain& chain = chains_[static_cast<size_t>(task / tasks)];
    const int32_t head = static_cast<int32_t>(task % tasks);
    if (head == m.heads) keep_inputs(plan, index, chain, space_.qkv, thread);
    else delta_head(plan, index, chain, head, thread);
  });
}

// The recurrence of one head of a chain, and its gated norm.
void StepForward::delta_head(const StepPlan& plan, int32_t index, const Chain& chain, int32_t head, int thread) {
  const Layer& l = model_->layer(index);
  const mr_mixer_desc& m = desc_.mixer(index);
  const auto& own = space_.threads[static_cast<size_t>(thread)];
  const int64_t keys = key_width(m), values = attended_width(m), width = conv_width(m, desc_.hidden);
  const int64_t size = int64_t{m.key_dim} * m.value_dim, at = (m.conv - 1) * width + head * size;
  const int32_t group = (m.flags & MR_MIX_TILED_HEADS) != 0 ? head % m.kv_heads : head / (m.heads / m.kv_heads);
  const float* from = before(chain, index);
  if (from != nullptr) from += at;
  for (int32_t i = chain.first_segment; i < chain.first_segment + chain.segments; ++i) {
    const int32_t segment = chained_[static_cast<size_t>(i)];
    const mr_segment& s = plan.segments[static_cast<size_t>(segment)];
    float* const state = states_.of(s.state_to, index) + at;
    if (from == nullptr) std::fill_n(state, size, 0.0f);
    else if (from != state) std::copy(from, from + size, state);
    from = state;
    const int64_t first = segment_token_[static_cast<size_t>(segment)];
    for (int64_t t = 0; t < s.count; ++t) {
      const int64_t scalar = (first + t) * m.heads + head;
      own.decay[t] = static_cast<float>(exp_f64(double{l.delta_a[head]} * double{softplus(space_.alphas[scalar] + l.delta_dt[head])}));
      own.beta[t] = space_.betas[scalar];
    }
    sigmoid(ops_, own.beta, s.count);
    const float* const row = space_.convolved + first * width;
    float* const o = space_.attention + first * values + int64_t{head} * m.value_dim;
    ops_.delta(DeltaArgs{state, m.key_dim, m.value_dim, s.count, width, values, row + int64_t{group} * m.key_dim,
                         row + keys + int64_t{group} * m.key_dim, row + 2 * keys + int64_t{head} * m.value_dim, own.decay, own.beta, o});
    for (int64_t t = 0; t < s.count; ++t) {
      ops_.rms_norm(o + t * values, l.delta_norm, desc_.norm_eps, m.value_dim, o + t * values);
      ops_.swiglu(space_.mix_gates + (first + t) * values + int64_t{head} * m.value_dim, o + t * values, m.value_dim, o + t * values);
    }
  }
}

}  // namespace mr::cpu
